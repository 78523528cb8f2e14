"""The argument lists of the three service managers: what is run on a box is fixed here, word for word."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from console.box.connection import Connection
from console.box.facts import BoxFacts
from console.box.layout import layout_for
from console.box.services import ServiceManager, manager_for
from console.box.target import Scope

UNIT = "ddtree-engine.service"


def manager(scope: Scope, uid: int = 1001) -> ServiceManager:
    facts = BoxFacts(uid, "ops", "/home/ops", True, 252, b"")
    connection = cast(Connection, SimpleNamespace(uid=uid, facts=facts))  # argument lists need no link
    return manager_for(connection, layout_for(scope, "/home/ops", UNIT))


@pytest.mark.parametrize(
    ("scope", "uid", "argv"),
    [
        ("user", 1001, ["/usr/bin/systemctl", "--user", "--no-block", "restart", UNIT]),
        ("system", 0, ["/usr/bin/systemctl", "--no-block", "restart", UNIT]),
        ("system", 1001, ["sudo", "-n", "/usr/bin/systemctl", "--no-block", "restart", UNIT]),
    ],
)
def test_a_verb_asks_and_does_not_wait_and_only_a_strangers_system_unit_needs_sudo(
    scope: Scope, uid: int, argv: list[str]
) -> None:
    assert manager(scope, uid).verb_argv("restart") == argv


def test_the_state_of_a_system_unit_needs_no_privilege() -> None:
    argv = manager("system").state_argv()
    assert argv[:5] == ["env", "TZ=UTC", "/usr/bin/systemctl", "show", UNIT]
    assert "sudo" not in argv and "InvocationID" in argv[-1]


def test_the_supervisor_is_run_from_the_release_in_use() -> None:
    share, folder = "/home/ops/.local/share/ddtree/current", f"/home/ops/.local/state/ddtree/supervised/{UNIT}"
    supervise = [f"{share}/venv/bin/python", f"{share}/agent/supervise.py", "--folder", folder]
    assert manager("supervisor").verb_argv("start") == [*supervise, "start"]
    assert manager("supervisor").state_argv() == [*supervise, "status"]
    assert manager("supervisor").journal_source().supervise == tuple(supervise)


def test_a_detached_job_is_a_transient_unit_where_there_is_systemd() -> None:
    job = ["python3", "apply.py", "run", "r1"]
    user = manager("user").detached_argv("ddtree-apply-r1", job)
    assert user[:2] == ["systemd-run", "--user"] and "--unit=ddtree-apply-r1" in user and user[-4:] == job
    assert "--user" not in manager("system", 0).detached_argv("x", job)
    assert manager("supervisor").detached_argv("x", job) == [*job, "--detach"]
