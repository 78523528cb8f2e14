"""From the name of a host to the way to it: hosts.toml, the running demo, OpenSSH's config."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console import hosts_file
from console.actions import VERBS
from console.box.errors import BoxError, LinkError
from console.config import Places, host_names, places, resolve, split_host
from console.demo_file import DemoBox, read_demo, remove_demo, write_demo
from console.errors import UsageError
from console.host import open_host


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """The places of an operator with an empty home, and no system-wide SSH config."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "me")
    found = places({"HOME": str(tmp_path)})
    return replace(found, ssh_config=(tmp_path / ".ssh/config", tmp_path / "etc/ssh_config"))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_places_follow_the_xdg_rules() -> None:
    plain = places({"HOME": "/h"})
    assert plain.hosts == Path("/h/.config/ddtree/hosts.toml")
    assert plain.known_hosts == Path("/h/.config/ddtree/known_hosts")
    assert plain.demo == Path("/h/.local/state/ddtree/demo.json")
    assert plain.ssh_config == (Path("/h/.ssh/config"), Path("/etc/ssh/ssh_config"))
    moved = places({"HOME": "/h", "XDG_CONFIG_HOME": "/c", "XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": "/r"})
    assert (moved.hosts, moved.demo) == (Path("/c/ddtree/hosts.toml"), Path("/r/ddtree/demo.json"))
    assert moved.state == Path("/s/ddtree")


def test_a_listed_host_brings_all_its_settings(where: Places) -> None:
    write(
        where.hosts,
        """
        [gpu-01]
        address = "10.0.0.7"
        user = "ops"
        port = 2222
        key = "~/.ssh/gpu"
        colour = "green"
        scope = "system"
        unit = "sglang.service"
        production = true
        read_only = true
        """,
    )
    found = resolve("gpu-01", where)
    assert (found.name, found.address, found.port, found.user) == ("gpu-01", "10.0.0.7", 2222, "ops")
    assert found.identity_files == (Path.home() / ".ssh/gpu",) and found.only_these_keys
    assert (found.tag, found.colour, found.scope, found.unit) == ("PROD", "red", "system", "sglang.service")
    # production is red whatever the file says
    assert found.production and found.read_only and found.listed
    assert found.own_known_hosts == where.known_hosts
    assert Path.home() / ".ssh/known_hosts" in found.known_hosts


def test_a_listed_host_may_name_an_ssh_alias(where: Places) -> None:
    write(where.hosts, '[gpu]\naddress = "alias"\ntag = "LAB"\ncolour = "#12ab9f"\n')
    write(where.ssh_config[0], "Host alias\n  HostName 10.1.1.1\n  User deep\n  Port 2200\n  HostKeyAlias farm\n")
    found = resolve("gpu", where)
    assert (found.ssh_name, found.address, found.user, found.port) == ("alias", "10.1.1.1", "deep", 2200)
    assert (found.tag, found.host_key_name, found.unit) == ("LAB", "farm", "ddtree-engine.service")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('# c\n[gpu]\naddres = "x"\n', 3, "did you mean address?"),
        ('[a]\nport = 22\n[b]\nport = "22"\n', 4, "write a number from 1 to 65535"),
        ("[gpu]\nport = 70000\n", 2, "write a number from 1 to 65535"),
        ("[gpu]\nport = true\n", 2, "write a number from 1 to 65535"),
        ('[gpu]\nscope = "root"\n', 2, "one of user, system, supervisor"),
        ('[gpu]\nunit = "a;b.service"\n', 2, "ends in .service"),
        ("[gpu]\nproduction = 1\n", 2, "true or false"),
        ('[gpu]\naddress = "-oProxyCommand=x"\n', 2, "an SSH alias"),
        ("[gpu]\nzzz = 1\n", 2, "known keys: address"),
        ('name = "x"\n', 1, "under a line such as [gpu-01]"),
        ("[gpu\n", 1, "correct the file"),
        ("[gpu]\nread_only = true\nport = true\n", 3, "port = true for host gpu"),
        ('[gpu]\nport = "22"\n', 2, 'port = "22" for host gpu'),
        ("[gpu]\nport = 22\n[gpu]\n", 3, "Cannot declare [gpu] twice"),
        ("[a]\n[[gpu]]\nport = 22\n", 2, "[[gpu]] is a list of tables; write [gpu]"),
        ('[a]\n[""]\n', 2, '"" is no name for a host'),
        ('["-x"]\n', 1, '"-x" is no name for a host'),
    ],
)
def test_what_is_wrong_in_hosts_toml_is_told_with_its_line(where: Places, text: str, line: int, said: str) -> None:
    write(where.hosts, text)
    with pytest.raises(UsageError) as caught:
        resolve("gpu", where)
    assert f"line {line}" in str(caught.value) and said in str(caught.value) and str(where.hosts) in str(caught.value)
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)


def test_hosts_toml_in_another_encoding_is_told_with_its_line_and_a_byte_order_mark_is_none(where: Places) -> None:
    write(where.hosts, "")
    where.hosts.write_bytes(b"\xef\xbb\xbf[gpu]\nport = 2200\n")
    assert resolve("gpu", where).port == 2200
    where.hosts.write_bytes("[gpu]\n# Zürich\n".encode("latin-1"))
    with pytest.raises(UsageError, match=r"hosts\.toml, line 2: is not UTF-8 text"):
        resolve("gpu", where)
    where.hosts.unlink()
    where.hosts.mkdir()
    with pytest.raises(UsageError, match=r"hosts\.toml: cannot be read: Is a directory$"):
        resolve("gpu", where)


def test_an_ssh_config_that_cannot_be_read_is_named(where: Places) -> None:
    write(where.ssh_config[0], "Host a\n")
    write(where.ssh_config[1], "Host b\n")
    where.ssh_config[1].write_bytes("Host b\n\n# Zürich\n".encode("latin-1"))
    with pytest.raises(BoxError, match="etc/ssh_config line 3: is not UTF-8 text"):
        resolve("gpu", where)
    where.ssh_config[0].unlink()
    where.ssh_config[0].mkdir()
    with pytest.raises(BoxError, match=r"\.ssh/config: cannot be read: Is a directory"):
        resolve("gpu", where)


def test_the_users_ssh_config_wins_over_the_systems_and_both_count(where: Places) -> None:
    write(where.ssh_config[0], "Host gpu\n  Port 2201\n")
    write(where.ssh_config[1], "Host *\n  Port 2202\n  User everyone\n  ProxyCommand nc %h %p\n")
    found = resolve("gpu", where)
    assert (found.port, found.user, found.proxy_command) == (2201, "everyone", True)
    assert found.ssh_config == where.ssh_config


def test_a_typed_host_takes_what_stands_in_the_config_and_what_was_typed_wins(where: Places) -> None:
    write(where.ssh_config[0], "Host gpu\n  HostName 10.0.0.9\n  User conf\n  Port 2201\n")
    found = resolve("typed@gpu:99", where)
    assert (found.name, found.address, found.user, found.port) == ("typed@gpu:99", "10.0.0.9", "typed", 99)
    assert found.listed
    assert resolve("nowhere", where).user == "me"


def test_an_unlisted_name_offers_the_nearest_known_one(where: Places) -> None:
    write(where.hosts, "[gpu-01]\n[build]\n")
    write(where.ssh_config[0], "Host trainer web-*\n")
    assert resolve("gpu-0l", where).near == "gpu-01"
    assert resolve("me@trainr", where).near == "trainer"
    far = resolve("quite-different", where)
    assert far.near is None and not far.listed


def test_jump_hosts_are_targets_of_their_own_first_hop_first(where: Places) -> None:
    write(
        where.ssh_config[0],
        "Host gpu\n  ProxyJump outer,me@inner:2222\nHost outer\n  HostName 1.1.1.1\n  ProxyJump gate\n"
        "Host inner\n  ProxyJump never-used\nHost gate\n  Port 2022\n",
    )
    jumps = resolve("gpu", where).jumps
    assert [(hop.name, hop.address, hop.port) for hop in jumps] == [
        ("gate", "gate", 2022),
        ("outer", "1.1.1.1", 22),
        ("inner", "inner", 2222),
    ]
    assert jumps[2].user == "me" and all(hop.jumps == () for hop in jumps)


def test_jumping_in_a_circle_is_told(where: Places) -> None:
    write(where.ssh_config[0], "Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    with pytest.raises(UsageError, match="circle"):
        resolve("a", where)


def test_a_line_of_the_ssh_config_that_cannot_be_read_is_told(where: Places) -> None:
    write(where.ssh_config[0], "Host gpu\n  Port many\n")
    with pytest.raises(UsageError, match="line 2"):
        resolve("gpu", where)


def test_known_hosts_files_named_in_the_config_are_the_ones_used(where: Places) -> None:
    write(
        where.ssh_config[0],
        "Host gpu\n  UserKnownHostsFile ~/mine none\n  GlobalKnownHostsFile /g\nHost off\n  UserKnownHostsFile none\n  GlobalKnownHostsFile none\n",
    )
    assert resolve("gpu", where).known_hosts == (Path.home() / "mine", Path("none"), Path("/g"))
    off = resolve("off", where)
    assert off.known_hosts == () and off.own_known_hosts == where.known_hosts  # never "trust anything"


def test_names_come_from_all_places_in_order(where: Places, tmp_path: Path) -> None:
    write(where.hosts, "[gpu-01]\n[alias]\n")
    write(tmp_path / ".ssh/more/work", "Host w1 w2 !not *.wild\n")
    write(where.ssh_config[0], "Include more/*\nHost = alias\nMatch host x\n")
    assert host_names(where) == ("gpu-01", "alias", "w1", "w2")
    write_demo(where.demo, demo(tmp_path))
    assert host_names(where)[0] == "demo"


def demo(folder: Path, pid: int | None = None) -> DemoBox:
    return DemoBox("127.0.0.1", 40022, "me", folder / "key", folder / "known_hosts", pid or os.getpid())


def test_demo_is_a_host_while_one_runs(where: Places, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="start one with `ddtree demo`"):
        resolve("demo", where)
    write_demo(where.demo, demo(tmp_path))
    assert stat.S_IMODE(where.demo.stat().st_mode) == 0o600
    found = resolve("demo", where)
    assert (found.address, found.port, found.scope, found.tag) == ("127.0.0.1", 40022, "supervisor", "DEMO")
    assert found.identity_files == (tmp_path / "key",) and found.own_known_hosts == tmp_path / "known_hosts"
    remove_demo(where.demo, os.getpid() + 1)
    assert read_demo(where.demo) == demo(tmp_path)
    remove_demo(where.demo, os.getpid())
    assert not where.demo.exists()


def test_a_demo_that_was_killed_or_wrote_half_a_file_is_none(where: Places, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    write_demo(where.demo, demo(tmp_path, pid=child))
    assert read_demo(where.demo) is None
    write(where.demo, '{"address": "127.0.0.1", "po')
    assert read_demo(where.demo) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpu", (None, "gpu", None)),
        ("ops@gpu", ("ops", "gpu", None)),
        ("ops@gpu:2222", ("ops", "gpu", 2222)),
        ("ssh://ops@gpu:2222/", ("ops", "gpu", 2222)),
        ("me@corp.example@gpu", ("me@corp.example", "gpu", None)),
        ("[fe80::1]:22", (None, "fe80::1", 22)),
        ("fe80::1", (None, "fe80::1", None)),
    ],
)
def test_a_host_is_taken_apart_as_openssh_does(name: str, expected: tuple[str | None, str, int | None]) -> None:
    assert split_host(name) == expected


@pytest.mark.parametrize(
    "name", ["", "@gpu", "gpu:", "gpu:0", "gpu:65536", "gpu:x", "-oProxyCommand=x", "a b", "-u@gpu"]
)
def test_what_cannot_be_a_host_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        split_host(name)


@given(st.text(max_size=30))
def test_no_name_raises_anything_but_a_usage_error(name: str) -> None:
    try:
        _, host, port = split_host(name)
    except UsageError:
        return
    assert host and not host.startswith("-") and (port is None or 1 <= port <= 65535)


def test_the_words_kept_from_hosts_are_the_verbs() -> None:
    assert sorted(hosts_file.VERBS) == sorted(VERBS)


@pytest.mark.parametrize(
    ("name", "said"), [("status", "`ddtree status` is a verb"), ("demo", "the box of `ddtree demo`")]
)
def test_a_host_named_like_a_verb_is_refused_with_its_line(where: Places, name: str, said: str) -> None:
    write(where.hosts, f"[gpu-01]\n\n[{name}]\nport = 23\n")
    with pytest.raises(UsageError) as caught:
        host_names(where)
    mend = f"call the host something else, for example [{name}-01]"
    assert str(caught.value) == f"{where.hosts}, line 3: {name} is no name for a host: {said}; {mend}"


def test_a_misspelt_option_is_named_when_the_host_cannot_be_reached(
    where: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        port = nobody_listens.getsockname()[1]
        write(where.ssh_config[0], f"Host gpu-01\n  Hostname 127.0.0.1\n  Port {port}\n  UserName ops\n")
        monkeypatch.setattr("console.host.places", lambda: where)
        with pytest.raises(
            LinkError, match=r"on that port\?; \S+/config line 4: no option username, did you mean User\?"
        ):
            asyncio.run(open_host("gpu-01"))
