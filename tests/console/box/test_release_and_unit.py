"""What a release holds and is called, and the unit that runs it, as text."""

from __future__ import annotations

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.box.layout import layout_for
from console.box.release import release_files, release_name, requirements, unmet, version
from console.box.unit_file import command, quoted, service_json, undo_command, unit_text

UNIT = "ddtree-engine.service"


def test_a_release_holds_the_boxs_side_and_its_agents_and_nothing_of_the_consoles() -> None:
    files = release_files()
    assert {"app/engine/__main__.py", "app/kernels/__init__.py", "app/playbooks/kit.py"} <= files.keys()
    assert {"agent/apply.py", "agent/supervise.py", "agent/survey.py"} <= files.keys()
    assert {path.split("/")[0] for path in files} == {"app", "agent"}
    assert not [
        path for path in files if "__pycache__" in path or path.endswith(".pyc") or "console" in path.split("/")
    ]
    assert f"Version: {version()}\n".encode() in files[f"app/ddtree_console-{version()}.dist-info/METADATA"]


def test_the_name_follows_every_byte_and_the_interpreter() -> None:
    files = {"a": b"1", "b": b"2"}
    name = release_name("1.0", files, "python3.11")
    assert name == release_name("1.0", dict(reversed(files.items())), "python3.11")
    assert name.startswith("1.0-") and len(name) == len("1.0-") + 12
    others = [
        ({"a": b"1", "b": b"3"}, "python3.11"),
        ({"a": b"12", "b": b""}, "python3.11"),
        ({"a": b"1"}, "python3.11"),
    ]
    assert name not in {release_name("1.0", changed, python) for changed, python in [*others, (files, "python3.12")]}


@pytest.mark.parametrize(
    ("have", "enough"),
    [
        (None, False),
        ("2.10.9", False),
        ("2.11", True),
        ("2.11.0+cu128", True),
        ("2.11.0rc1", True),
        ("3.0", True),
        ("2.9", False),
    ],
)
def test_a_package_is_unmet_when_missing_or_too_old(have: str | None, enough: bool) -> None:
    assert (unmet({"torch": "torch>=2.11"}, {"torch": have}) == {}) == enough


def test_the_engines_requirements_come_from_the_distribution() -> None:
    assert {"torch", "starlette", "psutil"} <= requirements().keys()
    assert "textual" not in requirements()


@pytest.mark.parametrize("scope", ["user", "system"])
def test_the_unit_is_of_type_notify_with_watchdog_limits_and_one_name_in_the_journal(scope: str) -> None:
    lines = unit_text(layout_for(scope, "/home/ops", UNIT)).splitlines()  # type: ignore[arg-type]
    wanted = ["Type=notify", "NotifyAccess=main", "WatchdogSec=120", "Restart=on-failure", "StartLimitBurst=5"]
    assert set(wanted) <= set(lines)
    assert {"SyslogIdentifier=ddtree-engine", "KillMode=control-group", "UMask=0077"} <= set(lines)
    assert "RestartPreventExitStatus=2 78" in lines
    assert ("ProtectSystem=strict" in lines) == (scope == "system")
    assert lines[-1] == f"WantedBy={'multi-user.target' if scope == 'system' else 'default.target'}"


def test_the_command_leads_through_current_so_that_an_upgrade_needs_no_new_unit() -> None:
    layout = layout_for("user", "/home/o p%s$x", UNIT)
    assert command(layout)[0] == "/home/o p%s$x/.local/share/ddtree/current/venv/bin/python"
    start = next(line for line in unit_text(layout).splitlines() if line.startswith("ExecStart="))
    assert start.startswith('ExecStart="/home/o p%%s$$x/.local/share/ddtree/current/venv/bin/python" -m engine serve')


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20))
def test_a_quoted_word_is_one_word_to_the_reader_of_unit_files(text: str) -> None:
    assert shlex.split(quoted(text).replace("%%", "%")) == [text]


def test_the_supervisor_gets_the_same_limits_and_the_owner_it_ends_with() -> None:
    layout = layout_for("supervisor", "/home/ops", UNIT)
    spec = json.loads(service_json(layout, {"XDG_CACHE_HOME": "/c"}, bound_to=42))
    assert spec["argv"] == command(layout)
    assert spec["before_start"] == undo_command(layout) and spec["before_start"][-1] == "undo"
    assert (spec["watchdog_s"], spec["restart_limit"], spec["no_restart_on"], spec["bound_to"]) == (120, 5, [2, 78], 42)
    assert spec["env"]["XDG_CACHE_HOME"] == "/c" and spec["env"]["PYTHONUNBUFFERED"] == "1"
