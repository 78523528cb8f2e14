"""What `ddtree explain` shows a person: measured and modelled figures never in one column."""

from __future__ import annotations

import json
from pathlib import Path

from console.analysis.explain import explain
from console.verbs.analysis import explanation_text
from console.verbs.words import Style

CASE = Path(__file__).parents[2] / "data" / "founding_case.json"


def test_modelled_figures_stand_in_columns_marked_as_such() -> None:
    text = explanation_text(explain(json.loads(CASE.read_text())), Style())
    lines = text.splitlines()
    head = next(line for line in lines if line.startswith("row "))
    assert head.split("  ")[-1].endswith("commit *") and head.count("*") == 3
    long = next(line for line in lines if line.startswith("long "))
    assert long.split()[1:] == ["3451", "2.90", "32.7", "102.9", "28.2", "3.37"]  # no step was measured there
    step = next(line for line in lines if line.startswith("step at 5500"))
    assert step.split()[3:] == ["5500", "144.0", "144.0"]
    kernel = next(line for line in lines if line.startswith("kernel"))
    assert "not measured" in kernel and "1.00" not in kernel
    assert any(line.startswith("context *") for line in lines)
    assert "* modelled: computed from the fit and the other figures, not measured" in text
