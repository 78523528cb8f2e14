"""Standard streams that are closed or full, and folders of the operator's that cannot be written: one line, no traceback."""

from __future__ import annotations

import os
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from console.config import places, split_host
from console.errors import UsageError
from console.experiments.playbook import user_folder as own_playbooks
from console.experiments.store import Store, StoreError, mend_of
from console.folders import home_folder, user_folder
from tests.console.conftest import Ddtree

FULL = "/dev/full"
needs_dev_full = pytest.mark.skipif(not Path(FULL).exists(), reason="no /dev/full here")


def shell(words: str, redirection: str, home: Path) -> subprocess.CompletedProcess[str]:
    """`ddtree WORDS REDIRECTION` as a shell runs it."""
    line = f"{shlex.quote(sys.executable)} -m console.cli {words} {redirection}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "SSH_"))}
    return subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, timeout=60, env={**kept, "HOME": str(home)}, check=False
    )


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "<&- >&-", "<&- >&- 2>&-"])
def test_a_closed_stream_changes_nothing_but_what_goes_there(redirection: str, tmp_path: Path) -> None:
    done = shell("runs", redirection, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout == ("" if ">&- " in redirection + " " else "no runs yet\n")
    assert not (tmp_path / ".local/state/ddtree/faults").exists()


@needs_dev_full
@pytest.mark.parametrize("words", ["--help", "runs", "runs --json", "playbooks", "statsu --json"])
def test_a_full_standard_output_is_one_line(words: str, tmp_path: Path) -> None:
    done = shell(words, f">{FULL}", tmp_path)
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    if words.startswith("statsu"):
        assert (done.returncode, done.stderr) == (2, "ddtree: no verb 'statsu'; did you mean status?\n")
    else:
        assert (done.returncode, done.stderr) == (1, "ddtree: standard output: No space left on device\n")


@needs_dev_full
def test_a_full_standard_error_leaves_the_exit_status(tmp_path: Path) -> None:
    assert shell("statsu", f"2>{FULL}", tmp_path).returncode == 2


def test_an_error_object_that_nobody_reads_is_no_traceback(tmp_path: Path) -> None:
    done = shell("statsu --json", "| true", tmp_path)
    assert "Traceback" not in done.stderr and "unexpected" not in done.stderr


def test_ctrl_c_while_the_command_loads_is_one_line(tmp_path: Path) -> None:
    # A module that is loaded early raises what Ctrl-C raises; the real one comes at no time that a test could choose.
    (tmp_path / "asyncio.py").write_text("raise KeyboardInterrupt\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from console.__main__ import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "ddtree: interrupted\n")


@pytest.mark.parametrize("words", [["runs"], ["show", "last"]])
def test_a_state_folder_that_can_be_none_is_named(ddtree: Ddtree, words: list[str]) -> None:
    done = ddtree(*words, env={"XDG_STATE_HOME": "/dev/null"})
    assert done.returncode == 1
    assert done.stderr == (
        "ddtree: /dev/null/ddtree/runs: Not a directory; this console keeps its files in /dev/null/ddtree; "
        "XDG_STATE_HOME names another place\n"
    )


def test_a_folder_that_is_not_absolute_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"HOME": "/home/o", "XDG_STATE_HOME": "rel", "XDG_CONFIG_HOME": "./rel", "XDG_RUNTIME_DIR": "run"}
    assert places(environ).state == Path("/home/o/.local/state/ddtree")
    assert places(environ).hosts == Path("/home/o/.config/ddtree/hosts.toml")
    assert places(environ).demo == Path("/home/o/.local/state/ddtree/demo.json")
    assert user_folder("XDG_STATE_HOME", ".local/state", {"XDG_STATE_HOME": "/s"}) == Path("/s/ddtree")
    monkeypatch.setenv("XDG_CONFIG_HOME", "rel")
    monkeypatch.setenv("HOME", "/home/o")
    assert own_playbooks() == Path("/home/o/.config/ddtree/playbooks")
    assert home_folder({"HOME": "relative"}).is_absolute()
    assert home_folder({}).is_absolute()


@pytest.mark.parametrize("name", ["\udcff", "user@box\udcff", "\udcff@box", "user@-oProxyCommand=x", "-x@box", "a b@c"])
def test_a_name_that_no_host_can_have_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is no host name"):
        split_host(name)


def test_only_a_broken_database_is_to_be_moved_away(tmp_path: Path) -> None:
    Store(tmp_path).close()
    (tmp_path / "runs.db").write_bytes(b"no database at all" * 400)
    with pytest.raises(StoreError, match="move it away: it is made anew"):
        Store(tmp_path)
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL  # as sqlite sets it on a full disk
    assert mend_of(full) == "make room on its disk"
    assert mend_of(sqlite3.OperationalError("of a kind nobody knows")) is None
