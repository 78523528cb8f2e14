"""Every playbook over real SSH on the real server, at small sizes: it ends well, and with a verdict that it declares."""

from __future__ import annotations

from typing import Any

import pytest
from test_run_end_to_end import built_in, gathered

from console.analysis.run_verdict import exit_code_of
from console.experiments.conduct import Bench, run
from console.experiments.export import FORMATS, export
from console.experiments.report import text_report

SMALL: dict[str, dict[str, Any]] = {
    "accept_drift": {"tokens": 200, "prompt": 32, "window": 25, "reps": 2, "budget_seconds": 60},
    "budget_sweep": {"tokens": 32, "short": 32, "long": 0, "budgets": [4, 16], "reps": 2, "budget_seconds": 60},
    "burst_vs_full": {"tokens": 160, "prompt": 64, "last": 80, "reps": 2, "budget_seconds": 60},
    "client_vs_box": {"tokens": 48, "streams": 2, "budget_seconds": 60},
    "concurrency_sweep": {"levels": [1, 2], "tokens": 32, "prompt": 32, "budget_seconds": 60},
    "context_curve": {"levels": [32, 64, 128, 256, 512], "tokens": 32, "reps": 2, "budget_seconds": 60},
    "diagnose": {"tokens": 32, "short": 48, "long": 256, "budget_seconds": 60},
    "drafter_kinds": {"tokens": 32, "short": 48, "long": 0, "reps": 2, "budget_seconds": 60},
    "kv_capacity": {"probe": 600, "budget_seconds": 60},
    "lossless": {"prompts": 4, "tokens": 32, "long": 256, "budget_seconds": 60},
    "output_sweep": {"outputs": [16, 32, 64, 96, 128], "prompt": 32, "reps": 2, "budget_seconds": 60},
    "quick_probe": {"tokens": 48, "prompt": 48, "reps": 2},
}  # the two that restart the service have tests of their own


@pytest.mark.parametrize("name", sorted(SMALL))
async def test_it_ends_with_a_verdict_that_it_declares(drawn: Bench, name: str) -> None:
    playbook = built_in(name)
    events = await gathered(run(drawn, playbook, SMALL[name]), 240)
    result = events[-1]
    assert result["status"] == "done", (result["message"], [e for e in events if e["type"] == "error"])
    verdict = result["verdict"]
    assert verdict["class"].split(":")[0] in playbook.verdicts, verdict["headline"]
    assert not verdict["class"].startswith("void"), verdict["headline"]
    assert result["exit"] == exit_code_of(verdict["class"])
    assert verdict["next"] and "nan" not in verdict["headline"].lower() and "None" not in verdict["headline"]
    stored = drawn.store.show(result["run_id"])
    assert verdict["headline"] in text_report(stored)
    assert all(export(stored, one) for one in FORMATS)
    drawn.store.rebuild()
    assert drawn.store.show(result["run_id"]).result == stored.result


def test_small_sizes_cover_the_catalogue_but_for_what_restarts() -> None:
    assert {*SMALL, "page_size_ab", "parser_ab"} == {
        "quick_probe", "context_curve", "output_sweep", "accept_drift", "drafter_kinds", "burst_vs_full", "client_vs_box", "parser_ab",
        "page_size_ab", "budget_sweep", "concurrency_sweep", "kv_capacity", "lossless", "diagnose",
    }  # fmt: skip
