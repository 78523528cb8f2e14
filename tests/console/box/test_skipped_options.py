"""SSH options without effect in the console are told for the host they hold for; what has effect agrees with ssh -G."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from console.box.errors import SshConfigError
from console.box.skipped_options import EFFECTS, HARMLESS, OBSOLETE, skipped_options
from console.box.ssh_config import read_settings

CONFIG = """\
Include {folder}/lab.conf
Host gpu-*
    User ops
    Port 2222
    ControlMaster auto
    RevokedHostKeys {folder}/revoked
    ProxyJump jump.example
Host *
    RevokedHostKeys /etc/other
    AddKeysToAgent yes
Match host other
    KnownHostsCommand /bin/false
"""
INCLUDED = """\
Host gpu-01
    HostName 10.0.0.7
    StrictHostKeyChecking no
Host nothing
    LocalForward 1 localhost:2
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config"
    file.write_text(CONFIG.format(folder=tmp_path))
    (tmp_path / "lab.conf").write_text(INCLUDED)
    return file


def test_what_holds_for_the_host_is_told_with_its_place_and_what_matters_comes_first(config: Path) -> None:
    found = skipped_options([config], "gpu-01", None, None)
    assert [(option.name, option.matters) for option in found] == [
        ("RevokedHostKeys", True),
        ("StrictHostKeyChecking", False),
        ("ControlMaster", False),
        ("AddKeysToAgent", False),
    ]
    assert (found[0].value, found[0].where) == (f"{config.parent}/revoked", f"{config} line 6")  # the first one holds
    assert found[1].where == f"{config.parent}/lab.conf line 3"


def test_what_holds_for_others_is_not_told(config: Path) -> None:
    names = [option.name for option in skipped_options([config], "other", None, None)]
    assert names == ["RevokedHostKeys", "KnownHostsCommand", "AddKeysToAgent"]


def test_a_broken_file_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("Host *\n  Port many\n")
    with pytest.raises(SshConfigError, match="config line 2"):
        skipped_options([file], "x", None, None)


def test_no_option_that_the_library_follows_is_told_to_be_without_effect() -> None:
    from asyncssh.config import SSHClientConfig

    assert set(SSHClientConfig._handlers) & {name.lower() for name in EFFECTS} == set()


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh here to compare with")
def test_the_way_to_a_host_is_the_one_that_ssh_itself_would_take(config: Path) -> None:
    shown = subprocess.run(
        ["ssh", "-G", "-F", str(config), "gpu-01"], capture_output=True, text=True, check=True
    ).stdout
    theirs = dict(line.split(" ", 1) for line in shown.splitlines() if " " in line)
    ours = read_settings([config], "gpu-01", None, None)
    assert (ours.address, str(ours.port), ours.user) == (theirs["hostname"], theirs["port"], theirs["user"])
    assert ",".join(ours.proxy_jump) == theirs["proxyjump"]


def test_a_misspelt_option_is_named_with_the_nearest_right_one_whichever_host_it_stands_under(tmp_path: Path) -> None:
    """OpenSSH refuses the whole file for it, so that it concerns every host."""
    file = tmp_path / "config"
    file.write_text("Host gpu-01\n  Prot 2222\n  VisualHostKey yes\nHost other\n  identity_file ~/.ssh/key\n  Zzz 1\n")
    found = skipped_options([file], "gpu-01", None, None)
    assert [(option.name, option.value, option.where, option.mend) for option in found] == [
        ("prot", "2222", f"{file} line 2", "did you mean Port?"),
        ("identity_file", "~/.ssh/key", f"{file} line 5", "did you mean IdentityFile?"),
        ("zzz", "1", f"{file} line 6", "take the line out, or name the option in IgnoreUnknown"),
    ]


def test_ignore_unknown_holds_for_the_lines_below_it_where_its_block_does(tmp_path: Path) -> None:
    file = tmp_path / "config"
    lines = "Usr x\nHost other\nIgnoreUnknown zz*\nHost gpu-01\nIgnoreUnknown us?,!user,Prot*\nHost *\nUsr x\nProto 2\nZz 1\n"
    file.write_text(lines)
    named = [(option.name, option.where) for option in skipped_options([file], "gpu-01", None, None)]
    assert named == [("usr", f"{file} line 1"), ("zz", f"{file} line 9")]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh to compare with")
def test_no_option_that_openssh_has_is_called_misspelt(tmp_path: Path) -> None:
    shown = subprocess.run(["ssh", "-F", "none", "-G", "gpu-01"], capture_output=True, text=True, check=True).stdout
    names = {line.partition(" ")[0] for line in shown.splitlines()} - {"host"}
    assert len(names) > 50
    file = tmp_path / "config"
    file.write_text(
        "Host nobody\n" + "".join(f"  {name} yes\n" for name in (*names, *EFFECTS, *HARMLESS, *OBSOLETE, "usr"))
    )
    assert [option.name for option in skipped_options([file], "gpu-01", None, None)] == ["usr"]
