"""Playbooks: the list with its faults, a run from key to verdict, and what leaving and cancelling do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual.pilot import Pilot
from textual.widgets import Button, Input

from console.tui.screens.confirm import ConfirmScreen
from console.tui.screens.parameters import ParametersScreen
from console.tui.screens.pick import PickScreen
from console.tui.screens.playbooks import PlaybooksScreen
from console.tui.screens.service import ServiceScreen
from tests.tui.conftest import console_of, opened, settled, text, until
from tests.tui.recorded import VERDICT, RecordedHost


async def open_playbooks(pilot: Pilot[None]) -> None:
    """The Playbooks screen with its catalogue."""
    await pilot.press("4")
    await until(pilot, lambda: isinstance(pilot.app.screen, PlaybooksScreen) and "Context curve" in text(pilot))


async def run_context_curve(pilot: Pilot[None]) -> None:
    """Its letter, then enter on Run."""
    await pilot.press("c")
    await until(pilot, lambda: isinstance(pilot.app.screen, ParametersScreen))
    await pilot.pause()
    await pilot.press("enter")


@pytest.mark.parametrize("size", [(60, 15), (80, 24), (120, 40)])
async def test_a_broken_playbook_shows_line_column_and_source(host: RecordedHost, size: tuple[int, int]) -> None:
    fault = next(one for one in host.catalogue if not one.valid).faults[0]
    async with opened(host, size) as pilot:
        await open_playbooks(pilot)
        assert f"✗ line {fault.line}, col {fault.column}: " in text(pilot)
        assert fault.source.strip() in text(pilot)


async def test_the_details_put_a_caret_under_the_fault(host: RecordedHost) -> None:
    async with opened(host, (120, 40)) as pilot:
        await open_playbooks(pilot)
        await pilot.press("end")
        await settled(pilot)
        rows = text(pilot).splitlines()
        caret = next(row for row in rows if row.rstrip().endswith("^"))
        source = rows[rows.index(caret) - 1]
        assert source[caret.rindex("^")] == "{"


async def test_a_broken_playbook_cannot_be_run_by_its_letter(host: RecordedHost) -> None:
    async with opened(host) as pilot:
        await open_playbooks(pilot)
        await pilot.press("o")
        await settled(pilot)
        assert isinstance(pilot.app.screen, PlaybooksScreen)
        assert host.calls == []
        assert "cannot run: line" in console_of(pilot).session.happenings.items[-1].text


async def test_from_letter_to_verdict_with_progress_table_and_chart_on_the_way(host: RecordedHost) -> None:
    async with opened(host, (120, 45)) as pilot:
        await open_playbooks(pilot)
        await run_context_curve(pilot)
        await until(pilot, lambda: "4 of 4" in text(pilot))
        assert "100 %" in text(pilot)
        rows = text(pilot).splitlines()
        heads = next(place for place, row in enumerate(rows) if "context  commit" in row)
        assert rows[heads].split("│")[1].split() == ["context", "commit", "step", "rate"]
        assert rows[heads + 1].split("│")[1].split() == ["tokens", "ms", "tok/s"]
        assert rows[heads + 1].index("ms") + 2 == rows[heads].index("step") + 4  # a unit ends where its name ends
        assert "step ms over context tokens" in text(pilot)
        host.gate.set()
        await until(pilot, lambda: "✓ explained" in text(pilot))
        assert "residual" in text(pilot)
        assert "0.95× [0.84, 1.09]" in text(pilot)
        assert "▲ 4 context levels cannot show curvature" in text(pilot)
        assert "next → nothing to mend" in text(pilot)
        assert host.calls == [("run", "context_curve", {"levels": [50, 1000, 3000, 6000]})]


async def test_leaving_the_screen_does_not_stop_the_run(host: RecordedHost) -> None:
    async with opened(host, (120, 45)) as pilot:
        await open_playbooks(pilot)
        await run_context_curve(pilot)
        await until(pilot, lambda: "4 of 4" in text(pilot))
        await pilot.press("1")
        host.gate.set()
        session = console_of(pilot).session
        await until(pilot, lambda: session.run is not None and session.run.over)
        await pilot.press("4")
        await until(pilot, lambda: "✓ explained" in text(pilot))


async def test_p_then_the_letter_runs_from_any_screen(host: RecordedHost) -> None:
    host.gate.set()
    async with opened(host, (120, 45)) as pilot:
        await pilot.press("3", "p")
        await until(pilot, lambda: isinstance(pilot.app.screen, PickScreen) and "Context curve" in text(pilot))
        await run_context_curve(pilot)
        await until(pilot, lambda: "✓ explained" in text(pilot))
        assert isinstance(pilot.app.screen, PlaybooksScreen)


async def test_parameters_are_typed_checked_and_handed_over_as_values(host: RecordedHost) -> None:
    async with opened(host, (120, 45)) as pilot:
        await open_playbooks(pilot)
        await pilot.press("c")
        await until(pilot, lambda: isinstance(pilot.app.screen, ParametersScreen))
        form = pilot.app.screen
        await pilot.pause()
        form.query_one("#form-rows").focus()
        await pilot.press("enter")
        form.query_one(Input).value = "50, 9000"
        await pilot.press("enter")
        await until(pilot, lambda: "9000 is above the max 8000" in text(pilot))
        await pilot.press("enter")
        form.query_one(Input).value = "50, 100"
        await pilot.press("enter")
        await until(pilot, lambda: "takes about 18 s" in text(pilot))
        form.query_one("#parameters-run", Button).press()
        await until(pilot, lambda: host.calls == [("run", "context_curve", {"levels": [50, 100]})])


async def test_a_playbook_that_restarts_the_service_asks_first(host: RecordedHost) -> None:
    async with opened(host, (120, 45)) as pilot:
        await open_playbooks(pilot)
        await pilot.press("g")
        await until(pilot, lambda: isinstance(pilot.app.screen, ParametersScreen))
        await pilot.pause()
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ConfirmScreen))
        assert "Page size A/B restarts the service." in text(pilot)
        await pilot.press("enter")  # Cancel has the keyboard
        await settled(pilot)
        assert host.calls == []


async def test_cancel_asks_then_stops_the_run(host: RecordedHost) -> None:
    async with opened(host, (120, 45)) as pilot:
        await open_playbooks(pilot)
        await run_context_curve(pilot)
        await until(pilot, lambda: "4 of 4" in text(pilot))
        assert "X cancel" in text(pilot)
        await pilot.press("X")
        await until(pilot, lambda: isinstance(pilot.app.screen, ConfirmScreen))
        await pilot.pause()
        await pilot.press("right", "enter")
        await until(pilot, lambda: ("cancel", "rec-1") in host.calls)
        await until(pilot, lambda: "X cancel" not in text(pilot))


async def test_a_second_run_is_refused_while_one_is_in_progress(host: RecordedHost) -> None:
    async with opened(host, (120, 45)) as pilot:
        await open_playbooks(pilot)
        await run_context_curve(pilot)
        await until(pilot, lambda: "4 of 4" in text(pilot))
        await pilot.press("escape")
        await run_context_curve(pilot)
        session = console_of(pilot).session
        await until(pilot, lambda: session.happenings.unread == 1)
        assert "Context curve is still running" in session.happenings.items[-1].text
        assert len(host.calls) == 1


async def test_a_silent_script_is_told(host: RecordedHost) -> None:
    async with opened(host, (120, 45)) as pilot:
        await open_playbooks(pilot)
        await run_context_curve(pilot)
        await until(pilot, lambda: "4 of 4" in text(pilot))
        session = console_of(pilot).session
        assert session.run is not None
        later = session.run.heard_s + 40
        session.clock = lambda: later
        await settled(pilot)
        assert "no sign of life for 40 s" in text(pilot)


async def test_a_read_only_console_runs_nothing(host: RecordedHost) -> None:
    async with opened(host, (120, 45), read_only=True) as pilot:
        await open_playbooks(pilot)
        await pilot.press("c")
        session = console_of(pilot).session
        await until(pilot, lambda: session.happenings.unread == 1)
        assert "read-only" in session.happenings.items[-1].text
        assert isinstance(pilot.app.screen, PlaybooksScreen)  # no form that leads nowhere
        assert "enter run" not in text(pilot)
        assert host.calls == []


@pytest.mark.parametrize(("letter", "starts"), [("z", False), ("p", False), ("e", False), ("a", True), ("c", True)])
async def test_a_letter_that_means_something_everywhere_keeps_its_meaning(
    host: RecordedHost, letter: str, starts: bool
) -> None:
    host.catalogue = (replace(host.catalogue[0], key=letter),)
    async with opened(host, (120, 45)) as pilot:
        await open_playbooks(pilot)
        await pilot.press(letter)
        await settled(pilot)
        assert isinstance(pilot.app.screen, ParametersScreen) is starts


@pytest.mark.parametrize("letter", ["z", "p", "e"])
async def test_after_p_every_letter_picks(host: RecordedHost, letter: str) -> None:
    host.catalogue = (replace(host.catalogue[0], key=letter),)
    async with opened(host, (120, 45)) as pilot:
        await pilot.press("p")
        await until(pilot, lambda: isinstance(pilot.app.screen, PickScreen))
        await pilot.press(letter)
        await until(pilot, lambda: isinstance(pilot.app.screen, ParametersScreen))


async def test_a_takes_what_the_verdict_proposes_to_the_form_and_applies_nothing(host: RecordedHost) -> None:
    host.events = [*host.events[:-1], {**host.events[-1], "verdict": {**VERDICT, "changes": {"tree_budget": 8}}}]
    host.gate.set()
    async with opened(host, (160, 45)) as pilot:
        await open_playbooks(pilot)
        await run_context_curve(pilot)
        await until(pilot, lambda: "a apply" in text(pilot))
        await pilot.press("a")
        await until(pilot, lambda: isinstance(pilot.app.screen, ServiceScreen) and "tree_budget  16 → 8" in text(pilot))
        assert host.calls == [("run", "context_curve", {"levels": [50, 1000, 3000, 6000]})]
