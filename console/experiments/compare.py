"""Two stored runs held against each other, or the reason why that would say nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from console.analysis.comparison import Comparison, compare_rows, verdict_of_comparison
from console.analysis.verdicts import Caution, Verdict
from console.experiments.conditions import Difference, differing, refusal
from console.experiments.reading import environment_of, sample_rows
from console.experiments.store import StoredRun

_OF_THE_BOX = ("busy_host", "unsteady", "throttled")
QUEUED_SHARE = 0.02
"""A request that waited longer than this share of its decode time was not alone."""


@dataclass(frozen=True)
class Compared:
    """What came of a comparison. `found` is None where it was refused or nothing was measured in both."""

    before: StoredRun
    after: StoredRun
    differences: tuple[Difference, ...]  # hard keys
    soft: tuple[Difference, ...]
    refused: str | None
    found: Comparison | None
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """`{"before", "after", "comparable", "refused", "factor", "differing", "soft", "comparison", "verdict"}`."""
        return {
            "before": _head(self.before),
            "after": _head(self.after),
            "comparable": self.refused is None,
            "refused": self.refused,
            "factor": self.differences[0].to_json() if len(self.differences) == 1 and not self.refused else None,
            "differing": [one.to_json() for one in self.differences],
            "soft": [one.to_json() for one in self.soft],
            "comparison": None if self.found is None else self.found.to_json(),
            "verdict": self.verdict.to_json(),
        }


def compare(before: StoredRun, after: StoredRun) -> Compared:
    """Hold `after` against `before`. Refuses, with the keys that differ, what is not comparable."""
    ours, theirs = before.conditions, after.conditions
    differences = differing(ours.hard, theirs.hard)
    soft = tuple(one for one in differing(ours.soft, theirs.soft) if None not in (one.before, one.after))
    void = _void(before) or _void(after)
    refused = None if void else refusal(differences)
    found = None
    if not void and not refused:
        found = compare_rows(sample_rows(before.events), sample_rows(after.events))
    verdict = verdict_of_comparison(
        found, refused=refused, void=void, covariate=covariate_of(before.events, after.events)
    )
    if found is not None:
        disturbed = (*_disturbances(before, "before"), *_disturbances(after, "after"))
        verdict = replace(verdict, warnings=(*verdict.warnings, *disturbed))
    return Compared(before, after, differences, soft, refused, found, verdict)


def _disturbances(run: StoredRun, which: str) -> list[Caution]:
    """What a run itself said of the box it ran on: it holds for every comparison with it."""
    warnings = ((run.result or {}).get("verdict") or {}).get("warnings") or ()
    return [
        Caution(one["code"], f"in the run {which}: {one['msg']}") for one in warnings if one.get("code") in _OF_THE_BOX
    ]


def covariate_of(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> str | None:
    """What was seen beside the figures that explains time outside steps: `throttled` or `contention`."""
    if environment_of(after).get("throttle") and not environment_of(before).get("throttle"):
        return "throttled"
    return "contention" if _queued(after) and not _queued(before) else None


def _queued(events: Sequence[Mapping[str, Any]]) -> bool:
    rows = sample_rows(events)
    waited = sum(row.get("queue_s") or 0.0 for row in rows)
    return waited > QUEUED_SHARE * sum(row.get("decode_s") or 0.0 for row in rows)


def _void(run: StoredRun) -> str | None:
    result = run.result
    if result is None:
        return f"{run.record.id} is not over"
    verdict = result.get("verdict")
    if verdict is None:
        return f"{run.record.id} ended without a verdict ({result['status']})"
    return f"{run.record.id} is {verdict['class']}" if str(verdict["class"]).startswith("void") else None


def _head(run: StoredRun) -> dict[str, Any]:
    record, verdict = run.record, (run.result or {}).get("verdict") or {}
    return {
        "run_id": record.id,
        "playbook": record.playbook,
        "version": record.version,
        "host": record.host,
        "started": record.started,
        "class": verdict.get("class"),
        "levels": (run.result or {}).get("levels") or [],
        "fit": (run.result or {}).get("fit"),
    }


def compared_text(compared: Compared) -> str:
    """The comparison for a terminal: verdict, effects with intervals, what else differs."""
    verdict, found = compared.verdict, compared.found
    lines = [f"before  {compared.before.record.id} on {compared.before.record.host}"]
    lines += [f"after   {compared.after.record.id} on {compared.after.record.host}", ""]
    lines += [f"{verdict.klass}: {verdict.headline}", ""]
    if found is not None:
        for name, effect in (("tok/s", found.rate), ("commit length", found.commit), ("step time", found.step)):
            interval = "" if effect.ci is None else f"  95 % [{effect.ci[0]:.3f}, {effect.ci[1]:.3f}]"
            lines.append(f"{name:<14} after / before {effect.ratio:.3f}{interval}")
        lines += ["", f"{found.cells} combinations of text kind and context are in both runs"]
    if compared.differences and not compared.refused:
        lines.append(f"the factor under test: {compared.differences[0]}")
    lines += [f"also different: {one}" for one in compared.soft]
    lines += [f"warning {one.code}: {one.msg}" for one in verdict.warnings]
    return "\n".join([*lines, f"next: {verdict.next}"]) + "\n"
