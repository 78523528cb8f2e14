"""Overview: rate, commit length and step time live; where the milliseconds go; the pool; the tree; the box."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from console.tui.keys import OVERVIEW, bindings
from console.tui.screens.screen import ConsoleScreen
from console.tui.widgets.draft_tree import draw_tree
from console.tui.widgets.figures import draw_figures
from console.tui.widgets.histogram import draw_commits
from console.tui.widgets.machine import draw_gpus, draw_machine
from console.tui.widgets.notices import draw_alarms, draw_journal
from console.tui.widgets.pane import Pane
from console.tui.widgets.pool import draw_pool
from console.tui.widgets.stages import draw_stages
from console.tui.widgets.timeline import draw_timeline


class OverviewScreen(ConsoleScreen):
    """Every pane is a pure function of the Snapshot; the style sheet says where each stands at which size."""

    which = "overview"
    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(OVERVIEW)]

    def body(self) -> Iterable[Widget]:
        """Wide: charts and tree on the left, stages, pool and box on the right. Else all of it below each other."""
        yield Pane(draw_alarms, id="alarms")
        yield Pane(draw_figures, id="figures", classes="figures")
        with Horizontal(id="decoding"):
            yield Pane(draw_timeline, id="timeline", classes="figures zoomable", tall=True, zoomable=True)
            with Vertical(id="steps"):
                yield Pane(draw_stages, id="stages", classes="figures zoomable", tall=True, zoomable=True)
                yield Pane(draw_commits, id="commits", classes="figures zoomable", tall=True, zoomable=True)
                yield Pane(draw_pool, id="pool", classes="figures")
        with Horizontal(id="below"):
            yield Pane(draw_tree, id="tree", classes="figures zoomable", tall=True, zoomable=True)
            with Vertical(id="box"):
                yield Pane(draw_gpus, id="gpus", classes="figures zoomable", zoomable=True)
                yield Pane(draw_machine, id="machine", classes="figures")
        yield Pane(draw_journal, id="journal", classes="figures zoomable", tall=True, zoomable=True)

    def pane_to_zoom(self) -> Widget:
        """The focused pane, else the charts."""
        return self.focused or self.query_one("#timeline")

    async def action_open(self) -> None:
        """The journal's own place is Log."""
        await self.run_action("app.go('log')")
