"""What an engine says of itself over HTTP -> the console's values. Pure; anything missing or odd is left out, not guessed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from console.snapshot import (
    EngineInfo,
    GpuFigures,
    HostFigures,
    KvFigures,
    ProcessFigures,
    TreeFigures,
    TreeNode,
)

T = TypeVar("T")


@dataclass(frozen=True)
class EngineReport:
    """One answer of `/server_info`, taken apart."""

    engine: EngineInfo
    invocation: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    kv: KvFigures | None = None
    running: int | None = None
    queued: int | None = None
    spine_hit_rate: float | None = None
    branch_gain: float | None = None
    lookup_share: float | None = None
    machine: HostFigures | None = None
    process: ProcessFigures | None = None
    gpus: tuple[GpuFigures, ...] = ()


def read_server_info(data: Mapping[str, Any], port: int) -> EngineReport:
    """The report in the bundled engine's `/server_info` object; `port` is where it answered on the box."""
    model, drafter = _part(data, "model"), _part(data, "drafter")
    requests, speculation = _part(data, "requests"), _part(data, "speculation")
    return EngineReport(
        engine=EngineInfo(
            kind=str(data.get("engine", "unknown")),
            version=_text(data, "version"),
            port=port,
            model=_text(model, "name"),
            drafter=_text(drafter, "path"),
            max_context=_whole(model, "max_position_embeddings"),
            block_size=_whole(drafter, "block_size"),
        ),
        invocation=_text(data, "invocation"),
        settings=dict(_part(data, "settings")),
        kv=_kv(_part(data, "kv")),
        running=_whole(requests, "running"),
        queued=_whole(requests, "queued"),
        spine_hit_rate=_real(speculation, "spine_hit_rate"),
        branch_gain=_real(speculation, "branch_gain"),
        lookup_share=_real(speculation, "lookup_share"),
        process=_known(ProcessFigures, _part(data, "process"), needs=("pid",)),
        machine=read_machine(data),
        gpus=read_gpus(data),
    )


def read_machine(data: Mapping[str, Any]) -> HostFigures | None:
    """The `host` part, which `python -m engine host --json` prints as well."""
    return _known(HostFigures, _part(data, "host"), needs=())


def read_gpus(data: Mapping[str, Any]) -> tuple[GpuFigures, ...]:
    """The `gpus` part, which `python -m engine host --json` prints as well."""
    found = data.get("gpus")
    rows = found if isinstance(found, list) else []
    gpus = (_known(GpuFigures, row, needs=("index", "name")) for row in rows if isinstance(row, Mapping))
    return tuple(gpu for gpu in gpus if gpu is not None)


def read_tree(data: Mapping[str, Any]) -> TreeFigures | None:
    """One event of `/trees`; None when its nodes do not form a tree (a parent must come before its child)."""
    rows = data.get("nodes")
    if not isinstance(rows, list) or not rows:
        return None
    nodes: list[TreeNode] = []
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            return None
        parent, depth = _whole(row, "parent"), _whole(row, "depth")
        if parent is None or depth is None or not -1 <= parent < index or (parent == -1) != (index == 0):
            return None
        nodes.append(
            TreeNode(
                parent,
                depth,
                str(row.get("text", "")),
                _real(row, "probability"),
                row.get("accepted") is True,
                row.get("lookup") is True,
            )
        )
    return TreeFigures(tuple(nodes), _whole(data, "budget") or 0, _whole(data, "commit_length") or 0)


def _kv(part: Mapping[str, Any]) -> KvFigures | None:
    used, total, page = (_whole(part, name) for name in ("pages_used", "pages_total", "page_size"))
    if used is None or total is None or page is None:
        return None
    return KvFigures(used, total, page, _whole(part, "bytes_per_token"))


def _known(make: type[T], part: Mapping[str, Any], needs: tuple[str, ...]) -> T | None:
    """`make` from the keys it has fields for; None when there is nothing, or a needed one is missing."""
    names = {f.name for f in fields(make)}  # type: ignore[arg-type]
    values = {key: value for key, value in part.items() if key in names and value is not None}
    return make(**values) if values and all(name in values for name in needs) else None


def _part(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = data.get(key)
    return part if isinstance(part, Mapping) else {}


def _text(part: Mapping[str, Any], key: str) -> str | None:
    value = part.get(key)
    return value if isinstance(value, str) and value else None


def _whole(part: Mapping[str, Any], key: str) -> int | None:
    value = part.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _real(part: Mapping[str, Any], key: str) -> float | None:
    value = part.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
