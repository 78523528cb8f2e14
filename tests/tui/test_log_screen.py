"""Log: follow and pause, filter and search, and an empty log that explains itself."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from console.box.values import LinkState, ServiceState
from console.tui.widgets.log_view import LogView
from tests.tui.conftest import console_of, lines, opened, settled, text, until
from tests.tui.recorded import RecordedHost, record, snapshot


def numbered(start: int, count: int, word: str = "line") -> list:
    """Records `line 0`, `line 1`, …"""
    return [record(f"{word} {i}", i) for i in range(start, start + count)]


async def open_log(pilot: Pilot[None], host: RecordedHost, count: int = 200) -> LogView:
    """The Log screen with `count` records in it."""
    host.log(numbered(0, count))
    await pilot.press("3")
    await until(pilot, lambda: pilot.app.screen.query("#log-view") and f"line {count - 1}" in text(pilot))
    return pilot.app.screen.query_one("#log-view", LogView)


async def arrived(pilot: Pilot[None], count: int) -> None:
    """Wait for so many records in all, and for their picture."""
    await until(pilot, lambda: console_of(pilot).session.log.received == count)
    await settled(pilot)


async def type_line(pilot: Pilot[None], key: str, words: str) -> None:
    """Open the line with `key`, type, and press enter."""
    await pilot.press(key)
    pilot.app.screen.query_one("#log-input", Input).value = words
    await pilot.press("enter")
    await settled(pilot)


def under_cursor(pilot: Pilot[None]) -> tuple[int, str]:
    """The row with the cursor and its text."""
    # The last column is the scroll bar's.
    return next((row, line[:-1].rstrip()) for row, line in enumerate(lines(pilot)) if line.startswith("▸"))


async def test_a_paused_line_does_not_move_while_ten_thousand_arrive(host: RecordedHost) -> None:
    async with opened(host, (80, 24)) as pilot:
        await open_log(pilot, host)
        await pilot.press("up", "up", "up")
        await settled(pilot)
        before, shown = under_cursor(pilot), lines(pilot)[2:-1]
        for start in range(200, 10_200, 500):
            host.log(numbered(start, 500))
        await arrived(pilot, 10_200)
        assert under_cursor(pilot) == before
        assert lines(pilot)[2:-1] == shown
        assert "paused  10,000 new   10,200 records   space follows" in text(pilot)
        await pilot.press("space")
        await settled(pilot)
        assert "following" in text(pilot)
        assert "line 10199" in lines(pilot)[-2]


async def test_pausing_holds_while_the_ring_overflows_until_the_line_itself_is_gone(host: RecordedHost) -> None:
    async with opened(host, (80, 24)) as pilot:
        console_of(pilot).session.log.limit = 300
        await open_log(pilot, host)
        await pilot.press("up")
        await settled(pilot)
        before = under_cursor(pilot)
        host.log(numbered(200, 280))  # the ring drops the first 180: the held line is number 198
        await arrived(pilot, 480)
        assert under_cursor(pilot) == before
        host.log(numbered(480, 300))
        await arrived(pilot, 780)
        assert "the line held has left the ring" in text(pilot)


async def test_a_filter_set_while_paused_keeps_the_place_and_counts_what_passes(host: RecordedHost) -> None:
    async with opened(host, (120, 40)) as pilot:
        await open_log(pilot, host)
        await pilot.press("up", "up")
        await type_line(pilot, "slash", "5$")
        assert "20 of 200 records" in text(pilot)
        assert all(re.search(r"line \d*5$", row[:-1].rstrip()) for row in lines(pilot)[2:22])
        host.log(numbered(200, 5000))
        await arrived(pilot, 5200)
        assert "500 new" in text(pilot)
        await type_line(pilot, "slash", "!5$")
        assert "4,680 of 5,200 records" in text(pilot)
        await type_line(pilot, "slash", "")
        assert " 5,200 records" in text(pilot)


async def test_a_wrong_pattern_is_said_and_the_old_filter_stays(host: RecordedHost) -> None:
    async with opened(host, (80, 24)) as pilot:
        await open_log(pilot, host)
        await type_line(pilot, "slash", "li(")
        assert "pattern 'li(': missing )" in text(pilot)
        await pilot.press("escape")
        assert console_of(pilot).session.log.filter.text == ""


async def test_search_goes_from_match_to_match(host: RecordedHost) -> None:
    async with opened(host, (80, 24)) as pilot:
        await open_log(pilot, host)
        await type_line(pilot, "f", "line 5$")
        assert under_cursor(pilot)[1].endswith("line 5")
        await type_line(pilot, "f", "line .*7$")
        assert under_cursor(pilot)[1].endswith("line 7")
        await pilot.press("n")
        assert under_cursor(pilot)[1].endswith("line 17")
        await pilot.press("N", "N")
        assert under_cursor(pilot)[1].endswith("line 197")


async def test_the_level_key_leaves_the_graver_records(host: RecordedHost) -> None:
    async with opened(host, (80, 24)) as pilot:
        await open_log(pilot, host, 20)
        host.log([record("something failed", 20, priority=3)])
        await arrived(pilot, 21)
        await pilot.press("l", "l", "l", "l")
        await settled(pilot)
        assert "error and graver" in text(pilot)
        assert "1 of 21 records" in text(pilot)
        assert "E something failed" in text(pilot)


async def test_control_characters_reach_the_screen_as_text(host: RecordedHost) -> None:
    async with opened(host, (80, 24)) as pilot:
        host.log([record("\x1b]0;owned\x07\x1b[31mred \u202egnp.exe", 0)])
        await pilot.press("3")
        await until(pilot, lambda: "owned" in text(pilot))
        assert "␛]0;owned␇␛[31mred <U+202E>gnp.exe" in text(pilot)
        assert "\x1b" not in text(pilot)


async def test_marks_are_kept_and_exported_with_cursors(
    host: RecordedHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with opened(host, (120, 40)) as pilot:
        await open_log(pilot, host, 30)
        await pilot.press("up", "m", "up", "up", "apostrophe", "x")
        assert under_cursor(pilot)[1].endswith("line 28")
        (path,) = (tmp_path / "ddtree" / "logs").iterdir()
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert [row["message"] for row in rows] == [f"line {i}" for i in range(30)]
        assert [row["message"] for row in rows if row["marked"]] == ["line 28"]
        assert rows[0]["cursor"] == "s=rec;i=0"
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"service": ServiceState("stopped", "ddtree-engine.service", "user")}, "The service is stopped"),
        ({"service": None}, "No engine is installed on gpu-01"),
        ({"link": LinkState("LOST", 0.0, reason="no answer")}, "no link: no answer"),
        ({}, "journald may be dropping lines"),
    ],
)
async def test_an_empty_log_explains_itself(
    host: RecordedHost, changes: dict[str, object], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.tui.screens.log.EMPTY_FOR_S", 60.0)  # before the box is asked
    async with opened(host, (120, 40), first=snapshot(time.monotonic(), **changes)) as pilot:
        await pilot.press("3")
        await until(pilot, lambda: reason in text(pilot))


async def test_a_filter_that_hides_everything_is_named(host: RecordedHost) -> None:
    async with opened(host, (80, 24)) as pilot:
        await open_log(pilot, host)
        await type_line(pilot, "slash", "no such line")
        assert "None of 200 records passes the filter 'no such line'" in text(pilot)


async def test_the_time_key_goes_to_a_time_of_day(host: RecordedHost) -> None:
    async with opened(host, (80, 24)) as pilot:
        host.log([record(f"line {i}", i, 1_790_000_000 + 60 * i) for i in range(60)])
        await pilot.press("3")
        await until(pilot, lambda: "line 59" in text(pilot))
        wanted = lines(pilot)[-5][1:9]  # hh:mm:ss of a line on screen
        name = lines(pilot)[-5][:-1].split()[-1]
        await pilot.press("home")
        await type_line(pilot, "t", wanted)
        assert under_cursor(pilot)[1].endswith(f"line {name}")
        await type_line(pilot, "t", "noon")
        assert "no time of day" in text(pilot)


async def test_a_log_that_stays_empty_is_explained_by_the_box_itself(
    host: RecordedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.tui.screens.log.EMPTY_FOR_S", 0.01)
    async with opened(host, (80, 24)) as pilot:
        await pilot.press("3")
        await until(pilot, lambda: "ops is in no group that may read the journal" in text(pilot))
        assert "on gpu-01: sudo usermod -aG systemd-journal ops" in text(pilot)
        await pilot.press("1", "3")
        await settled(pilot)
        assert host.calls == [("why_empty",)]
        host.log([record("here it is", 0)])
        await until(pilot, lambda: "here it is" in text(pilot))
