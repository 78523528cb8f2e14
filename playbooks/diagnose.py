# /// script
# requires-python = ">=3.9"
# dependencies = []
# [tool.ddtree.playbook]
# api = 1
# id = "diagnose"
# title = "Diagnose"
# key = "z"
# summary = "Why is it slow tonight: the engine now against its pinned golden run"
# version = "1.0.0"
# kind = "diagnose"
# engines = ["bundled", "sglang", "vllm"]
# needs = ["openai.completions", "stream", "usage.stream", "ignore_eos"]
# wants = ["steps.exact", "accept.length", "tokens.count", "spec.on"]
# effects = []
# exclusive = true
# est_seconds = "budget_seconds"
# max_seconds = 600
# verdicts = ["healthy", "void", "not_comparable", "broken", "contention", "throttled", "step_regression", "acceptance_regression", "buffered_stream", "network", "unexplained", "inconclusive", "commit_collapsed", "inconsistent_data"]
# [tool.ddtree.playbook.params.tokens]
# type = "int"
# default = 64
# min = 32
# max = 1024
# help = "output tokens of every request"
# [tool.ddtree.playbook.params.short]
# type = "int"
# default = 64
# min = 8
# max = "engine.max_context-tokens-8"
# help = "prompt tokens of the short context"
# [tool.ddtree.playbook.params.long]
# type = "int"
# default = 3000
# min = 64
# max = "engine.max_context-tokens-8"
# help = "prompt tokens of the longest context, lowered where the budget does not carry it"
# [tool.ddtree.playbook.params.reps]
# type = "int"
# default = 3
# min = 2
# max = 20
# help = "requests of each kind and context; as many again where something looks different"
# [tool.ddtree.playbook.params.wait]
# type = "int"
# default = 5
# min = 0
# max = 600
# help = "seconds to wait for a console that reads a stream as a client; 0 leaves that out"
# [tool.ddtree.playbook.params.budget_seconds]
# type = "int"
# default = 120
# min = 5
# max = 3000
# help = "time to aim at: it scales the levels, then the repeats"
# ///
"""The night key: does the engine do what it did when the golden run was pinned, and if not, what has changed?

It reads the state, asks the same two questions as then, measures every kind of text at a short context and one kind at
two longer ones (the golden run's own cells), goes again over what looks different, and lets the console read a stream.
Without a golden run it is a check of health, and a run to pin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python3 -I looks for no modules beside the script
import kit

PROBES = (("prose", 48), ("code", 48))  # fixed questions: the same settings must give the same tokens
PROBE_TOKENS = 32
DOUBTFUL = 0.04  # relative change of commit length or step time that is worth a second look; docs/decisions/0013
CLIENT_TOKENS = 64
CLIENT_STREAMS = 3
Cells = List[Dict[str, Any]]


def plan(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run will do, as far as it is known without the engine."""
    cells = len(kit.KINDS) + 2
    return {
        "cells": cells,
        "steps": 2 * len(PROBES) + cells * (params["reps"] + 1) + CLIENT_STREAMS,
        "est_s": params["budget_seconds"],
        "budget": f"the longest context, then the repeats, are scaled to end within about {params['budget_seconds']} s",
    }


def measure(run: kit.Run) -> Mapping[str, Any]:
    """Probe, measure the golden run's cells, look again where they differ, let a client read."""
    params = run.params
    if run.golden is None:
        run.log("no golden run is pinned for this engine: this is a check of health, and a run to pin")
    cells = cells_of(run.golden, run.max_context - params["tokens"]) or default_cells(run)
    run.table(
        "cells",
        ("kind", "", "kind of text"),
        ("context", "tok", "prompt tokens"),
        ("commit", "tok/step", "commit length"),
        ("step_ms", "ms", "step time"),
        ("tok_s", "tok/s", "decode rate"),
    )
    probe(run)
    for level in sorted({cell["level"] for cell in cells}):
        run.request("prose", level, kit.WARM_TOKENS)

    def take(cell: Mapping[str, Any]) -> Mapping[str, Any]:
        figures = run.request(cell["kind"], cell["level"], params["tokens"])
        shown = {name: figures[name] for name in ("commit", "step_ms", "tok_s")}
        run.row("cells", kind=cell["kind"], context=cell["level"], **shown)
        return figures

    measured = kit.rounds(run, cells, params["reps"], take)
    again = doubtful(measured, cells, run.golden)
    if again and run.elapsed_s < params["budget_seconds"] / 2:
        run.log(f"looking again at {len(again)} of {len(cells)} combinations that differ from the golden run")
        measured += kit.rounds(run, again, params["reps"], take)
    clients = read_as_client(run) if params["wait"] else 0
    return {**kit.ratios(measured), "cells": len(cells), "looked_again": len(again), "client_streams": clients}


def cells_of(golden: Any, room: int) -> Cells:
    """The combinations of kind and context that the golden run measured, as far as they fit now."""
    rows: Sequence[Mapping[str, Any]] = (golden or {}).get("rows") or ()
    found = {(row["kind"], int(row["level"])) for row in rows if not row.get("probe") and row.get("steps")}
    return [{"kind": kind, "level": level} for kind, level in sorted(found) if level <= room]


def default_cells(run: kit.Run) -> Cells:
    """Every kind at the short context, and prose at two longer ones."""
    short = run.params["short"]
    long = kit.long_prompt(run, run.params["long"], 2 * run.params["reps"], run.params["tokens"])
    contexts = sorted({max(long // 3, short), long} - {short})
    return [{"kind": kind, "level": short} for kind in kit.KINDS] + [
        {"kind": "prose", "level": one} for one in contexts
    ]


def probe(run: kit.Run) -> None:
    """The fixed questions, with speculation and without where the engine lets a request choose."""
    choices: Dict[str, Any] = {"now": None}
    if run.chooses_speculation and (run.info.get("settings") or {}).get("mode", "off") != "off":
        choices["off"] = {"mode": "off"}
    for number, (kind, tokens) in enumerate(PROBES):
        for arm, choice in choices.items():
            prompt = run.prompts.fixed(kind, tokens, number)
            figures, _ = run.ask(kind, tokens, PROBE_TOKENS, prompt=prompt, speculation=choice)
            run.sample(figures, level=tokens, arm=arm, pair=number, probe=True)


def doubtful(measured: Sequence[Mapping[str, Any]], cells: Cells, golden: Any) -> Cells:
    """Cells whose kind or context departs from the golden run's; none without one."""
    rows = [row for row in (golden or {}).get("rows") or () if not row.get("probe") and row.get("steps")]
    if not rows:
        return []
    found = []
    for cell in cells:
        sides = [[row for row in side if matches(row, cell)] for side in (rows, measured)]
        before, after = (kit.ratios(side) for side in sides)
        changes = [
            abs(after[name] / before[name] - 1) for name in ("commit_length", "step_ms") if before[name] and after[name]
        ]
        if changes and max(changes) > DOUBTFUL:
            found.append(cell)
    return found


def matches(row: Mapping[str, Any], cell: Mapping[str, Any]) -> bool:
    """Whether a request belongs to a cell."""
    return bool(row["kind"] == cell["kind"] and row["level"] == cell["level"])


def read_as_client(run: kit.Run) -> int:
    """Streams that a following console read beside the box; 0 where none follows."""
    prompts = [run.prompts.make("prose", run.params["short"]) for _ in range(CLIENT_STREAMS)]
    with kit.Relay(run, prompts, CLIENT_TOKENS) as relay:
        relay.ask_for_a_client()
        if not relay.wait_for_client(run.params["wait"]):
            run.log("no console reads along, so the way to the client was not looked at")
            return 0
        for number, stream in enumerate(kit.streams(relay)):
            run.sample({"level": run.params["short"], "kind": "prose", **stream}, rep=number, block=number, client=True)
    return CLIENT_STREAMS


if __name__ == "__main__":
    sys.exit(kit.main(__file__, plan, measure))
