"""What each playbook's figures say: one room a question, and the table that leads to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from console.analysis.judges.arms import judge_ab
from console.analysis.judges.budgets import judge_budgets
from console.analysis.judges.bursts import judge_bursts
from console.analysis.judges.capacity import judge_capacity
from console.analysis.judges.clients import judge_client
from console.analysis.judges.concurrency import judge_concurrency
from console.analysis.judges.diagnosis import judge_diagnosis
from console.analysis.judges.drift import judge_drift
from console.analysis.judges.facts import RunFacts
from console.analysis.judges.kinds import judge_kinds
from console.analysis.judges.lossless import judge_lossless
from console.analysis.run_verdict import verdict_of_run
from console.analysis.verdicts import Caution

JUDGES: Mapping[str, Callable[[RunFacts], dict[str, Any]]] = {
    "accept_drift": judge_drift,
    "drafter_kinds": judge_kinds,
    "burst_vs_full": judge_bursts,
    "budget_sweep": judge_budgets,
    "concurrency_sweep": judge_concurrency,
    "kv_capacity": judge_capacity,
    "lossless": judge_lossless,
    "client_vs_box": judge_client,
    "diagnose": judge_diagnosis,
    "parser_ab": judge_ab,
    "page_size_ab": judge_ab,
}
"""A playbook that is not here, one of the operator's own say, is judged as a sweep or a health line."""

BUSY_LOAD = 1.5
"""A load above so many times the number of processors means that others compute on the box."""


def judge_run(facts: RunFacts) -> dict[str, Any]:
    """The verdict of a run, with a warning where the box was visibly busy with something else."""
    judge = JUDGES.get(facts.playbook)
    verdict = judge(facts) if judge else verdict_of_run(facts.playbook, facts.rows, facts.env)
    busy = busy_host(facts)
    return verdict if busy is None else {**verdict, "warnings": [*verdict["warnings"], busy.to_json()]}


def busy_host(facts: RunFacts) -> Caution | None:
    """Other work on the box, where it shows in the load. On a box whose engine runs on GPUs the load is the host's own."""
    host = facts.env.get("host") or {}
    load, count = host.get("load_1m"), host.get("cpu_count")
    if not load or not count or load <= BUSY_LOAD * count:
        return None
    return Caution("busy_host", f"the box was busy with other work: load {load:.1f} on {count} processors")
