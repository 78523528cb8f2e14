"""Small pure parts of the connection: lines, retries, the first look at a box, tar streams."""

from __future__ import annotations

import io
import random
import tarfile
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.box.errors import BoxError
from console.box.facts import parse_facts
from console.box.stream import LineSplitter
from console.box.timing import Timing, retry_delays
from console.box.transfer import checksums, pack, part_name


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line), max_size=20), st.data())
def test_lines_are_the_same_however_the_bytes_arrive(lines: list[bytes], data: st.DataObject) -> None:
    text = b"".join(line + b"\n" for line in lines) + data.draw(st.sampled_from([b"", b"torn off"]))
    splitter, found, at = LineSplitter(), list[bytes](), 0
    while at < len(text):
        step = data.draw(st.integers(1, 30))
        found += splitter.feed(text[at : at + step])
        at += step
    assert found == lines


def test_a_line_without_end_is_given_up_and_the_next_one_is_whole() -> None:
    splitter = LineSplitter(longest=10)
    assert splitter.feed(b"x" * 8) == []
    assert splitter.feed(b"x" * 8) == []
    assert splitter.feed(b"rest\nnext\n") == [b"next"]
    assert splitter.dropped == 1


@given(st.integers(0, 2**32))
def test_retries_back_off_to_the_limit_and_never_beyond(seed: int) -> None:
    timing = Timing(first_retry_s=0.5, last_retry_s=30.0)
    delays = list(islice(retry_delays(timing, random.Random(seed)), 20))
    bounds = [min(0.5 * 2**n, 30.0) for n in range(20)]
    assert all(0 <= delay <= bound for delay, bound in zip(delays, bounds, strict=True))


def test_retries_are_spread_and_do_not_come_in_step() -> None:
    firsts = {round(next(retry_delays(Timing(), random.Random(seed))), 3) for seed in range(50)}
    assert len(firsts) > 25


def test_the_facts_are_read_behind_a_greeting() -> None:
    facts = parse_facts(b"Hello!\nddtree-facts-follow\n1001\nops\n/home/ops\nyes\nsystemd 252 (252.39)\n+PAM\n", "box")
    assert (facts.uid, facts.user, facts.home, facts.has_runtime_dir) == (1001, "ops", "/home/ops", True)
    assert (facts.systemd_version, facts.greeting) == (252, b"Hello!\n")
    assert facts.runtime_dir == "/run/user/1001"
    assert parse_facts(b"ddtree-facts-follow\n0\nroot\n/root\nno\n", "box").systemd_version is None


@pytest.mark.parametrize("output", [b"", b"This account is not available.\n", b"ddtree-facts-follow\n\n\n\n\n"])
def test_a_login_shell_that_runs_nothing_is_told(output: bytes) -> None:
    with pytest.raises(BoxError, match="login shell"):
        parse_facts(output, "box")


def test_a_packed_tree_has_its_folders_modes_and_contents() -> None:
    data = pack({"a/b/c.py": b"1", "run": b"22"}, 0o600, frozenset({"run"}))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = {entry.name: (entry.isdir(), entry.mode, entry.size) for entry in archive}
    assert found == {
        "a": (True, 0o700, 0),
        "a/b": (True, 0o700, 0),
        "a/b/c.py": (False, 0o600, 1),
        "run": (False, 0o700, 2),
    }


def test_checksums_are_what_sha256sum_reads() -> None:
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert checksums({"b": b"", "a b": b""}) == f"{empty}  a b\n{empty}  b\n".encode()


def test_a_name_for_what_is_not_finished_lies_beside_it_and_is_new_each_time() -> None:
    names = {part_name("/a/b/file") for _ in range(100)}
    assert len(names) == 100 and all(name.startswith("/a/b/.file.") and name.endswith(".part") for name in names)
