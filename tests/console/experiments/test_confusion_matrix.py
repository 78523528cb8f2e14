"""What `make bench` makes of its verdicts: the table, and whether it holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench import confusion


def record(cause: str, klass: str, seed: int = 1) -> dict[str, Any]:
    return {
        "cause": cause, "class": klass, "seed": seed, "seconds": 36.0, "load": 1.5, "lanes": 2, "pace": 1.0, "headline": "",
        "status": "done",
    }  # fmt: skip


SOUND = [record("nothing at all", "healthy", seed) for seed in range(10)]
LOOPS = [record("repetition loop", "void:degenerate_output", seed) for seed in range(9)]


def test_the_table_counts_what_was_named_rightly_and_names_the_rest() -> None:
    found = [*SOUND, *LOOPS, record("repetition loop", "healthy"), record("throttled clock", "throttled")]
    rows = confusion.matrix(found).splitlines()
    assert "| nothing at all | healthy | 10 of 10 | - |" in rows
    assert "| repetition loop | void:degenerate_output | 9 of 10 | healthy 1 |" in rows
    assert "| all | | 20 of 21 (95.2 %) | |" in rows
    assert not any("warm prefix cache" in row for row in rows)


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        ([*SOUND, *LOOPS, record("repetition loop", "healthy")], True),
        ([*SOUND[:3], record("repetition loop", "healthy")], False),  # three of four
        ([*SOUND, *LOOPS, *LOOPS, record("nothing at all", "contention")], False),  # one blamed
        ([*SOUND, *LOOPS, *LOOPS, record("nothing at all", "inconclusive")], True),
        ([], False),
    ],
)
def test_it_holds_with_enough_right_and_nobody_blamed_for_nothing(found: list[dict[str, Any]], holds: bool) -> None:
    assert confusion.holds(found) is holds


def test_a_folder_with_verdicts_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results.jsonl").write_text(json.dumps(SOUND[0]) + "\n")
    monkeypatch.setattr(sys, "argv", ["confusion", "--out", str(tmp_path)])
    assert confusion.main() == 2
    assert "go on with --resume" in capsys.readouterr().err


def test_an_unknown_cause_is_named_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["confusion", "--only", "gremlins"])
    with pytest.raises(SystemExit) as ended:
        confusion.main()
    assert ended.value.code == 2
    assert "no cause is called 'gremlins'" in capsys.readouterr().err
