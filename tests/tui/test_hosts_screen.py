"""Hosts: a row each, the dead beside the living, and drilling in."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from textual.pilot import Pilot

from console.box.errors import LinkError
from console.fleet import Fleet, Glance
from console.hosts_file import COLOURS
from console.tui.glyphs import ASCII, UNICODE, Glyphs
from console.tui.screens.hosts import HostsScreen
from console.tui.screens.overview import OverviewScreen
from console.tui.theme import TONES
from console.tui.view import View
from console.tui.widgets.host_list import HostLine, draw_host_row
from console.tui.widgets.top_line import draw_top_line, host_tone
from tests.tui.conftest import console_of, lines, opened, settled, text, until
from tests.tui.recorded import ALARM, RecordedHost, snapshot


class Others:
    """Hosts beside the one in front: gpu-02 answers, gpu-03 refuses, gpu-04 neither answers nor refuses."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.good = RecordedHost("gpu-02")
        self.closed: list[str] = []

    async def open_host(self, name: str) -> RecordedHost:
        """Connect, or not."""
        self.asked.append(name)
        if name == "gpu-03":
            raise LinkError("connection refused", where="10.0.0.3:22", mend="is sshd running there?")
        if name == "gpu-04":
            await asyncio.Event().wait()
        return self.good if name == "gpu-02" else RecordedHost(name)

    def fleet(self) -> Fleet:
        """All of them, and one that is only listed."""
        return Fleet(("gpu-02", "gpu-03", "gpu-04"), ("old-box",), self.open_host)


async def open_hosts(pilot: Pilot[None]) -> None:
    """The Hosts screen."""
    await pilot.press("0")
    await until(pilot, lambda: isinstance(pilot.app.screen, HostsScreen) and "old-box" in text(pilot))


async def move_to(pilot: Pilot[None], name: str) -> None:
    """Put the cursor on a host."""
    await pilot.press("home")
    for _ in range(10):
        await settled(pilot)
        if any(row.startswith(" ▸") and name in row for row in lines(pilot)):
            return
        await pilot.press("down")
    raise AssertionError(text(pilot))


@pytest.mark.parametrize("size", [(60, 15), (80, 24), (120, 40)])
async def test_a_dead_host_blocks_no_other_and_says_why(host: RecordedHost, size: tuple[int, int]) -> None:
    others = Others()
    async with opened(host, size, fleet=others.fleet()) as pilot:
        assert others.asked == []  # nobody is connected to before the screen is looked at
        await open_hosts(pilot)
        await until(pilot, lambda: "connection refused" in text(pilot) or size[0] == 60)
        await until(pilot, lambda: any("gpu-02 [LAB]" in row and "serving" in row for row in lines(pilot)))
        rows = {name: row for row in lines(pilot) for name in ("gpu-03", "gpu-04", "old-box") if f" {name} " in row}
        assert "✗ gpu-03" in rows["gpu-03"] and "no answer for" in rows["gpu-03"]
        assert "connecting for" in rows["gpu-04"]
        assert "not watched" in rows["old-box"]
        assert sorted(others.asked) == ["gpu-02", "gpu-03", "gpu-04"]


async def test_rows_have_the_figures_of_their_hosts_and_the_one_in_front_is_live(host: RecordedHost) -> None:
    async with opened(host, (120, 40), fleet=Others().fleet()) as pilot:
        await open_hosts(pilot)
        now = time.monotonic()
        host.push(snapshot(now, wall_s=time.time(), alarms=(ALARM,)))
        await until(pilot, lambda: any(row.startswith(" ▸ ● gpu-01 [LAB]") and "▲" in row for row in lines(pilot)))
        row = next(row for row in lines(pilot) if "gpu-01 [LAB]" in row and "▲" in row)
        newest = snapshot(now, wall_s=time.time()).samples[-5:]
        tokens, steps = sum(one.tokens or 0 for one in newest), sum(one.steps or 0 for one in newest)
        assert f" {tokens / steps:.2f} " in row
        assert ALARM.sentence[:20] in row


async def test_enter_drills_in_and_the_host_left_is_still_followed(host: RecordedHost) -> None:
    others = Others()
    async with opened(host, (120, 40), fleet=others.fleet()) as pilot:
        await open_hosts(pilot)
        await move_to(pilot, "gpu-02")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, OverviewScreen) and "gpu-02" in lines(pilot)[0])
        others.good.push(snapshot(time.monotonic(), wall_s=time.time(), tag="B"))
        await until(pilot, lambda: "gpu-02 [B]" in lines(pilot)[0] and "tok/s" in text(pilot))
        console = console_of(pilot)
        first = console.sessions["gpu-01"]
        host.push(snapshot(time.monotonic(), running=7))
        await until(pilot, lambda: first.snapshot is not None and first.snapshot.running == 7)
        assert others.asked.count("gpu-02") == 1  # one connection serves the glance and the console
        await open_hosts(pilot)
        await move_to(pilot, "gpu-01")
        await pilot.press("enter")
        await until(pilot, lambda: "gpu-01" in lines(pilot)[0] and "running 7" in text(pilot))


async def test_a_change_on_one_host_is_asked_of_that_host_alone(host: RecordedHost) -> None:
    others = Others()
    async with opened(host, (120, 40), fleet=others.fleet()) as pilot:
        await open_hosts(pilot)
        await move_to(pilot, "gpu-02")
        await pilot.press("enter")
        await until(pilot, lambda: "gpu-02" in lines(pilot)[0])
        others.good.push(snapshot(time.monotonic(), wall_s=time.time()))
        await pilot.press("2", "s")
        await until(pilot, lambda: others.good.calls == [("service", "start")])
        assert host.calls == []


async def test_a_host_that_cannot_be_connected_to_leaves_an_event_and_the_screen(host: RecordedHost) -> None:
    async with opened(host, (120, 40), fleet=Others().fleet()) as pilot:
        await open_hosts(pilot)
        await move_to(pilot, "gpu-03")
        await pilot.press("enter")
        session = console_of(pilot).session
        await until(pilot, lambda: session.happenings.unread == 1)
        assert "is sshd running there?" in session.happenings.items[-1].text
        assert isinstance(pilot.app.screen, HostsScreen)


async def test_trouble_on_a_host_that_is_not_in_front_is_told_with_its_name(
    host: RecordedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(host, (120, 40), fleet=Others().fleet()) as pilot:
        await open_hosts(pilot)
        await move_to(pilot, "gpu-02")
        await pilot.press("enter")
        await until(pilot, lambda: "gpu-02" in lines(pilot)[0])
        told: list[str] = []
        monkeypatch.setattr(pilot.app, "notify", lambda words, **_: told.append(words))
        console_of(pilot).sessions["gpu-01"].note("failure", "the engine went away")
        console_of(pilot).sessions["gpu-01"].note("info", "of no concern here")
        await until(pilot, lambda: told)
        await settled(pilot)
        assert told == ["gpu-01: the engine went away"]


async def test_a_read_only_host_stays_so_in_a_console_that_is_not(host: RecordedHost) -> None:
    others = Others()
    others.good.read_only = True
    async with opened(host, (120, 40), fleet=others.fleet()) as pilot:
        await open_hosts(pilot)
        await move_to(pilot, "gpu-02")
        await pilot.press("enter")
        await until(pilot, lambda: "gpu-02" in lines(pilot)[0] and "read-only" in lines(pilot)[0])
        assert "read-only" not in " ".join(line.plain for line in draw_host_row(console_of(pilot).host_lines()[0], 10, 100, UNICODE))  # fmt: skip


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_columns_stand_below_each_other_whatever_a_host_has_to_say(glyphs: Glyphs) -> None:
    up = View("a", 10.0, 1_790_000_000.0, snapshot(10.0), glyphs)
    idle = replace(up, host="b", snapshot=snapshot(10.0, engine=None, samples=(), tag=None))
    rows = [
        draw_host_row(HostLine(Glance(v.host, "up", 0.0, v.snapshot), v), 12, 100, glyphs)[0].plain for v in (up, idle)
    ]
    assert rows[0].index("serving") == rows[1].index("serving")
    assert rows[1].split()[3:7] == ["-", "-", "-", "-"]  # no engine answers: no figure
    assert glyphs is UNICODE or all(row.isascii() for row in rows)


def test_under_the_cursor_the_whole_reason_is_read() -> None:
    reason = "gpu-03 (10.0.0.3:22): connection refused; does sshd run there, on that port?"
    line = HostLine(Glance("gpu-03", "down", 0.0, None, reason), View("gpu-03", 42.0, 0.0))
    (short,) = draw_host_row(line, 10, 60, UNICODE)
    assert "no answer for 42 s  (10.0.0.3:22): connection" in short.plain  # cut by the list, its own name left out
    whole = draw_host_row(line, 10, 60, UNICODE, here=True)
    assert all(one.cell_length <= 60 for one in whole)
    assert " ".join(" ".join(one.plain for one in whole).split()).endswith("does sshd run there, on that port?")


async def test_the_fleet_looks_again_and_keeps_what_it_saw_last() -> None:
    others = Others()
    fleet = others.fleet()
    await _watched_until(fleet, "up")
    seen = fleet.glances["gpu-02"].snapshot

    async def lost() -> object:
        raise LinkError("the link is LOST", where="gpu-02")

    others.good.snapshot = lost  # type: ignore[method-assign,assignment]
    await _watched_until(fleet, "down")
    assert fleet.glances["gpu-02"].snapshot is seen
    assert "LOST" in str(fleet.glances["gpu-02"].trouble)
    assert others.asked == ["gpu-02"]


async def _watched_until(fleet: Fleet, standing: str) -> None:
    """Let the fleet watch gpu-02 until it stands so."""
    stands = asyncio.Event()
    fleet.changed = lambda: stands.set() if fleet.glances["gpu-02"].standing == standing else None
    watching = asyncio.create_task(fleet.watch("gpu-02"))
    async with asyncio.timeout(10):
        await stands.wait()
    watching.cancel()
    await asyncio.wait([watching])


@pytest.mark.parametrize(
    ("tag", "colour", "tone"),
    [
        ("LAB", "cyan", "bold $named-cyan"),
        ("LAB", "#12ab9f", "bold #12ab9f"),
        ("PROD", "cyan", "bold $host-production"),
        ("prod-2", None, "bold $host-production"),
    ],
)
def test_a_host_has_the_colour_of_hosts_toml_and_production_is_always_red(
    tag: str, colour: str | None, tone: str
) -> None:
    assert host_tone("gpu-01", tag, colour) == tone
    shown = snapshot(10.0, tag=tag, colour=colour)
    view = View("gpu-01", 10.0, 1_790_000_000.0, shown)
    styles = {str(span.style) for span in draw_top_line(view, 100, 1)[0].spans}
    styles |= {
        str(span.style)
        for span in draw_host_row(HostLine(Glance("gpu-01", "up", 0.0, shown), view), 12, 100, UNICODE)[0].spans
    }
    assert tone in styles


def test_every_colour_that_hosts_toml_may_name_is_one_of_the_theme() -> None:
    assert {f"named-{colour}" for colour in COLOURS} <= TONES.keys()
    assert host_tone("gpu-01", "LAB") == host_tone("gpu-01", None)  # its own, the same on every day
