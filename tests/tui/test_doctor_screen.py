"""Doctor: findings by group, each with its mend, and what it takes to run one."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from console.box.doctor import Check
from console.errors import OperatorError
from console.tui.glyphs import ASCII, UNICODE
from console.tui.screens.confirm import ConfirmScreen
from console.tui.screens.doctor import DoctorScreen
from console.tui.widgets.checkup import draw_checkup_row, rows_of
from tests.tui.conftest import console_of, lines, opened, settled, text, until
from tests.tui.recorded import CHECKS, RecordedHost


async def open_doctor(pilot: Pilot[None]) -> None:
    """The Doctor screen after its first look."""
    await pilot.press("6")
    await until(pilot, lambda: isinstance(pilot.app.screen, DoctorScreen) and "linger" in text(pilot))


def test_a_group_is_named_once_however_its_findings_are_strewn() -> None:
    rows = rows_of(CHECKS)
    assert [row for row in rows if isinstance(row, str)] == ["link", "service", "journal"]
    service = rows[rows.index("service") + 1 : rows.index("journal")]
    assert [row.name for row in service if isinstance(row, Check)] == ["manager", "linger", "state"]


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_a_finding_keeps_to_its_width_and_names_the_host_in_its_mend(glyphs: object) -> None:
    long = Check("python", "torch", "fail", "word " * 40, "ddtree install HOST --python PATH; not THEHOST")
    drawn = draw_checkup_row(long, 60, glyphs, names=8, host="gpu-01")  # type: ignore[arg-type]
    words = " ".join(line.plain for line in drawn)
    assert all(line.cell_length <= 60 for line in drawn)
    assert words.count("word") == 40
    assert "ddtree install gpu-01 --python" in words
    assert "THEHOST" in words


@pytest.mark.parametrize("size", [(60, 15), (80, 24), (120, 40)])
async def test_opening_it_looks_once_and_shows_what_fails_with_its_mend(
    host: RecordedHost, size: tuple[int, int]
) -> None:
    async with opened(host, size) as pilot:
        await open_doctor(pilot)
        assert "2 pass   2 warn   1 fail" in lines(pilot)[1]
        assert "✗  fail  linger" in text(pilot)  # under the cursor, so on the smallest screen too
        assert "→ loginctl enable-linger ops" in text(pilot)
        await pilot.press("1", "6")
        await settled(pilot)
        assert host.calls == [("examine",)]
        await pilot.press("a")
        await until(pilot, lambda: host.calls == [("examine",), ("examine",)])


async def test_mending_shows_the_commands_first_and_looks_again_afterwards(host: RecordedHost) -> None:
    async with opened(host) as pilot:
        await open_doctor(pilot)
        await pilot.press("f")
        await until(pilot, lambda: isinstance(pilot.app.screen, ConfirmScreen))
        await pilot.pause()
        assert "runs there: loginctl enable-linger ops" in text(pilot)
        assert "runs there: sudo" not in text(pilot)  # asks for a password: for the operator to do
        await pilot.press("enter")  # Cancel has the keyboard
        await settled(pilot)
        assert host.calls == [("examine",)]
        await pilot.press("f")
        await until(pilot, lambda: isinstance(pilot.app.screen, ConfirmScreen))
        await pilot.pause()
        await pilot.press("right", "enter")
        await until(pilot, lambda: "3 pass   2 warn   0 fail" in text(pilot))
        assert host.calls[1:] == [("mend", (("loginctl", "enable-linger", "ops"),)), ("examine",)]


async def test_where_nothing_mends_itself_f_says_so(host: RecordedHost) -> None:
    host.checks = CHECKS[:2]
    async with opened(host) as pilot:
        await pilot.press("6")
        await until(pilot, lambda: "2 pass" in text(pilot))
        await pilot.press("f")
        await settled(pilot)
        assert "nothing here mends itself" in console_of(pilot).session.happenings.items[-1].text
        assert not isinstance(pilot.app.screen, ConfirmScreen)


async def test_a_read_only_console_looks_and_mends_nothing(host: RecordedHost) -> None:
    async with opened(host, read_only=True) as pilot:
        await open_doctor(pilot)
        assert "f mend" not in lines(pilot)[-1]
        await pilot.press("f")
        await until(pilot, lambda: console_of(pilot).session.happenings.unread == 1)
        assert host.calls == [("examine",)]


async def test_a_box_that_cannot_be_looked_at_says_why_and_may_be_asked_again(
    host: RecordedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> tuple[Check, ...]:
        raise OperatorError("no room on the box for the survey", where="gpu-01")

    async with opened(host) as pilot:
        monkeypatch.setattr(host, "examine", broken)
        await pilot.press("6")
        await until(pilot, lambda: "no room on the box for the survey" in text(pilot))
        monkeypatch.undo()
        await pilot.press("a")
        await until(pilot, lambda: "2 pass   2 warn   1 fail" in text(pilot))
