"""Service: the form, the plan beside it, the question before it, the phases after it, and the history."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest
from textual.pilot import Pilot
from textual.widgets import Button, Input

from console.deployment.change import ChangePlan, Choices, Outcome, Phase, Stray, UnderWay
from console.tui.screens.apply import ApplyScreen
from console.tui.screens.confirm import ConfirmScreen
from console.tui.screens.service import ServiceScreen
from console.tui.widgets.change_report import changes_back_to
from console.tui.widgets.form_view import FormView
from tests.tui.conftest import console_of, lines, opened, settled, text, until
from tests.tui.recorded import HISTORY, PHASES, RecordedHost, snapshot


async def open_service(pilot: Pilot[None]) -> FormView:
    """The Service screen with the settings of the recorded box in it."""
    await pilot.press("2")
    await until(pilot, lambda: isinstance(pilot.app.screen, ServiceScreen) and pilot.app.screen._form.form.fields)
    return pilot.app.screen.query_one(FormView)


async def put(pilot: Pilot[None], name: str, value: str) -> None:
    """Type a value into a field, as an operator does."""
    form = pilot.app.screen.query_one(FormView)
    rows = [row if isinstance(row, str) else row.name for row in form.form.rows()]
    form._rows.move_to(rows.index(name))
    await pilot.press("enter")
    form.query_one(Input).value = value
    await pilot.press("enter")
    await settled(pilot)


async def asked(pilot: Pilot[None], *keys: str) -> ConfirmScreen | ApplyScreen:
    """Press keys until a question stands on the screen."""
    await pilot.press(*keys)
    await until(pilot, lambda: isinstance(pilot.app.screen, ConfirmScreen | ApplyScreen))
    await pilot.pause()
    assert isinstance(pilot.app.screen, ConfirmScreen | ApplyScreen)
    return pilot.app.screen


async def test_the_form_shows_the_value_the_one_in_force_and_the_help(host: RecordedHost) -> None:
    async with opened(host, (120, 45)) as pilot:
        form = await open_service(pilot)
        row = next(line for line in text(pilot).splitlines() if "block_size" in line)
        assert row.split("│")[0].split() == ["block_size", "0", "in", "force", "16"]
        rows = [row if isinstance(row, str) else row.name for row in form.form.rows()]
        form._rows.move_to(rows.index("page_size"))
        await settled(pilot)
        assert "tokens in one page of the KV pool" in text(pilot)
        assert "1 to 256" in text(pilot)


async def test_a_change_shows_its_diff_capacity_and_what_is_cut_off(host: RecordedHost) -> None:
    async with opened(host, (160, 45)) as pilot:
        await open_service(pilot)
        await put(pilot, "page_size", "64")
        await until(pilot, lambda: "page_size  16 → 64" in text(pilot) and "will be cut off" in text(pilot))
        assert "tokens × 23,040 B" in text(pilot)
        assert "1 request in flight will be cut off" in text(pilot)
        assert host.calls == []


async def test_a_value_out_of_range_is_refused_beside_its_field_and_nothing_is_applied(host: RecordedHost) -> None:
    async with opened(host, (120, 45)) as pilot:
        await open_service(pilot)
        await put(pilot, "page_size", "512")
        assert "512" in text(pilot)
        await until(pilot, lambda: "256" in text(pilot) and "cannot be applied" in text(pilot))
        await pilot.press("ctrl+s")
        await settled(pilot)
        assert isinstance(pilot.app.screen, ServiceScreen)
        assert host.calls == []


async def test_undo_gives_the_old_value_back(host: RecordedHost) -> None:
    async with opened(host, (120, 45)) as pilot:
        form = await open_service(pilot)
        await put(pilot, "page_size", "64")
        await pilot.press("u")
        assert form.form.edits == {}


async def test_the_question_says_host_and_consequences_and_enter_cancels(host: RecordedHost) -> None:
    async with opened(host, (120, 45)) as pilot:
        await open_service(pilot)
        await put(pilot, "page_size", "64")
        await until(pilot, lambda: "16 → 64" in text(pilot))
        question = await asked(pilot, "ctrl+s")
        assert "gpu-01 [LAB]" in text(pilot)
        assert "page_size: 16 to 64" in text(pilot)
        assert "will be cut off" in text(pilot)
        assert question.focused is question.query_one("#apply-no", Button)
        await pilot.press("enter")
        await settled(pilot)
        assert isinstance(pilot.app.screen, ServiceScreen)
        assert host.calls == []


async def test_an_applied_change_goes_through_its_phases_to_the_outcome(host: RecordedHost) -> None:
    async with opened(host, (160, 45)) as pilot:
        await open_service(pilot)
        await put(pilot, "page_size", "64")
        await until(pilot, lambda: "16 → 64" in text(pilot))
        await asked(pilot, "ctrl+s")
        await pilot.press("right", "enter")
        await until(pilot, lambda: "soak" in text(pilot))
        await pilot.press("1")  # leaving does not stop it
        host.gate.set()
        await until(pilot, lambda: console_of(pilot).session.change.outcome is not None)  # type: ignore[union-attr]
        await pilot.press("2")
        await until(pilot, lambda: "Confirmed: the new settings are in force." in text(pilot))
        assert "1.1 s  loading weights" in text(pilot)
        assert host.calls == [("apply", (("page_size", 64),))]


async def test_a_rollback_tells_the_engines_own_line_and_stays_unread(host: RecordedHost) -> None:
    line = "context_length 65536 needs 4,096 pages, 512 fit"
    host.outcome = Outcome("rolled_back", "r5", reason=line)
    host.gate.set()
    async with opened(host, (160, 45)) as pilot:
        await open_service(pilot)
        await put(pilot, "context_length", "65536")
        await until(pilot, lambda: "8192 → 65536" in text(pilot))
        await asked(pilot, "ctrl+s")
        await pilot.press("right", "enter")
        await until(pilot, lambda: "Rolled back: the old settings serve again." in text(pilot))
        assert line in text(pilot)
        assert console_of(pilot).session.happenings.unread == 1


async def test_an_opener_pressed_twice_gives_one_dialog_and_one_restart(host: RecordedHost) -> None:
    async with opened(host, (120, 45)) as pilot:
        await open_service(pilot)
        await asked(pilot, "r", "r")
        assert len([s for s in pilot.app.screen_stack if isinstance(s, ConfirmScreen)]) == 1
        await pilot.press("right", "enter", "enter")
        await until(pilot, lambda: host.calls)
        await settled(pilot)
        assert host.calls == [("service", "restart")]


async def test_stopping_a_production_host_needs_its_name_typed(host: RecordedHost) -> None:
    production = snapshot(time.monotonic(), wall_s=time.time(), tag="PROD")
    async with opened(host, (120, 45), first=production) as pilot:
        await open_service(pilot)
        question = await asked(pilot, "x")
        yes = question.query_one("#confirm-yes", Button)
        assert yes.disabled
        question.query_one(Input).value = "gpu-02"
        await pilot.pause()
        assert yes.disabled
        question.query_one(Input).value = "gpu-01"
        await until(pilot, lambda: not yes.disabled)
        yes.press()
        await until(pilot, lambda: host.calls == [("service", "stop")])


@pytest.mark.parametrize("keys", [("s",), ("x",), ("r",)])
async def test_a_read_only_console_changes_nothing_and_says_why(host: RecordedHost, keys: tuple[str, ...]) -> None:
    async with opened(host, (120, 45), read_only=True) as pilot:
        await open_service(pilot)
        await pilot.press(*keys)
        await until(pilot, lambda: console_of(pilot).session.happenings.unread == 1)
        assert "read-only" in console_of(pilot).session.happenings.items[0].text
        assert isinstance(pilot.app.screen, ServiceScreen)
        assert host.calls == []


async def test_the_history_opens_a_generation_and_takes_it_back_to_the_form(host: RecordedHost) -> None:
    async with opened(host, (80, 24)) as pilot:
        form = await open_service(pilot)
        await pilot.press("h")
        await until(pilot, lambda: "rolled back" in text(pilot))
        await pilot.press("down", "down", "b")
        await settled(pilot)
        assert form.form.edits == {"page_size": "64"}


def test_going_back_undoes_every_later_change_that_was_confirmed() -> None:
    assert changes_back_to(HISTORY, 3) == {}
    assert changes_back_to(HISTORY, 1) == {"page_size": "64"}  # generation 2 was rolled back: nothing to undo
    assert changes_back_to(HISTORY, 0) == {"page_size": "64", "tree_budget": "32"}


async def test_what_was_typed_survives_a_new_reading_of_the_box(host: RecordedHost) -> None:
    async with opened(host, (120, 45)) as pilot:
        form = await open_service(pilot)
        await put(pilot, "page_size", "64")
        now = time.monotonic()
        one = snapshot(now, wall_s=time.time())
        assert one.service is not None
        host.push(replace(one, service=replace(one.service, invocation="another")))
        await until(pilot, lambda: console_of(pilot).session.snapshot.service.invocation == "another")  # type: ignore[union-attr]
        await settled(pilot)
        assert form.form.edits == {"page_size": "64"}


async def test_apply_right_after_typing_still_asks(host: RecordedHost) -> None:
    async with opened(host, (120, 45)) as pilot:
        form = await open_service(pilot)
        form._rows.move_to([row if isinstance(row, str) else row.name for row in form.form.rows()].index("page_size"))
        await pilot.press("enter")
        form.query_one(Input).value = "64"
        await asked(pilot, "enter", "ctrl+s")  # before the pause after which the plan comes by itself
        assert "page_size: 16 to 64" in text(pilot)


async def test_home_and_end_reach_the_first_and_the_last_setting(host: RecordedHost) -> None:
    async with opened(host, (80, 24)) as pilot:
        form = await open_service(pilot)
        await pilot.press("end")
        assert form.here is not None and form.here.name == "interval_s"
        await pilot.press("home")
        assert form.here is not None and form.here.name == "path"
        await settled(pilot)
        assert any(row.startswith(" model") for row in text(pilot).splitlines())  # with the heading above it
        await pilot.press("pagedown", "pagedown", "pageup", "pageup", "pageup")
        assert form.here.name == "path"


async def test_the_outcome_is_seen_without_scrolling_on_a_small_screen(host: RecordedHost) -> None:
    host.gate.set()
    async with opened(host, (80, 24)) as pilot:
        await open_service(pilot)
        await put(pilot, "page_size", "64")
        await asked(pilot, "ctrl+s")
        await pilot.press("right", "enter")
        await until(pilot, lambda: "Confirmed: the new settings are in force." in text(pilot))


async def test_a_long_path_keeps_its_end(host: RecordedHost) -> None:
    host.text = host.text.replace("/srv/drafters/smollm2", "/srv/" + "deep/" * 20 + "drafters/smollm2")
    async with opened(host, (80, 24)) as pilot:
        await open_service(pilot)
        await until(pilot, lambda: "drafters/smollm2 " in text(pilot))
        row = next(line for line in text(pilot).splitlines() if " drafter " in line)
        assert row.split()[1].startswith("…")


async def test_what_the_console_does_to_the_service_itself_is_no_event(host: RecordedHost) -> None:
    async with opened(host, (160, 45)) as pilot:
        await open_service(pilot)
        await put(pilot, "page_size", "64")
        await asked(pilot, "ctrl+s")
        await pilot.press("right", "enter")
        await until(pilot, lambda: "soak" in text(pilot))
        now, session = time.monotonic(), console_of(pilot).session
        one = snapshot(now, wall_s=time.time())
        assert one.service is not None
        host.push(replace(one, service=replace(one.service, state="stopped")))
        await until(pilot, lambda: session.snapshot.service.state == "stopped")  # type: ignore[union-attr]
        assert session.happenings.items == ()
        host.gate.set()
        await until(pilot, lambda: session.change is not None and session.change.outcome is not None)
        host.push(one)
        await until(
            pilot, lambda: session.happenings.items[-1:] and "stopped -> serving" in session.happenings.items[-1].text
        )


async def test_proposed_settings_wait_for_the_form_and_an_unknown_one_is_told(
    host: RecordedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, plan = asyncio.Event(), host.plan

    async def slow_plan(changes: Mapping[str, str]) -> ChangePlan:
        await read.wait()
        return await plan(changes)

    monkeypatch.setattr(host, "plan", slow_plan)
    async with opened(host, (160, 45)) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: isinstance(pilot.app.screen, ServiceScreen))
        screen = pilot.app.screen
        assert isinstance(screen, ServiceScreen)
        screen.take_changes({"tree_budget": "8", "warp_factor": "9"})
        read.set()
        await until(pilot, lambda: "tree_budget  16 → 8" in text(pilot))
        assert "warp_factor is no setting" in console_of(pilot).session.happenings.items[-1].text


STRAY = Stray(4321, "77", "python -m engine serve", 3_200_000_000, 40_000_000_000)
WAITING = (*PHASES[:-1], Phase("waiting", 13.0, "120 s to confirm", left_s=120.0))


async def asked_about(pilot: Pilot[None], name: str, value: str) -> ApplyScreen:
    """The question about one change."""
    await open_service(pilot)
    await put(pilot, name, value)
    question = await asked(pilot, "ctrl+s")
    assert isinstance(question, ApplyScreen)
    return question


async def test_a_process_in_the_way_is_named_and_left_alone_unless_the_operator_says_so(host: RecordedHost) -> None:
    host.strays = (STRAY,)
    async with opened(host, (80, 24)) as pilot:
        await asked_about(pilot, "page_size", "64")
        told = " ".join(" ".join(line[3:77].strip() for line in lines(pilot)).split())
        assert "In the way: process 4321 (python -m engine serve) holds 3.2 GB and 40.0 GB of GPU memory" in told
        await pilot.press("right", "enter")
        await until(pilot, lambda: host.choices is not None)
        assert host.choices == Choices(on_in_flight="abort", confirm_s=120.0, end=())


async def test_every_choice_is_made_with_the_keyboard_on_a_small_screen(host: RecordedHost) -> None:
    host.strays = (STRAY,)
    async with opened(host, (80, 24)) as pilot:
        question = await asked_about(pilot, "page_size", "64")
        await pilot.press("up", "enter", "down", "enter")  # from Cancel up to the form: the first row, then the second
        await until(pilot, lambda: "once no request runs" in text(pilot))
        await pilot.press("down", "left")  # the choices go round: before the first one is the last
        assert "as soon as proven" in text(pilot)
        assert "Cancel" in text(pilot) and "Apply" in text(pilot)
        await pilot.press("tab")
        assert question.focused is question.query_one("#apply-no", Button)
        await pilot.press("tab", "enter")
        await until(pilot, lambda: host.choices is not None)
        assert host.choices == Choices(on_in_flight="wait", confirm_s=None, end=(STRAY,))


async def test_no_request_in_flight_leaves_nothing_to_choose_about_them(
    host: RecordedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = host.plan

    async def idle(changes: Mapping[str, str]) -> ChangePlan:
        return replace(await plan(changes), requests_in_flight=0)

    monkeypatch.setattr(host, "plan", idle)
    async with opened(host, (80, 24)) as pilot:
        await asked_about(pilot, "page_size", "64")
        assert "no request is in flight" in text(pilot) and "cut off" not in text(pilot)


async def test_a_change_on_a_production_host_needs_its_name_typed(host: RecordedHost) -> None:
    production = snapshot(time.monotonic(), wall_s=time.time(), tag="PROD")
    async with opened(host, (80, 24), first=production) as pilot:
        question = await asked_about(pilot, "page_size", "64")
        yes = question.query_one("#apply-yes", Button)
        assert yes.disabled
        question.query_one("#confirm-typed", Input).value = "gpu-01"
        await until(pilot, lambda: not yes.disabled)
        yes.press()
        await until(pilot, lambda: host.calls == [("apply", (("page_size", 64),))])


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (60, 15)])
async def test_a_change_that_waits_counts_down_and_is_kept_by_a_key(host: RecordedHost, size: tuple[int, int]) -> None:
    host.phases = WAITING
    async with opened(host, size) as pilot:
        session = console_of(pilot).session
        now = session.clock()
        session.clock = lambda: now
        await asked_about(pilot, "page_size", "64")
        await pilot.press("right", "enter")
        await until(pilot, lambda: "2m00s left: c keeps the new settings, v reverts" in text(pilot))
        assert lines(pilot)[-1].startswith(" ? help") and "c confirm  v revert" in lines(pilot)[-1]
        session.clock = lambda: now + 78
        await settled(pilot)
        assert "42 s left: c keeps" in text(pilot)
        await pilot.press("1")
        await settled(pilot)
        assert "confirm 42 s" in lines(pilot)[0]  # wherever the operator looks
        session.clock = lambda: now + 121
        await pilot.press("2")
        await settled(pilot)
        assert "The time is up: the box decides now" in text(pilot)
        session.clock = lambda: now + 100
        await pilot.press("c")
        await until(pilot, lambda: "Confirmed: the new settings are in force." in text(pilot))
        assert host.calls[-1] == ("say", "confirm")
        assert "confirm" not in lines(pilot)[0] and "c confirm" not in lines(pilot)[-1]


async def test_a_change_that_waits_is_taken_back_by_a_key(host: RecordedHost) -> None:
    host.phases = WAITING
    async with opened(host, (80, 24)) as pilot:
        await asked_about(pilot, "page_size", "64")
        await pilot.press("right", "enter")
        await until(pilot, lambda: "v reverts" in text(pilot))
        await pilot.press("v")
        await until(pilot, lambda: "Rolled back: the old settings serve again." in text(pilot))
        assert "the operator took it back" in text(pilot)


async def test_a_stop_during_a_change_says_that_the_box_goes_back_and_starts_the_engine(host: RecordedHost) -> None:
    host.phases = WAITING
    async with opened(host, (80, 24)) as pilot:
        await asked_about(pilot, "page_size", "64")
        await pilot.press("right", "enter")
        await until(pilot, lambda: "v reverts" in text(pilot))
        await asked(pilot, "x")
        told = " ".join(" ".join(line[3:77].strip() for line in lines(pilot)).split())
        assert "Then your settings change goes back to the old settings and starts the engine with them." in told


async def test_no_word_in_time_and_the_screen_says_that_the_box_went_back(host: RecordedHost) -> None:
    host.phases = WAITING
    host.outcome = Outcome("rolled_back", "r4", reason="nobody confirmed it within 120 s")
    async with opened(host, (80, 24)) as pilot:
        await asked_about(pilot, "page_size", "64")
        await pilot.press("right", "enter")
        await until(pilot, lambda: "c keeps" in text(pilot))
        host.gate.set()
        await until(pilot, lambda: "Rolled back: the old settings serve again." in text(pilot))
        assert "nobody confirmed it within 120 s" in text(pilot)


async def test_a_word_that_nobody_waits_for_is_told(host: RecordedHost) -> None:
    async with opened(host, (80, 24)) as pilot:
        await open_service(pilot)
        assert "c confirm" not in lines(pilot)[-1]
        await pilot.press("c")
        session = console_of(pilot).session
        await until(pilot, lambda: session.happenings.unread == 1)
        assert "no settings change waits for a word" in session.happenings.items[-1].text
        assert host.calls == []


async def test_a_console_opened_later_takes_up_the_change_that_waits(host: RecordedHost) -> None:
    host.phases = (*WAITING[:-1], replace(WAITING[-1], left_s=31.0))
    host.under_way = UnderWay("r4", "bo@desk", True)
    async with opened(host, (80, 24)) as pilot:
        await until(pilot, lambda: console_of(pilot).session.change is not None)
        await pilot.press("2")
        await until(pilot, lambda: "s left: c keeps" in text(pilot))
        await pilot.press("c")
        await until(pilot, lambda: "Confirmed: the new settings are in force." in text(pilot))
        assert host.calls == [("say", "confirm")]


async def test_a_read_only_console_sees_the_countdown_and_gives_no_word(host: RecordedHost) -> None:
    host.phases, host.under_way = WAITING, UnderWay("r4", "bo@desk", True)
    async with opened(host, (80, 24), read_only=True) as pilot:
        await open_service(pilot)
        await until(pilot, lambda: "2m00s left" in text(pilot) or "1m59s left" in text(pilot))
        assert "c confirm" not in lines(pilot)[-1]
        await pilot.press("c")
        await until(pilot, lambda: "read-only" in console_of(pilot).session.happenings.items[-1].text)
        assert host.calls == []
