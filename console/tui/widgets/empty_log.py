"""Why there is no log: what was asked for, and what to look at."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from textual.content import Content

from console.tui.glyphs import shown
from console.tui.tones import ACCENT, KEY, PLAIN, QUIET, WARN
from console.tui.view import View

if TYPE_CHECKING:
    from console.box.empty_log import EmptyLog


def draw_empty_log(
    view: View, trouble: str | None, found: EmptyLog | None, width: int, *, kept: int, filter_text: str
) -> list[Content]:
    """An empty log explains itself: hidden by the filter, no link, no service, a service that is down, or silence.

    `found` is the box's own reason, where it has been asked.
    """
    if kept:
        return [
            _line(f"None of {kept:,} records passes the filter {shown(filter_text, view.glyphs)!r}.", PLAIN),
            Content.assemble((" / ", KEY), ("changes it; a blank filter shows all.", QUIET)),
        ]
    snapshot = view.snapshot
    service = snapshot.service if snapshot else None
    if trouble is not None:
        return [_line("The journal cannot be read:", WARN), _line(shown(trouble, view.glyphs), PLAIN)]
    if snapshot is None or snapshot.link.name != "LIVE":
        reason = f": {snapshot.link.reason}" if snapshot and snapshot.link.reason else ""
        return [
            _line(f"No record yet, and no link{shown(reason, view.glyphs)}.", WARN),
            Content.assemble((" R ", KEY), ("tries the link at once.", QUIET)),
        ]
    if found is not None:
        mend = re.sub(r"\bHOST\b", view.host, found.mend)
        said = [(found.text, PLAIN), (f"{view.glyphs.arrow} {mend}", ACCENT)]
        return [
            _line(words, tone)
            for text, tone in said
            for words in textwrap.wrap(shown(text, view.glyphs), max(20, width - 2))
        ]
    if service is None or service.state == "not-installed":
        return [
            _line(f"No engine is installed on {shown(view.host, view.glyphs)}, so nothing writes a log.", PLAIN),
            _line(f"ddtree install {shown(view.host, view.glyphs)} puts one there.", QUIET),
        ]
    where = f"{service.unit}, {service.scope} scope"
    if service.state in ("serving", "starting", "restarting"):
        return [
            _line(f"Asked for the journal of {where}; it holds no record.", PLAIN),
            _line("The engine writes a line for each second of decoding: send it a request, or run a playbook.", QUIET),
            _line("If it does serve requests, journald may be dropping lines, or keep none for this user:", QUIET),
            _line(f"ddtree doctor {shown(view.host, view.glyphs)} tells which.", QUIET),
        ]
    return [
        _line(f"Asked for the journal of {where}; it holds no record.", PLAIN),
        Content.assemble(
            (f" The service is {service.state.replace('-', ' ')}. ", WARN), ("2", KEY), (" opens Service.", QUIET)
        ),
    ]


def _line(text: str, tone: str) -> Content:
    return Content.styled(f" {text}", tone)
