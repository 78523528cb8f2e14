"""The line that is always on top: which host, what serves on it, in what state, and how the link to it is."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from textual.content import Content

from console.box.values import ServiceName
from console.tui.glyphs import shown
from console.tui.tones import BAD, GOOD, QUIET, WARN
from console.tui.view import View
from console.tui.words import duration, epoch_s

STATE_TONES: dict[ServiceName, str] = {
    "serving": GOOD,
    "starting": WARN,
    "stopping": WARN,
    "restarting": WARN,
    "stopped": QUIET,
    "not-installed": QUIET,
    "unknown": QUIET,
    "failed": BAD,
    "start-limit-hit": BAD,
    "start-timeout": BAD,
    "stuck-in-stop": BAD,
}
_HOST_TONES = ("$host-1", "$host-2", "$host-3", "$host-4", "$host-5")


@dataclass(frozen=True)
class _Segment:
    """A piece of the line; the higher `drop` is, the sooner it goes when columns are scarce. 0 stays."""

    content: Content
    drop: int = 0
    gap: str = "  "


def draw_top_line(view: View, width: int, _height: int) -> list[Content]:
    """One line that fits `width`: host, tag, state and link are never left out."""
    segments = [*_left_segments(view), *_right_segments(view)]
    for drop in sorted({segment.drop for segment in segments}, reverse=True):
        line = _joined(segments)
        if line.cell_length <= width or drop == 0:
            break
        segments = [segment for segment in segments if segment.drop != drop]
    return [_joined(segments)]


def host_tone(host: str, tag: str | None, colour: str | None = None) -> str:
    """A production host is always red; any other has the colour of hosts.toml, or one of its own, the same every day."""
    if tag is not None and tag.upper().startswith("PROD"):
        return "bold $host-production"
    if colour is not None:
        return f"bold {colour if colour.startswith('#') else f'$named-{colour}'}"
    return f"bold {_HOST_TONES[zlib.crc32(host.encode()) % len(_HOST_TONES)]}"


def link_words(view: View) -> tuple[str, str]:
    """The link in words and its tone: `LIVE`, `LOST stale 42 s`, `RETRY in 8 s stale 42 s`."""
    link = view.link
    if link is None:
        return "CONNECTING", WARN
    words: str = link.name
    if link.name == "RETRY" and link.retry_at_s is not None:
        words += f" in {duration(link.retry_at_s - view.now_s)}"
    if view.stale_s is not None:
        words += f" stale {duration(view.stale_s)}"
    if link.name == "LIVE":
        return words, WARN if view.stale_s is not None else GOOD
    return words, WARN if link.name in ("CONNECTING", "DEGRADED") else BAD


def state_words(view: View) -> tuple[str, str, str | None]:
    """The service's state in words, its tone, and since when: (`serving`, tone, `2d03h`)."""
    service = view.snapshot.service if view.snapshot else None
    if service is None:
        return "state unknown", QUIET, None
    since_s = epoch_s(service.since)
    age = None if since_s is None else duration(view.wall_s - since_s)
    return service.state.replace("-", " "), STATE_TONES[service.state], age


def _left_segments(view: View) -> list[_Segment]:
    snapshot, glyphs = view.snapshot, view.glyphs
    _state, tone, _age = state_words(view)
    tag = snapshot.tag if snapshot else None
    colour = snapshot.colour if snapshot else None
    host = shown(view.host, glyphs)
    name = f"{host} [{shown(tag, glyphs)}]" if tag else host
    segments = [
        _Segment(Content.assemble((f" {glyphs.dot} ", tone), (name, host_tone(view.host, tag, colour))), gap="")
    ]
    if snapshot is None:
        return segments
    engine, settings = snapshot.engine, snapshot.settings
    if engine is not None:
        version = f" {engine.version}" if engine.version else ""
        segments.append(_Segment(Content(shown(f"{engine.kind}{version}", glyphs)), drop=5))
    for drop, words in ((4, _setting("ctx", settings.get("context_length") or (engine and engine.max_context))),
                        (6, _setting("page", settings.get("page_size"))),
                        (3, _mode(settings.get("mode"), settings.get("tree_budget")))):  # fmt: skip
        if words:
            segments.append(_Segment(Content(shown(words, glyphs)), drop=drop))
    return segments


def _right_segments(view: View) -> list[_Segment]:
    glyphs = view.glyphs
    state, tone, age = state_words(view)
    divider = f" {glyphs.divider} "
    segments = [_Segment(Content.styled(state, tone), gap=divider)]
    if age is not None:
        segments.append(_Segment(Content.styled(age, QUIET), drop=2, gap=" "))
    if view.link is not None and view.link.latency_ms is not None and view.link.name == "LIVE":
        segments.append(_Segment(Content.styled(f"link {view.link.latency_ms:.0f} ms", QUIET), drop=7, gap=divider))
    if view.word_left_s is not None:
        segments.append(_Segment(Content.styled(f"confirm {duration(view.word_left_s)}", f"bold {WARN}"), gap=divider))
    words, link_tone = link_words(view)
    segments.append(_Segment(Content.styled(words, f"bold {link_tone}"), gap=divider))
    if view.read_only:
        segments.append(_Segment(Content.styled("read-only", WARN), drop=1, gap=divider))
    return segments


def _setting(name: str, value: object) -> str | None:
    return None if value in (None, "") else f"{name} {value}"


def _mode(mode: object, budget: object) -> str | None:
    if mode in (None, ""):
        return None
    return f"{mode} {budget}" if mode == "ddtree" and budget is not None else str(mode)


def _joined(segments: list[_Segment]) -> Content:
    gaps = (("" if index == 0 else segment.gap, segment.content) for index, segment in enumerate(segments))
    return Content.assemble(*(part for gap, content in gaps for part in ((gap, QUIET), content)))
