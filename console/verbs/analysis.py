"""Verbs that compute and touch no host: `explain` and `capacity`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from console.analysis.kv_bytes import ELEMENT_BYTES
from console.deployment.capacity import Capacity, element_bytes, in_words, kv_shape, pool_of
from console.errors import ExitCode, UsageError
from console.verbs.given_files import read_json
from console.verbs.verb import Call
from console.verbs.words import Style, columns


async def explain(call: Call) -> ExitCode:
    """Explain the observations in a file."""
    from console.analysis.explain import explain as explain_data  # numpy and scipy come in with it
    from console.analysis.run_verdict import exit_code_of

    (path,) = call.paths("observations")
    data = read_json(path)
    report = explain_data(data)
    call.say(report, explanation_text(report, call.session.style))
    # Without two rows to compare, the fit was all that was asked for.
    return exit_code_of(report["verdict"]["class"]) if data.get("compare") else ExitCode.DONE


def explanation_text(report: dict[str, Any], style: Style) -> str:
    """Headline first, then what leads to it."""
    verdict = report["verdict"]
    blocks = [f"{style.strong(verdict['class'])}: {verdict['headline']}"]
    split = report["attribution"]
    if split:
        rows: list[tuple[str, ...]] = []
        for name in ("acceptance", "context", "kernel", "residual"):
            if name == "kernel" and not split["kernel_measured"]:
                rows.append((name, "", "not measured; it sits in the residual", ""))
                continue
            interval = split.get(f"{name}_ci")
            share = split["log_shares_percent"][name]
            bounds = f"[{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""
            marked = f"{name} *" if name == "context" else name  # the curve's step at both contexts
            rows.append((marked, f"{split[name]:.2f}", bounds, f"{share:.0f} %"))
        blocks.append(columns(rows, ("factor", "slower by", "95 %", "share")))
    fit = report["fit"]
    if fit:
        curve = f"step = {fit['a_ms']:.2f} ms + {1000 * fit['b_ms_per_token']:.2f} us a token"
        curve += f" + {1e6 * fit['q']:.3f} ns a token squared" if fit["q"] else ""
        blocks.append(f"{fit['model']} fit over {fit['levels']} context levels: {curve}")
    table = [(row["label"], *(_shown(row[name], digits) for name, digits in _COLUMNS)) for row in report["rows"]]
    blocks.append(columns(table, _HEAD) + "\n* modelled: computed from the fit and the other figures, not measured")
    blocks += [f"{style.doubtful('warning')} {warning['code']}: {warning['msg']}" for warning in verdict["warnings"]]
    blocks.append(f"next: {verdict['next']}")
    return "\n\n".join(blocks)


_HEAD = ("row", "context", "commit", "step ms", "tok/s", "step ms *", "tok/s *", "commit *")
_COLUMNS = (
    ("context", 0), ("commit_length", 2), ("step_ms", 1), ("observed_tok_s", 1), ("model_step_ms", 1), ("predicted_tok_s", 1),
    ("implied_commit_length", 2),
)  # fmt: skip


async def capacity(call: Call) -> ExitCode:
    """Say what a model's tokens cost in the KV pool, and what fits."""
    folder = Path(call.text("config_dir"))
    shape = kv_shape(read_json(folder / "config.json" if folder.is_dir() else folder))
    asked, page_size, devices = (
        call.arguments["context-length"],
        call.arguments["page-size"],
        call.arguments["tensor-parallel"],
    )
    if not 1 <= page_size <= 256:
        raise UsageError(f"{page_size} is outside 1..256", where="--page-size")
    if devices < 1:
        raise UsageError(f"{devices} devices are too few", where="--tensor-parallel", mend="use 1 or more")
    if asked < 1:
        raise UsageError(f"{asked} tokens are too few", where="--context-length", mend="use 1 or more")
    if asked > shape.max_position_embeddings:
        raise UsageError(
            f"{asked} is above the model's {shape.max_position_embeddings}",
            where="--context-length",
            mend=f"use {shape.max_position_embeddings} or less",
        )
    if shape.dtype not in ELEMENT_BYTES:
        raise UsageError(f"dtype {shape.dtype!r} is not known", where="config.json")
    size = element_bytes("auto", shape.dtype)
    per_token, notes = shape.bytes_per_token(size, devices), shape.notes(size, devices)
    memory = call.arguments["memory"]
    if memory is None:  # just enough for one request of that length
        pages = -(-asked // page_size)
        result = Capacity(per_token, page_size, pages, asked)
    else:
        result = pool_of(per_token, page_size, memory, asked)
    lines = [
        f"{shape.architecture}: {per_token:,} B a token on each of {devices} device{'s' * (devices != 1)}",
        *result.sentences(),
    ]
    if memory is None:
        lines.append(f"one request of full length needs {in_words(result.pool_bytes)}; give --memory for what fits")
    head = {"architecture": shape.architecture, "tensor_parallel": devices}
    call.say({**head, **result.to_json(), "notes": list(notes)}, "\n".join([*lines, *notes]))
    return ExitCode.DONE if result.fits else ExitCode.CHECK_SAYS_NO


def _shown(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
