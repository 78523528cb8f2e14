"""The KV pool in pages, and the requests that run and wait."""

from __future__ import annotations

from textual.content import Content

from console.tui.tones import ACCENT, BAD, PLAIN, QUIET, WARN, Piece, row
from console.tui.view import View
from console.tui.widgets.bars import gauge
from console.tui.words import byte_size

TIGHT = 0.9


def draw_pool(view: View, width: int, _height: int) -> list[Content]:
    """`KV pages ███████░░░ 2,311 / 4,096  56 %   running 1   queue 0`."""
    snapshot = view.snapshot
    if snapshot is None:
        return []
    requests: list[Piece] = []
    for name, count, tone in (
        ("running", snapshot.running, PLAIN),
        ("queue", snapshot.queued, WARN if snapshot.queued else PLAIN),
    ):
        requests += [(f"  {name} ", QUIET), ("-" if count is None else f"{count:,}", tone)]
    kv = snapshot.kv
    if kv is None or kv.pages_total <= 0:
        return [row("KV pages", ("no figures", QUIET), *requests)]
    fraction = kv.pages_used / kv.pages_total
    numbers = f" {kv.pages_used:,} / {kv.pages_total:,}  {100 * fraction:.0f} %"
    size = _size_words(kv.bytes_per_token, kv.page_size, kv.pages_total) if width >= 100 else ""
    filled, track = gauge(fraction, 20 if width >= 76 else 10, view.glyphs)
    tone = BAD if fraction > TIGHT else ACCENT
    return [row("KV pages", (filled, tone), (track, QUIET), (numbers, PLAIN), (size, QUIET), *requests)]


def _size_words(bytes_per_token: int | None, page_size: int, pages: int) -> str:
    return "" if not bytes_per_token else f"  of {byte_size(bytes_per_token * page_size * pages)}"
