"""The KV pool in pages, and the requests that run and wait."""

from __future__ import annotations

from textual.content import Content

from console.snapshot import KvFigures, Snapshot
from console.tui.glyphs import Glyphs
from console.tui.tones import ACCENT, BAD, LABEL_WIDTH, PLAIN, QUIET, WARN, row
from console.tui.view import View
from console.tui.widgets.bars import gauge
from console.tui.words import byte_size

TIGHT = 0.9
_GAUGE, _LEAST_GAUGE = 20, 8


def draw_pool(view: View, width: int, _height: int) -> list[Content]:
    """`KV pages ███████░░░ 2,311 / 4,096  56 %   running 1  queue 0`, in two rows where one is too short."""
    snapshot = view.snapshot
    if snapshot is None:
        return []
    requests = _requests(snapshot)
    kv = snapshot.kv
    if kv is None or kv.pages_total <= 0:
        return [row("KV pages", ("no figures   ", QUIET), requests)]
    numbers = f" {kv.pages_used:,} / {kv.pages_total:,}  {100 * kv.pages_used / kv.pages_total:.0f} %"
    size = _size_words(kv.bytes_per_token, kv.page_size, kv.pages_total)
    spare = width - LABEL_WIDTH - _LEAST_GAUGE - len(numbers)
    if spare >= len(size) + 3 + requests.cell_length:
        return [_pool_row(kv, f"{numbers}{size}   ", requests, width, view.glyphs)]
    if spare >= 3 + requests.cell_length:
        return [_pool_row(kv, f"{numbers}   ", requests, width, view.glyphs)]
    return [_pool_row(kv, numbers, Content(""), width, view.glyphs), row("requests", requests)]


def _pool_row(kv: KvFigures, numbers: str, requests: Content, width: int, glyphs: Glyphs) -> Content:
    fraction = kv.pages_used / kv.pages_total
    columns = min(_GAUGE, width - LABEL_WIDTH - len(numbers) - requests.cell_length)
    filled, track = gauge(fraction, columns, glyphs)
    return row("KV pages", (filled, BAD if fraction > TIGHT else ACCENT), (track, QUIET), (numbers, PLAIN), requests)


def _requests(snapshot: Snapshot) -> Content:
    counts = (("running", snapshot.running, PLAIN), ("queue", snapshot.queued, WARN if snapshot.queued else PLAIN))
    parts = [
        Content.assemble((f"{name} ", QUIET), ("-" if count is None else f"{count:,}", tone))
        for name, count, tone in counts
    ]
    return Content("  ").join(parts)


def _size_words(bytes_per_token: int | None, page_size: int, pages: int) -> str:
    return "" if not bytes_per_token else f"  of {byte_size(bytes_per_token * page_size * pages)}"
