"""`systemctl show` properties, as a real systemd 252 and the supervisor gave them -> the console's states."""

from __future__ import annotations

import pytest

from console.box.service_properties import parse_show, service_state
from console.box.values import ServiceName, ServiceState

FAILED = "LoadState=loaded\nActiveState=failed\nSubState=failed\n"


def read(text: str) -> ServiceState:
    return service_state(parse_show(text), unit="ddtree-engine.service", scope="user")


@pytest.mark.parametrize(
    ("shown", "state"),
    [
        ("LoadState=loaded\nActiveState=active\nSubState=running\nResult=success\n", "serving"),
        ("LoadState=loaded\nActiveState=reloading\nSubState=reload\nResult=success\n", "serving"),
        ("LoadState=loaded\nActiveState=activating\nSubState=start\nResult=success\n", "starting"),
        ("LoadState=loaded\nActiveState=activating\nSubState=auto-restart\nResult=exit-code\n", "restarting"),
        ("LoadState=loaded\nActiveState=deactivating\nSubState=stop-sigterm\nResult=success\n", "stopping"),
        ("LoadState=loaded\nActiveState=deactivating\nSubState=stop-sigkill\nResult=timeout\n", "stuck-in-stop"),
        ("LoadState=loaded\nActiveState=deactivating\nSubState=final-sigkill\nResult=timeout\n", "stuck-in-stop"),
        ("LoadState=loaded\nActiveState=inactive\nSubState=dead\nResult=success\n", "stopped"),
        ("LoadState=not-found\nActiveState=inactive\nSubState=dead\nResult=success\n", "not-installed"),
        ("LoadState=masked\nActiveState=inactive\nSubState=dead\nResult=success\n", "not-installed"),
        (f"{FAILED}Result=exit-code\nExecMainCode=1\nExecMainStatus=203\nNRestarts=0\nStartLimitBurst=5\n", "failed"),
        (f"{FAILED}Result=watchdog\nExecMainCode=2\nExecMainStatus=6\n", "failed"),
        (f"{FAILED}Result=start-limit-hit\nNRestarts=2\n", "start-limit-hit"),
        (f"{FAILED}Result=exit-code\nExecMainStatus=1\nNRestarts=2\nStartLimitBurst=2\n", "start-limit-hit"),
        (
            f"{FAILED}Result=exit-code\nExecMainStatus=2\nNRestarts=7\nStartLimitBurst=5\nRestartPreventExitStatus=2 78\n",
            "failed",
        ),
        (
            f"{FAILED}Result=timeout\nTasksCurrent=[not set]\nActiveEnterTimestampMonotonic=0\n"
            "InactiveExitTimestampMonotonic=1514924538\n",
            "start-timeout",
        ),
        (
            f"{FAILED}Result=timeout\nTasksCurrent=[not set]\nActiveEnterTimestampMonotonic=1514928910\n"
            "InactiveExitTimestampMonotonic=1514928910\n",
            "failed",  # it served, and its stop took too long
        ),
        (f"{FAILED}Result=timeout\nTasksCurrent=1\n", "stuck-in-stop"),
        ("", "unknown"),
    ],
)
def test_each_condition_of_a_unit_has_its_own_state(shown: str, state: ServiceName) -> None:
    assert read(shown).state == state


def test_the_status_text_of_a_dead_unit_is_not_shown() -> None:
    assert read(f"{FAILED}StatusText=loading weights\n").status_text is None
    loading = read("LoadState=loaded\nActiveState=activating\nSubState=start\nStatusText=loading weights 3/8\n")
    assert loading.status_text == "loading weights 3/8"


def test_figures_that_are_not_set_are_absent() -> None:
    for unset in ("[not set]", str(2**64 - 1), ""):
        assert (
            read(f"LoadState=loaded\nActiveState=active\nSubState=running\nMemoryCurrent={unset}\n").memory_bytes
            is None
        )
    assert (
        read("LoadState=loaded\nActiveState=inactive\nMainPID=0\nExecMainCode=0\nExecMainStatus=0\n").exit_status
        is None
    )


def test_values_keep_what_follows_their_first_equals_sign() -> None:
    assert parse_show("StatusText=a=b=c\n\nnoise\n") == {"StatusText": "a=b=c"}


@pytest.mark.parametrize(
    ("given", "iso"),
    [
        ("@1795976666.352622", "2026-11-29T18:24:26+00:00"),
        ("Sun 2026-11-29 18:29:00 UTC", "2026-11-29T18:29:00+00:00"),
        ("", None),
        ("n/a", None),
    ],
)
def test_times_of_both_managers_become_one_form(given: str, iso: str | None) -> None:
    shown = f"LoadState=loaded\nActiveState=active\nSubState=running\nActiveEnterTimestamp={given}\n"
    assert read(shown).since == iso
