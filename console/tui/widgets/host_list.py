"""One row a host: how it stands, its figures, and its alarms; a host that does not answer says why."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content

from console.fleet import Glance
from console.tui.glyphs import Glyphs, shown
from console.tui.tones import BAD, COMMIT, GOOD, KEY, PLAIN, QUIET, RATE, STEP, WARN, Piece
from console.tui.view import View
from console.tui.widgets.figures import figures_of
from console.tui.widgets.run_list import clipped
from console.tui.widgets.top_line import STATE_TONES, host_tone
from console.tui.words import count_of, duration, figure

LONGEST_NAME = 28
_STATE_WIDTH = 13
_HEADS = f"{'state':<{_STATE_WIDTH}}  {'tok/s':>7}  {'commit':>6}  {'step ms':>8}  {'context':>9}  "


@dataclass(frozen=True)
class HostLine:
    """A host as the list shows it. `visited`: its console is open, so that its figures are live."""

    glance: Glance
    view: View
    visited: bool = False


def names_width(lines: Sequence[HostLine]) -> int:
    """Columns of the names with their tags."""
    return min(LONGEST_NAME, max((len(_name(line)) for line in lines), default=4))


def draw_host_heads(names: int, width: int) -> Content:
    """The heads of the columns."""
    return Content.styled(f"     {'host':<{names}}  {_HEADS}alarms", QUIET)


def draw_host_row(line: HostLine, names: int, width: int, glyphs: Glyphs, *, here: bool = False) -> list[Content]:
    """A host in columns; one that does not answer has the reason in their place, all of it under the cursor."""
    glance, view = line.glance, line.view
    snapshot = view.snapshot
    tag = snapshot.tag if snapshot else None
    mark, tone = _mark(line, glyphs)
    head: list[Piece] = [
        (f" {glyphs.pointer if here else ' '} ", KEY),
        (f"{mark} ", tone),
        (
            f"{clipped(shown(_name(line), glyphs), names, glyphs)}  ",
            host_tone(glance.name, tag, snapshot.colour if snapshot else None),
        ),
    ]
    if glance.standing == "listed":
        return [Content.assemble(*head, ("not watched: enter connects to it", QUIET))]
    if glance.standing == "connecting":
        return [Content.assemble(*head, (f"connecting for {duration(view.now_s - glance.since_s)}", WARN))]
    if glance.standing == "down":
        age = duration(view.now_s - glance.since_s)
        reason = shown((glance.trouble or "").removeprefix(f"{glance.name} "), glyphs)
        start = Content.assemble(*head, (f"no answer for {age}  ", BAD))
        if not here:
            return [Content.assemble(start, (reason, PLAIN))]
        first, *rest = textwrap.wrap(reason, max(16, width - start.cell_length - 1)) or [""]
        indent = " " * start.cell_length
        return [Content.assemble(start, (first, PLAIN)), *(Content.styled(indent + words, PLAIN) for words in rest)]
    return [Content.assemble(*head, *_figures(view, glyphs))]


def _figures(view: View, glyphs: Glyphs) -> list[Piece]:
    snapshot = view.snapshot
    service = snapshot.service if snapshot else None
    state = service.state if service else "unknown"
    figures = figures_of(view)
    now = figures.now if snapshot and snapshot.engine else None
    pieces: list[Piece] = [
        (f"{state.replace('-', ' '):<{_STATE_WIDTH}}  ", STATE_TONES[state]),
        (f"{figure(now.tok_s if now else None):>7}  ", RATE),
        (f"{figure(now.commit_length if now else None, 2):>6}  ", COMMIT),
        (f"{figure(now.step_ms if now else None):>8}  ", STEP),
        (f"{figure(figures.context if now else None, 0):>9}  ", PLAIN),
    ]
    alarms = snapshot.alarms if snapshot else ()
    if view.stale_s is not None:
        pieces.append((f"stale {duration(view.stale_s)}  ", f"bold {WARN}"))
    elif figures.idle_s is not None and now is not None:
        pieces.append((f"idle {duration(figures.idle_s)}  ", QUIET))
    if alarms:
        more = f" and {count_of(len(alarms) - 1, 'more alarm')}" if len(alarms) > 1 else ""
        pieces.append((f"{glyphs.warn} {shown(alarms[0].sentence, glyphs)}{more}", WARN))
    return pieces


def _mark(line: HostLine, glyphs: Glyphs) -> tuple[str, str]:
    standing = line.glance.standing
    if standing == "up":
        return glyphs.dot, GOOD
    return (glyphs.no, BAD) if standing == "down" else (glyphs.ring, QUIET)


def _name(line: HostLine) -> str:
    tag = line.view.snapshot.tag if line.view.snapshot else None
    return f"{line.glance.name} [{tag}]" if tag else line.glance.name
