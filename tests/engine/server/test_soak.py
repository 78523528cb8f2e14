"""The soak itself: a few seconds of it find nothing, and each of its judgements can find something."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import soak


def test_a_few_seconds_find_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--minutes", "0.04", "--clients", "4"]) == 0
    told = capsys.readouterr().out
    assert "at rest: running 0, queued 0, pages held 0" in told
    assert "exit status 0" in told
    assert told.endswith("0 faults\n")


def test_another_answer_to_the_same_question_is_a_fault() -> None:
    seen = soak.Seen()
    seen.compare("q", [5, 6])
    seen.compare("q", [5, 6, 7])
    seen.compare("q", [5, 6, 7, 8])
    assert (seen.faults, seen.compared) == ([], 5)
    seen.compare("q", [5, 6, 9])
    assert seen.faults == ["q brought [5, 6, 7] and now [5, 6, 9]"]


def test_figures_that_do_not_add_up_are_a_fault() -> None:
    seen = soak.Seen()
    soak.check_figures({"commit_lengths_hist": [2, 0, 1]}, 6, seen)
    assert seen.faults == []
    soak.check_figures({"commit_lengths_hist": [2, 0, 1]}, 5, seen)
    assert len(seen.faults) == 1


@pytest.mark.parametrize(
    ("lines", "faults"),
    [
        (["<6>ready seq=1", "<6>request seq=2 finish=length ok=1"], 0),
        (["<6>ready seq=1", "<6>request seq=3 finish=length ok=1"], 1),
        (["<6>ready seq=1", "<6>request seq=2 finish=error ok=1"], 1),
        (["<6>ready seq=1", "<3>error seq=2 where=step"], 1),
        (["<6>ready seq=1", "Traceback (most recent call last):"], 2),
    ],
)
def test_the_log_is_judged(tmp_path: Path, lines: list[str], faults: int) -> None:
    log, seen = tmp_path / "log", soak.Seen()
    log.write_text("\n".join(lines))
    soak.judge_log(log, seen)
    assert len(seen.faults) == faults
