"""How a run is kept alive, by what the login may do. The box is a stand-in: the answers of one login on one box."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from console.box.facts import BoxFacts
from console.box.values import Completed
from console.experiments.detach import choose_detachment

RUNNER = ("python3", "-I", "-B", "runner.py")


def login(uid: int, linger: bytes, systemd: int | None = 252) -> Any:
    async def run(argv: list[str]) -> Completed:
        assert argv == ["loginctl", "show-user", str(uid), "--property=Linger", "--value"]
        return Completed(tuple(argv), 0, linger + b"\n", b"")

    return SimpleNamespace(facts=BoxFacts(uid, "ops", "/home/ops", True, systemd, b""), run=run)


async def test_without_linger_the_run_has_a_session_of_its_own_and_says_how_to_mend_that() -> None:
    found = await choose_detachment(login(1000, b"no"), "r1", RUNNER, 600)
    assert (found.how, found.argv) == ("session", (*RUNNER, "--detach"))
    assert found.note is not None and "ops does not linger" in found.note and "loginctl enable-linger ops" in found.note


@pytest.mark.parametrize(
    ("uid", "linger", "systemd", "how"),
    [(1000, b"yes", 252, "user"), (0, b"no", 252, "system"), (1000, b"yes", None, "session")],
)
async def test_where_a_unit_would_live_on_it_is_one(uid: int, linger: bytes, systemd: int | None, how: str) -> None:
    found = await choose_detachment(login(uid, linger, systemd), "r1", RUNNER, 600)
    assert (found.how, found.note) == (how, None)
    assert ("--user" in found.argv) is (how == "user")
    assert ("--property=RuntimeMaxSec=660" in found.argv) is (how != "session")
