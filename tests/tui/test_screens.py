"""All screens: what must be visible at every size, the keys that work everywhere, and how little is painted."""

from __future__ import annotations

import time

import pytest
from textual.pilot import Pilot

from console.box.values import LinkState
from console.tui.screens.help import HelpScreen, help_page
from tests.tui.conftest import console_of, lines, opened, settled, text, until
from tests.tui.recorded import ALARM, RecordedHost, record, snapshot

SCREENS = (
    ("0", "hosts"),
    ("1", "overview"),
    ("2", "service"),
    ("3", "log"),
    ("4", "playbooks"),
    ("5", "runs"),
    ("6", "doctor"),
)
SIZES = [(60, 15), (80, 24), (120, 40), (200, 50)]


async def go(pilot: Pilot[None], key: str, which: str) -> None:
    """To another screen."""
    await pilot.press(key)
    await until(pilot, lambda: getattr(pilot.app.screen, "which", None) == which)
    await settled(pilot)


@pytest.mark.parametrize("size", SIZES)
async def test_help_key_host_tag_and_link_state_are_visible_on_every_screen(
    host: RecordedHost, size: tuple[int, int]
) -> None:
    async with opened(host, size) as pilot:
        for key, which in SCREENS:
            await go(pilot, key, which)
            rows = lines(pilot)
            assert "gpu-01 [LAB]" in rows[0], which
            assert "serving" in rows[0], which
            assert "LIVE" in rows[0], which
            assert rows[-1].startswith(" ? help"), which
            assert all(len(row) == size[0] for row in rows)


@pytest.mark.parametrize("size", SIZES)
async def test_the_overview_has_its_figures_at_every_size(host: RecordedHost, size: tuple[int, int]) -> None:
    async with opened(host, size) as pilot:
        for word in ("tok/s", "commit", "step", "stages", "KV pages", "tree", "journal", "decode seq="):
            assert word in text(pilot), word


async def test_below_the_least_size_one_plain_sentence_takes_the_place_of_everything(host: RecordedHost) -> None:
    async with opened(host, (59, 14)) as pilot:
        assert text(pilot).split() == [
            "The",
            "console",
            "needs",
            "60",
            "columns",
            "and",
            "15",
            "rows.",
            "ctrl+q",
            "quits.",
        ]
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: "tok/s" in text(pilot))
        await pilot.resize_terminal(30, 8)
        await until(pilot, lambda: "The console needs" in text(pilot))


async def test_stale_figures_are_dimmed_and_worded_and_the_reason_stays(host: RecordedHost) -> None:
    now = time.monotonic()
    gone = snapshot(now, link=LinkState("LOST", now - 40, reason="Server not responding"), data_s=now - 42)
    async with opened(host, (80, 24), first=gone) as pilot:
        console_of(pilot).session.clock = lambda: now
        await settled(pilot)
        assert "LOST stale 42 s" in lines(pilot)[0]
        assert "Server not responding" in text(pilot)
        assert pilot.app.screen.has_class("-stale")
        await pilot.press("R")
        assert ("reconnect",) in host.calls


async def test_without_colour_states_are_told_apart_by_word(
    host: RecordedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    now = time.monotonic()
    async with opened(host, (120, 40), first=snapshot(now, alarms=(ALARM,))) as pilot:
        assert pilot.app.no_color
        live = text(pilot)
        host.push(snapshot(now, link=LinkState("DEGRADED", now), data_s=now - 30))
        await until(pilot, lambda: "DEGRADED stale" in text(pilot))
        assert "▲ ALARM" in live
        assert "LIVE" in live


async def test_ascii_mode_shows_nothing_but_ascii_on_any_screen(host: RecordedHost) -> None:
    async with opened(host, (120, 40), ascii_only=True) as pilot:
        host.log([record("naïve ⣿ line", 0)])
        for key, which in SCREENS:
            await go(pilot, key, which)
            for row in lines(pilot):
                assert row.isascii(), (which, row)


async def test_help_names_every_key_of_the_screen_it_was_asked_on(host: RecordedHost) -> None:
    async with opened(host, (120, 50)) as pilot:
        await go(pilot, "3", "log")
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(pilot.app.screen, HelpScreen) and "ctrl+q" in text(pilot))
        for words in ("pause/follow", "filter", "next mark", "ctrl+p", "palette"):
            assert words in text(pilot), words
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, HelpScreen))


def test_help_lists_the_verbs_of_the_command_line_and_keeps_to_its_width() -> None:
    lines = [line.plain for line in help_page("overview", 60)]
    assert any(line.startswith(" ddtree restart ") for line in lines)
    assert all(len(line) <= 60 for line in lines)


async def test_zoom_fills_the_screen_with_one_pane_and_gives_the_others_back(host: RecordedHost) -> None:
    async with opened(host, (80, 24)) as pilot:
        pilot.app.screen.query_one("#tree").focus()
        await pilot.press("z")
        await settled(pilot)
        assert "└─ ○ old .09" in text(pilot)  # hidden below the edge before
        assert "KV pages" not in text(pilot)
        assert "gpu-01 [LAB]" in lines(pilot)[0]
        assert "? help" in lines(pilot)[-1]
        await pilot.press("z")
        await settled(pilot)
        assert "KV pages" in text(pilot)


async def test_failures_stay_unread_until_the_events_are_opened(host: RecordedHost) -> None:
    async with opened(host, (120, 40)) as pilot:
        console_of(pilot).session.note("failure", "the engine went away")
        await settled(pilot)
        assert "events 1 unread" in lines(pilot)[-1]
        await pilot.press("e")
        await until(pilot, lambda: "the engine went away" in text(pilot))
        await pilot.press("escape")
        await settled(pilot)
        assert "unread" not in lines(pilot)[-1]


async def test_alarms_come_into_the_events_once(host: RecordedHost) -> None:
    async with opened(host) as pilot:
        now = time.monotonic()
        for _ in range(3):
            host.push(snapshot(now, alarms=(ALARM,)))
        session = console_of(pilot).session
        await until(pilot, lambda: host.snapshot_queue.empty() and session.happenings.items)
        await settled(pilot)
        assert [item.text for item in session.happenings.items] == [ALARM.sentence]


async def test_the_palette_offers_every_verb_that_works_here(host: RecordedHost) -> None:
    async with opened(host, (120, 40)) as pilot:
        titles = {command.title for command in pilot.app.get_system_commands(pilot.app.screen)}
        assert {"Start the engine", "Stop the engine", "Log: filter", "Service: apply", "Run", "Reconnect"} <= titles
        assert not {"Keys", "Maximize"} & titles  # ? and z are ours


async def test_nothing_is_painted_when_nothing_changed(host: RecordedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(host, (120, 40)) as pilot:
        shown = console_of(pilot).session.snapshot
        console_of(pilot).session.clock = lambda: 1000.0  # or the ages tick on
        console_of(pilot).session.wall_clock = lambda: 2_000_000_000.0
        await settled(pilot)
        painted: list[object] = []
        monkeypatch.setattr(type(pilot.app.screen), "_compositor_refresh", lambda self: painted.append(self))
        for _ in range(5):
            assert shown is not None
            host.push(shown)
            await settled(pilot)
        await until(pilot, host.snapshot_queue.empty)
        assert not any(widget.is_attached and widget._repaint_required for widget in pilot.app.screen.query("Pane"))
        assert painted == []


async def test_a_hundred_snapshots_at_once_are_one_picture(host: RecordedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(host, (120, 40)) as pilot:
        drawn: list[float] = []
        screen = type(pilot.app.screen)
        original = screen.refresh_view
        monkeypatch.setattr(screen, "refresh_view", lambda self: (drawn.append(time.monotonic()), original(self)))
        now = time.monotonic()
        for running in range(100):
            host.push(snapshot(now, windows=5, running=running))
        await until(pilot, lambda: "running 99" in text(pilot))
        assert len(drawn) <= 1 + 10 * (time.monotonic() - now)
