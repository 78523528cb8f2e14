"""`eval-drafter` on the tiny target with words: its rows, and that they hang together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.eval_drafter import main as eval_drafter
from engine.training.prompts import KINDS
from engine.training.questions import after_turns
from engine.training.responses import Question

DRAFTER = Path(__file__).parents[2] / "data" / "tiny-ddtree" / "drafter"


def words(model: Path, *more: str) -> list[str]:
    return ["--model", str(model), "--drafter", str(DRAFTER), "--prompts", "1", "--threads", "1", *more]


def test_rows_for_every_kind_and_context_hang_together(
    speaking_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = words(speaking_model, "--max-tokens", "40", "--contexts", "0,100", "--budgets", "4,16", "--json")
    assert eval_drafter(asked) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["block_size"] == 8
    assert {(row["context"], row["kind"]) for row in report["rows"]} == {
        (context, kind) for context in (0, 100) for kind in (*KINDS, "all")
    }
    whole = {row["context"]: row for row in report["rows"] if row["kind"] == "all"}
    for row in whole.values():
        assert row["chain"] >= 1.0
        assert 1.0 <= row["tree"]["4"] <= row["tree"]["16"] + 1e-9
        assert 1 + sum(row["survival"]) == pytest.approx(row["tree"]["16"], abs=0.01)
        assert row["branch_gain"] <= row["tree"]["16"] - 1
        assert row["at_budget"] == 16
        parts = [other for other in report["rows"] if other["context"] == row["context"] and other["kind"] != "all"]
        assert row["rounds"] == sum(part["rounds"] for part in parts) > len(KINDS)


def test_without_json_a_table_with_a_line_for_each_kind(
    speaking_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert eval_drafter(words(speaking_model, "--max-tokens", "24", "--budgets", "7")) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["context", "text", "chain", "tree", "7", "spine", "gain", "calib.", "rounds"]
    assert [line.split()[1] for line in lines[:-1]] == [*sorted(KINDS), "all"]
    assert lines[-1].startswith("kept at depth 1, 2, … with 7 nodes, short context: ")


def test_a_context_that_the_target_lacks_is_refused_with_what_it_has(speaking_model: Path) -> None:
    with pytest.raises(EngineError, match=r"come to \d{4} tokens, the target takes 2048"):
        eval_drafter(words(speaking_model, "--contexts", "5000"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--contexts", "short"), "'short' is no list such as 4,16,64"),
        (("--contexts", "-1"), "-1 is below 0"),
        (("--budgets", "0"), "0 is outside 1-1024"),
    ],
)
def test_a_list_that_is_none_is_refused(speaking_model: Path, more: tuple[str, ...], said: str) -> None:
    with pytest.raises(EngineError, match=said):
        eval_drafter(words(speaking_model, "=".join(more)))


def test_a_context_is_made_of_turns_and_has_exactly_the_tokens_asked_for() -> None:
    question = Question((7, 8), "chat", 0.0, 5)
    late = after_turns(question, [(1, 2, 3), (4,)], 6)
    assert late.token_ids == (1, 2, 3, 4, 1, 2, 7, 8)
    assert after_turns(question, [], 6) == question
