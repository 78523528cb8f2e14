"""diagnose: the engine now against its golden run. The first cause that holds is named, in the order of measurement.md 3.5.

Causes that were seen beside the figures (another client, a held-down clock, a fallback, gathered chunks) come before the
class that the figures alone would give, since a regression is something to mend in the engine and these are not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from console.analysis.comparison import MIN_CHUNKS_A_STEP, Comparison, compare_rows, factors_json, verdict_of_comparison
from console.analysis.effects import REGRESSION_DELTA
from console.analysis.judges.clients import way_of, way_words
from console.analysis.judges.facts import Row, RunFacts, Screened, screened, verdict
from console.analysis.run_verdict import verdict_of_run
from console.analysis.screening import screen
from console.analysis.steadiness import unsteady
from console.analysis.verdicts import Caution

CROWDED_SHARE = 0.2
"""Share of requests with somebody else's beside them from which on the engine was not ours alone."""
QUEUED_S = 0.02
CLOCK_DROP = 0.03
STARVED_SHARE = 0.1
"""More of the decode time than this, beyond the golden run's share, spent waiting for a processor is no accident."""
WORTH_KNOWING = 0.15
"""An engine is called healthy where a slowdown beyond this is excluded; where it is not, nothing can be said."""
FINE = ("equivalent", "faster", "small", "explained")


def judge_diagnosis(facts: RunFacts) -> dict[str, Any]:
    """Verdict with `effects` and `factors` against the golden run; without one, the engine's health."""
    probes = [row for row in facts.rows if row.get("probe")]
    streams = [row for row in facts.rows if row.get("client_s")]
    timed = [row for row in facts.rows if not row.get("probe") and not row.get("client_s")]
    rows = screened(replace(facts, rows=timed))
    if rows.ended:
        return rows.ended
    if facts.reference is None:
        return _health(rows, facts)
    golden = facts.reference.get("rows") or ()
    before, _ = screen([row for row in golden if not row.get("probe") and row.get("steps")])
    found = compare_rows(before, rows.rows)
    cautions = [
        *rows.cautions,
        *(Caution("changed", str(change)) for change in facts.changes),
        *unsteady(before, "in the golden run "),
        *unsteady(rows.rows),
    ]
    more: dict[str, Any] = {"golden": facts.reference.get("run_id")}
    if found is not None:
        more |= {"effects": found.to_json()["effects"], "factors": factors_json(found)}
    klass, words, following = _cause(facts, found, before, rows.rows, probes, streams, golden)
    return {**verdict(klass, words, cautions, following), **more}


def _health(rows: Screened, facts: RunFacts) -> dict[str, Any]:
    found = verdict_of_run("quick_probe", [{**row, "level": 0} for row in rows.rows], facts.env)
    pin = "pin it if the engine is well: ddtree pin last, and every diagnosis is held against it"
    disturbed = unsteady(rows.rows)
    if disturbed:
        pin = "run it once more on a quiet box before you pin it"
        found = {**found, "warnings": [*found["warnings"], *(one.to_json() for one in disturbed)]}
    return {**found, "next": pin if found["class"] == "healthy" else found["next"], "levels": []}


def _cause(
    facts: RunFacts, found: Comparison | None, before: Sequence[Row], now: Sequence[Row], probes: Sequence[Row],
    streams: Sequence[Row], golden: Sequence[Row],
) -> tuple[str, str, str]:  # fmt: skip
    """(class, headline, next) of the first cause that holds."""
    if len(facts.changes) > 1:
        names = "; ".join(str(change) for change in facts.changes)
        return (
            "not_comparable",
            f"the engine is not what it was when the golden run was pinned: {names}",
            "go back to those settings, or pin anew",
        )
    wrong = _wrong(probes, golden)
    if wrong is not None and not facts.changes:
        return "broken", wrong, "do not serve with it: compare page size, drafter and release with the golden run's"
    if found is None:
        return (
            "inconclusive",
            "no combination of text and context was measured in both runs",
            "run it again, or pin anew",
        )
    crowded = _crowded(now)
    if crowded and not _crowded(before):
        return (
            "contention",
            f"another client uses the engine: {crowded}; {_headline(found)}",
            "find who else asks the engine",
        )
    judged = verdict_of_comparison(found)
    throttled = _throttled(found, before, now)
    if judged.klass == "step_regression" and throttled:
        return "throttled", f"{throttled}; {judged.headline}", "look at power cap and temperature of the GPUs"
    busy = _busier(facts)
    if judged.klass == "step_regression" and busy:
        return "contention", f"{busy}; {judged.headline}", "see what else runs on the box, then ask again"
    starved = _starved(before, now)
    if judged.klass == "step_regression" and starved and _waits_explain(before, now):
        return "contention", f"{starved}; {judged.headline}", "see what else runs on the box, then ask again"
    if judged.klass in ("step_regression", "acceptance_regression"):
        return judged.klass, f"{judged.headline}{_factor(facts)}{_fallback(before, now)}", judged.next
    if _chunks(now) < MIN_CHUNKS_A_STEP <= _chunks(before):
        words = f"the stream comes in {_chunks(now):.2f} chunks a step, {_chunks(before):.2f} before: something gathers them"
        return (
            "buffered_stream",
            f"{words}; steps and commit length are as they were",
            "look at parsers and proxies; count steps, not chunks",
        )
    way = way_of(streams)
    if way is not None and way.slows:
        return (
            "network",
            f"{way_words(way)}; on the box it is as it was",
            "trust figures from the box; look for a proxy or a busy client",
        )
    excluded = _excluded_slowdown(found)
    if judged.klass in (*FINE, "inconclusive") and excluded is not None and excluded <= WORTH_KNOWING:
        words = f"nothing is worse, and a slowdown of more than {100 * max(excluded, 0.0):.0f} % is excluded"
        return (
            "healthy",
            f"as the golden run: {words}; {_headline(found)}{_factor(facts)}",
            "nothing to mend on the box",
        )
    cause = f"; {starved}" if found.disturbed and starved else ""
    if judged.klass in (*FINE, "slower"):  # a change was seen, too uncertain to be called well or a regression
        return "inconclusive", judged.headline, "run it again with more repeats"
    return judged.klass, f"{judged.headline}{cause}", judged.next


def _starved(before: Sequence[Row], now: Sequence[Row]) -> str | None:
    """Whether the engine waited for a processor far more than in the golden run, by the kernel's own count."""
    shares = [_wait_share(before), _wait_share(now)]
    if shares[0] is None or shares[1] is None or shares[1] < shares[0] + STARVED_SHARE:
        return None
    return (
        f"the engine waited for a processor in {100 * shares[1]:.0f} % of its decode time, {100 * shares[0]:.0f} % in the "
        "golden run: other work has them"
    )


def _wait_share(rows: Sequence[Row]) -> float | None:
    told = [(row["cpu_wait_s"], row["decode_s"]) for row in rows if row.get("cpu_wait_s") is not None]
    return sum(wait for wait, _ in told) / sum(whole for _, whole in told) if told else None


def _waits_explain(before: Sequence[Row], now: Sequence[Row]) -> bool:
    """Whether the steps are no slower once the waits are taken off on both sides."""
    sides = []
    for rows in (before, now):
        left = [{**row, "decode_s": row["decode_s"] - (row.get("cpu_wait_s") or 0.0)} for row in rows]
        sides.append([row for row in left if row["decode_s"] > 0])
    found = compare_rows(*sides)
    return found is not None and verdict_of_comparison(found).klass != "step_regression"


def _excluded_slowdown(found: Comparison) -> float | None:
    """The smallest slowdown that the 95 % interval of the rate leaves no room for; None without an interval."""
    return None if found.rate.ci is None else 1.0 / found.rate.ci[0] - 1.0


def _headline(found: Comparison) -> str:
    parts = [("tok/s", found.rate), ("commit length", found.commit), ("step", found.step)]
    shown = ", ".join(f"{name} {effect.ratio:.2f}x" for name, effect in parts)
    return f"{shown} (a change is one from {100 * REGRESSION_DELTA:.0f} % on)"


def _factor(facts: RunFacts) -> str:
    """The one condition that differs, where one does."""
    return f"; what has changed since: {facts.changes[0]}" if facts.changes else ""


def _wrong(probes: Sequence[Row], golden: Sequence[Row]) -> str | None:
    """Why the engine's answers to the fixed questions are wrong; None where they are what they were."""
    then = _answers([row for row in golden if row.get("probe")])
    now = _answers(probes)
    differing = [key for key in now if key in then and now[key] != then[key]]
    if differing:
        return f"{len(differing)} of {len(now)} greedy answers to fixed questions are other ones than in the golden run"
    parted = [pair for pair, arm in now if arm == "now" and now.get((pair, "off"), now[pair, arm]) != now[pair, arm]]
    if parted and not _parted(then):
        return f"{len(parted)} greedy answers with speculation are not the plain ones"
    return None


def _answers(probes: Sequence[Row]) -> dict[tuple[Any, str], str]:
    return {(row["pair"], str(row["arm"])): str(row["out_sha"]) for row in probes if row.get("out_sha")}


def _parted(answers: Mapping[tuple[Any, str], str]) -> bool:
    return any(answers.get((pair, "off"), sha) != sha for (pair, arm), sha in answers.items() if arm == "now")


def _crowded(rows: Sequence[Row]) -> str | None:
    """How often others were seen, where that is often."""
    seen = [
        row for row in rows if row.get("others") or (row.get("queue_s") or 0.0) > max(QUEUED_S, 0.02 * row["decode_s"])
    ]
    if len(seen) < CROWDED_SHARE * len(rows):
        return None
    waits = sum(row.get("queue_s") or 0.0 for row in rows)
    return f"{len(seen)} of {len(rows)} requests met others, and waited {waits:.1f} s in all"


def _throttled(found: Comparison, before: Sequence[Row], now: Sequence[Row]) -> str | None:
    """Whether a held-down clock explains the step: the step adjusted to the golden run's clock is as it was."""
    clocks = [_mean([row["clock_mhz"] for row in rows if row.get("clock_mhz")]) for rows in (before, now)]
    reasons = sorted({str(row["throttle"]) for row in now if row.get("throttle")})
    if clocks[0] is None or clocks[1] is None or clocks[1] > clocks[0] * (1 - CLOCK_DROP):
        return None
    if found.step.ratio * clocks[1] / clocks[0] > 1 + REGRESSION_DELTA:
        return None
    why = f" ({', '.join(reasons)})" if reasons else ""
    return f"the GPU clock is at {clocks[1]:.0f} MHz, {clocks[0]:.0f} in the golden run{why}"


def _busier(facts: RunFacts) -> str | None:
    """Whether the box computes for others, and did not in the golden run. Where GPUs do the work its load is no matter."""
    now, then = facts.env.get("host") or {}, (facts.reference or {}).get("host") or {}
    load, before, count = now.get("load_1m"), then.get("load_1m"), now.get("cpu_count")
    if facts.env.get("gpu") or not load or before is None or not count or load < before + count:
        return None
    return f"the box is busy with other work: load {load:.1f} on {count} processors, {before:.1f} in the golden run"


def _fallback(before: Sequence[Row], now: Sequence[Row]) -> str:
    """Contexts that fell back from captured graphs, where the engine says so."""
    had = {row["level"] for row in before if row.get("graph") in (1, True)}
    lost = sorted({row["level"] for row in now if row.get("graph") in (0, False)} & had)
    return f"; graph fallback from {lost[0]:g} tokens on" if lost else ""


def _chunks(rows: Sequence[Row]) -> float:
    steps = sum(row["steps"] for row in rows)
    return float(sum(row.get("chunks") or 0 for row in rows) / steps) if steps else math.inf


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
