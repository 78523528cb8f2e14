"""Two runs of the same work held against each other: effects on rate, commit length and step time, and what changed.

The runs lie apart in time, so drift of the machine between them is part of every difference; an A/B playbook would have
interleaved them. Hence the larger smallest effect of interest, and the check of what else was different.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from scipy import stats

from console.analysis.attribution import Factors, split_step_change
from console.analysis.effects import REGRESSION_DELTA, Cell, Effect, decide, effect_of_cells, holm, spread_of_cells
from console.analysis.verdicts import REGRESSION, Caution, Evidence, Verdict, classify

Row = Mapping[str, Any]
BLAME_ALPHA = 0.01
"""A regression is named where its interval excludes no change at this level: several figures are looked at in every
comparison, and the one that is blamed in the night has to be right. Effects are told with 95 % intervals all the same."""
Figure = Callable[[Row], float | None]
MIN_CHUNKS_A_STEP = 0.5
"""Fewer chunks a step than this, and the gaps between chunks say nothing about steps."""
STANDS_OUT = 1.1
"""A level or kind is named where it is so many times worse than all of them together."""


@dataclass(frozen=True)
class Suspect:
    """One text kind or context level whose figure got worse, with the interval adjusted for how many were looked at."""

    name: str  # "kind code", "level 3000"
    factor: float  # slowdown factor
    ci: tuple[float, float]
    p: float
    at_best: float | None = None  # the factor between the fastest requests of either side alone, for step times

    @property
    def regressed(self) -> bool:
        """Whether it is worse beyond doubt and throughout: what disturbs a box now and then leaves the fastest alone."""
        return self.worse and (self.at_best is None or self.at_best > 1.0 + REGRESSION)

    @property
    def worse(self) -> bool:
        """Whether it is worse beyond doubt, over all requests."""
        return self.factor > 1.0 + REGRESSION and self.ci[0] > 1.0


@dataclass(frozen=True)
class Comparison:
    """Effects after / before over the cells (kind, level, arm) that both runs have."""

    rate: Effect
    commit: Effect
    step: Effect
    wall: Effect | None  # client's decode time over the engine's: what of the wall time lies outside steps
    slower_step: Suspect | None  # over all cells, at the level of blame
    lost_commit: Suspect | None
    steps_by_level: tuple[Suspect, ...]  # worst first
    commits_by_kind: tuple[Suspect, ...]
    cells: int
    left_out: int
    stages: Mapping[str, float] | None = None  # ln of the step's slowdown, split over its stages; they sum to it

    @property
    def disturbed(self) -> Suspect | None:
        """A step time that is worse over all requests and not in the fastest of them; None where there is no such."""
        steps = (*((self.slower_step,) if self.slower_step is not None else ()), *self.steps_by_level)
        return next((one for one in steps if one.worse and not one.regressed), None)

    @property
    def factors(self) -> Factors:
        """Slowdown factors: the work is the same, so context is 1 and the measured step is the kernel's."""
        residual = 1.0 if self.wall is None else self.wall.ratio
        return Factors(
            total=residual / self.rate.ratio,
            acceptance=1.0 / self.commit.ratio,
            context=1.0,
            kernel=self.step.ratio,
            residual=residual,
            kernel_measured=True,
            residual_ci=None if self.wall is None else self.wall.ci,
        )

    def to_json(self) -> dict[str, Any]:
        """`{"effects", "factors", "by_level", "by_kind", "cells", "left_out"}`."""
        return {
            "effects": {
                "tok_s": self.rate.to_json(),
                "commit_length": self.commit.to_json(),
                "step_ms": self.step.to_json(),
                "wall_outside_steps": None if self.wall is None else self.wall.to_json(),
            },
            "factors": factors_json(self),
            "by_level": [_suspect_json(one) for one in self.steps_by_level],
            "by_kind": [_suspect_json(one) for one in self.commits_by_kind],
            "stages": None if self.stages is None else dict(self.stages),
            "cells": self.cells,
            "left_out": self.left_out,
        }


def _suspect_json(one: Suspect) -> dict[str, Any]:
    return {"name": one.name, "factor": one.factor, "ci": list(one.ci), "p": one.p}


def factors_json(found: Comparison) -> dict[str, Any]:
    """The contract's `attribution`, with the intervals of the measured parts."""
    return {
        **found.factors.to_json(),
        "acceptance_ci": _inverse(found.commit.ci),
        "kernel_ci": None if found.step.ci is None else list(found.step.ci),
    }


def _inverse(ci: tuple[float, float] | None) -> list[float] | None:
    return None if ci is None else [1.0 / ci[1], 1.0 / ci[0]]


def compare_rows(before: Sequence[Row], after: Sequence[Row]) -> Comparison | None:
    """Compare the requests of two runs; None without a cell that both have, or without exact steps in it."""
    cells = {name: (_usable(before, name), _usable(after, name)) for name in {_cell(row) for row in (*before, *after)}}
    both = {name: sides for name, sides in cells.items() if sides[0] and sides[1]}
    if not both:
        return None

    def cells_of(figure: Figure, names: Iterable[Any]) -> list[Cell]:
        return [Cell(_figures(both[name][0], figure), _figures(both[name][1], figure)) for name in names]

    def effect(figure: Figure, names: Iterable[Any], level: float = 0.95) -> Effect | None:
        return effect_of_cells(cells_of(figure, names), level=level, lent=spread_of_cells(cells_of(figure, both)))

    rate, commit, step = (effect(figure, both) for figure in (_rate, _commit, _step))
    if rate is None or commit is None or step is None:
        return None
    by_level = _grouped(both, lambda name: f"level {name[1]:g}" if isinstance(name[1], int | float) else str(name[1]))
    by_kind = _grouped(both, lambda name: f"kind {name[0]}")
    everything = {"all": list(both)}
    steps, commits = (
        partial(_suspects, lambda n, at: effect(_step, n, at), at_best=lambda n: _at_best(cells_of(_step, n))),
        partial(_suspects, lambda n, at: effect(_commit, n, at), at_best=lambda n: None),
    )
    return Comparison(
        rate,
        commit,
        step,
        effect(_outside, both),
        next(iter(steps(everything, inverse=False)), None),
        next(iter(commits(everything, inverse=True)), None),
        steps(by_level, inverse=False),
        commits(by_kind, inverse=True),
        len(both),
        len(cells) - len(both),
        _stages(both.values()),
    )


def _cell(row: Row) -> tuple[Any, Any, Any]:
    level = row.get("level")
    return row.get("kind"), row.get("P") if level is None else level, row.get("arm")


def _usable(rows: Sequence[Row], name: tuple[Any, Any, Any]) -> list[Row]:
    return [row for row in rows if _cell(row) == name and row.get("steps") and row.get("decode_s") and row.get("N")]


def _figures(rows: Sequence[Row], figure: Figure) -> tuple[float, ...]:
    found = (figure(row) for row in rows)
    return tuple(value for value in found if value is not None and value > 0)


def _rate(row: Row) -> float:
    return float(row["N"] / row["decode_s"])


def _commit(row: Row) -> float:
    return float(row["N"] / row["steps"])


def _step(row: Row) -> float:
    return float(1000.0 * row["decode_s"] / row["steps"])


def _outside(row: Row) -> float | None:
    """Wall time as the client saw it over the engine's own decode time; waits in the queue count, prefill does not."""
    client = row.get("client_decode_s")
    if not client or row.get("chunks", 0) < MIN_CHUNKS_A_STEP * row["steps"]:
        return None
    return float((client + (row.get("queue_s") or 0.0)) / row["decode_s"])


def _stages(cells: Iterable[tuple[Sequence[Row], Sequence[Row]]]) -> dict[str, float] | None:
    """The change of the step split over its stages by log-mean weights; None where a side does not tell its stages."""
    sides: list[dict[str, float]] = []
    for side in zip(*cells, strict=True):
        told = [row["stages_ms"] for rows in side for row in rows if row.get("stages_ms")]
        if not told:
            return None
        names = dict.fromkeys(name for one in told for name in one)
        sides.append({name: sum(one.get(name, 0.0) for one in told) / len(told) for name in names})
    return split_step_change(sides[0], sides[1]) if all(sum(side.values()) > 0 for side in sides) else None


def _worst_stage(found: Comparison) -> str:
    """The stage in which most of a slower step lies, where one has the half of it."""
    if not found.stages:
        return ""
    whole = math.fsum(found.stages.values())
    name = max(found.stages, key=lambda stage: (found.stages or {})[stage])
    share = found.stages[name] / whole if whole > 0 else 0.0
    return f", {100 * min(share, 1.0):.0f} % of it in {name}" if share >= 0.5 else ""


def _grouped(names: Iterable[Any], group: Callable[[Any], str]) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for name in names:
        groups.setdefault(group(name), []).append(name)
    return groups


def _at_best(cells: Sequence[Cell]) -> float:
    """After / before between the fastest requests of each cell, as a mean of logarithms over cells."""
    return math.exp(math.fsum(math.log(min(cell.after) / min(cell.before)) for cell in cells) / len(cells))


def _suspects(
    effect: Callable[[list[Any], float], Effect | None],
    groups: Mapping[str, list[Any]],
    *,
    at_best: Callable[[list[Any]], float | None],
    inverse: bool,
) -> tuple[Suspect, ...]:
    """Each group's slowdown factor, worst first; Bonferroni intervals and Holm's p, since the worst is picked out."""
    level = 1.0 - BLAME_ALPHA / max(len(groups), 1)
    found: list[tuple[str, float, tuple[float, float], float]] = []
    for name, members in groups.items():
        one = effect(members, level)
        if one is None or one.ci is None or not one.sd:
            continue
        half = math.log(one.ci[1] / one.ci[0]) / 2
        t = abs(math.log(one.ratio)) / (half / float(stats.t.ppf(0.5 + level / 2, one.freedom))) if half > 0 else 0.0
        p = 2.0 * float(stats.t.sf(t, one.freedom))
        ci = (1.0 / one.ci[1], 1.0 / one.ci[0]) if inverse else one.ci
        found.append((name, 1.0 / one.ratio if inverse else one.ratio, ci, p))
    adjusted = holm([p for *_, p in found])
    suspects = [
        Suspect(name, factor, ci, p, at_best(groups[name]))
        for (name, factor, ci, _), p in zip(found, adjusted, strict=True)
    ]
    return tuple(sorted(suspects, key=lambda one: -one.factor))


# --- the verdict


def verdict_of_comparison(
    found: Comparison | None, *, refused: str | None = None, void: str | None = None, covariate: str | None = None
) -> Verdict:
    """Class and sentence for two runs. `refused` says why they may not be compared, `void` which of them counts not."""
    if void is not None:
        return Verdict(f"void:{void.split(':', 1)[-1]}", void, (), "mend the cause and run it again")
    if refused is not None:
        return Verdict("not_comparable", refused, (), "run the same playbook with the same parameters on both")
    if found is None:
        return Verdict(
            "inconclusive", "no text kind and context was measured with exact steps in both runs", (),
            "run the same playbook with the same parameters on both",
        )  # fmt: skip
    klass, suspect = _class(found, covariate)
    cautions = _cautions(found)
    following = (
        _NEXT["disturbed"] if klass == "inconclusive" and found.disturbed else _NEXT.get(klass, "nothing to mend")
    )
    return Verdict(klass, _headline(klass, found, suspect), cautions, following)


def _class(found: Comparison, covariate: str | None) -> tuple[str, Suspect | None]:
    """The class, and the level or kind that stands out where one does."""
    level = next((one for one in found.steps_by_level if one.regressed), None)
    if found.slower_step is not None and found.slower_step.regressed:
        return "step_regression", _standing_out(level, found.slower_step.factor)
    if level is not None:
        return "step_regression", level
    kind = next((one for one in found.commits_by_kind if one.regressed), None)
    if found.lost_commit is not None and found.lost_commit.regressed:
        return "acceptance_regression", _standing_out(kind, found.lost_commit.factor)
    if kind is not None:
        return "acceptance_regression", kind
    if found.disturbed is not None:
        return "inconclusive", found.disturbed
    residual = found.factors.residual
    klass = classify(Evidence(residual=residual, residual_ci=found.factors.residual_ci, covariate=covariate))
    if klass not in ("explained", "inconclusive"):
        return klass, None
    return decide(found.rate, REGRESSION_DELTA), None


def _standing_out(suspect: Suspect | None, factor: float) -> Suspect | None:
    return suspect if suspect is not None and suspect.factor > factor * STANDS_OUT else None


_NEXT = {
    "step_regression": "compare engine version, settings and clocks of the two runs",
    "acceptance_regression": "compare drafter, engine version and prompt set of the two runs",
    "inconclusive": "repeat both runs with more repeats",
    "small": "repeat both runs with more repeats if so small a change matters",
    "unexplained": "look for other load on the box, then run it again",
    "disturbed": "see what else runs on the box, then run it again",
    "contention": "find who else asks the engine",
    "throttled": "look at power cap and temperature of the GPUs",
    "network": "run client_vs_box",
}


def _headline(klass: str, found: Comparison, suspect: Suspect | None) -> str:
    split = found.factors
    word, total = ("slower", split.total) if split.total >= 1.0 else ("faster", 1.0 / split.total)
    where = ""
    if suspect is not None and klass != "inconclusive":
        overall = split.kernel if klass == "step_regression" else split.acceptance
        alone = overall <= 1.0 + REGRESSION  # the mean over all cells hides it
        where = f"{' at' if alone else ', worst at'} {suspect.name} ({suspect.factor:.2f}x, p {suspect.p:.2g})"
    meaning = {
        "step_regression": f"step time has regressed{where}{_worst_stage(found)}",
        "acceptance_regression": f"commit length has regressed{where}",
        "equivalent": f"no change beyond {100 * REGRESSION_DELTA:.0f} %",
        "faster": "faster beyond doubt",
        "slower": "slower beyond doubt",
        "small": f"a change, and not surely one beyond {100 * REGRESSION_DELTA:.0f} %",
        "inconclusive": _undecided(found),
        "contention": "somebody else used the engine",
        "unexplained": "wall time outside steps, from no cause that was seen",
    }.get(klass, klass)
    return (
        f"{word} by {total:.2f}x = acceptance {split.acceptance:.2f}x{_span(_inverse(found.commit.ci))} x step "
        f"{split.kernel:.2f}x{_span(found.step.ci)} x outside steps {split.residual:.2f}x{_span(split.residual_ci)}: {meaning}"
    )


def _undecided(found: Comparison) -> str:
    if found.disturbed is None:
        return "the intervals are too wide to say"
    factor, best = found.disturbed.factor, found.disturbed.at_best
    where = "" if found.disturbed.name == "all" else f" at {found.disturbed.name}"
    return f"steps{where} are {factor:.2f}x over all requests and {best:.2f}x between the fastest of each kind: disturbed now and then"


def _span(ci: Sequence[float] | None) -> str:
    return "" if ci is None else f" [{ci[0]:.2f}, {ci[1]:.2f}]"


def _cautions(found: Comparison) -> tuple[Caution, ...]:
    out = [
        Caution("not_interleaved", "the runs lie apart in time: drift of the machine between them is in the figures")
    ]
    if found.left_out:
        out.append(Caution("cells", f"{found.left_out} of {found.cells + found.left_out} cells are in one run only"))
    return tuple(out)
