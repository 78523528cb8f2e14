"""What an operator should look at: facts of one moment -> sentences (screens.md section 1). No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from console.telemetry.rates import rates_over
from console.telemetry.sample import Sample

COLLAPSED_COMMIT = 1.05
"""Below this many tokens a step speculation buys nothing; output stays right, so only this figure tells."""
COLLAPSE_STEPS = 32
"""Steps that the newest windows must hold before their commit length is believed."""
FROZEN_S = 30.0
"""Seconds without a token, with a request running, that no healthy engine needs (measurement.md section 5, 21)."""
FULL_POOL = 0.9
SIMULATED = ("simulate_acc_len", "synthetic_acceptance_length", "synthetic_acceptance_rates")
"""Settings of foreign engines that fake acceptance (facts/ddtree-dflash.md 4.1 and 4.6)."""

DOWN: Mapping[str, str] = {
    "stopped": "The service is stopped",
    "failed": "The service has failed",
    "start-limit-hit": "The service failed so often that its manager gave up",
    "start-timeout": "The service did not become ready in time",
    "stuck-in-stop": "The service hangs while stopping",
    "not-installed": "No engine is installed on this host",
}
"""Service states in which nothing serves and nothing is on its way."""


@dataclass(frozen=True)
class Alarm:
    """Something the operator should look at: a sentence and the key that leads on."""

    code: str
    sentence: str
    key: str | None = None


@dataclass(frozen=True)
class Facts:
    """What the alarms are made of. Everything unknown is None or empty, and raises no alarm."""

    service: str | None = None  # the service manager's word
    reason: str | None = None  # and its result, when it failed
    samples: tuple[Sample, ...] = ()  # decode windows, oldest first
    running: int | None = None
    quiet_s: float | None = None  # since the last token, or since requests began to run
    queue: tuple[int, ...] = ()  # requests waiting, as last polled, oldest first
    kv_fraction: float | None = None  # 0..1
    graphs_expected: bool = False  # the box has GPUs, where eager decoding is a loss
    throttles: Mapping[int, str] = field(default_factory=dict)  # GPU index -> the driver's reason
    settings: Mapping[str, Any] = field(default_factory=dict)  # in force
    asked: Mapping[str, Any] = field(default_factory=dict)  # asked for by name; what is left to the engine is not here


def alarms_of(facts: Facts) -> tuple[Alarm, ...]:
    """Every alarm that `facts` raise, the gravest first."""
    return tuple(alarm for rule in _RULES if (alarm := rule(facts)) is not None)


def _down(facts: Facts) -> Alarm | None:
    sentence = DOWN.get(facts.service or "")
    if sentence is None:
        return None
    reason = f" ({facts.reason})" if facts.reason and facts.reason != "success" else ""
    return Alarm("not_serving", f"{sentence}{reason}.", "2")


def _frozen(facts: Facts) -> Alarm | None:
    if not facts.running or facts.quiet_s is None or facts.quiet_s < FROZEN_S:
        return None
    requests = "1 request runs" if facts.running == 1 else f"{facts.running} requests run"
    return Alarm("tokens_frozen", f"No token for {facts.quiet_s:.0f} s while {requests}.", "3")


def _commit_collapsed(facts: Facts) -> Alarm | None:
    if not facts.running or facts.settings.get("mode") == "off":
        return None
    newest: list[Sample] = []
    steps = 0
    for sample in reversed(facts.samples):
        if sample.extra.get("budget") == 0:  # a request that switched speculation off for itself
            continue
        newest.append(sample)
        steps += sample.steps or 0
        if steps >= COLLAPSE_STEPS:
            break
    rates = rates_over(newest)
    if rates is not None:
        enough, commit = rates.steps >= COLLAPSE_STEPS, rates.commit_length
    else:  # an engine that logs ratios only: its newest window is all there is
        known = [sample.commit_length for sample in newest[:1] if sample.commit_length is not None]
        enough, commit = bool(known), known[0] if known else 0.0
    if not enough or commit >= COLLAPSED_COMMIT:
        return None
    return Alarm("commit_collapsed", f"Commit length is {commit:.2f}: speculation buys nothing.", "1")


def _no_graph(facts: Facts) -> Alarm | None:
    if not facts.graphs_expected or not facts.running or not facts.samples or facts.samples[-1].graph is not False:
        return None
    return Alarm("graph_off", "Decoding runs without a captured graph.", "3")


def _queue_on_full_pool(facts: Facts) -> Alarm | None:
    if facts.kv_fraction is None or facts.kv_fraction <= FULL_POOL or len(facts.queue) < 2:
        return None
    if facts.queue[-1] <= facts.queue[0]:
        return None
    return Alarm(
        "queue_on_full_pool",
        f"The queue grows ({facts.queue[0]} to {facts.queue[-1]}) with the KV pool {100 * facts.kv_fraction:.0f} % full.",
        "2",
    )


def _throttled(facts: Facts) -> Alarm | None:
    if not facts.throttles:
        return None
    gpus = ", ".join(f"GPU {index}: {reason}" for index, reason in sorted(facts.throttles.items()))
    return Alarm("throttled", f"Clocks are held down ({gpus}).", "1")


def _settings_differ(facts: Facts) -> Alarm | None:
    differing = [
        f"{name} is {facts.settings[name]}, asked {asked}"
        for name, asked in sorted(facts.asked.items())
        if name in facts.settings and facts.settings[name] != asked
    ]
    if not differing:
        return None
    return Alarm("settings_differ", f"Settings in force differ from those asked for: {'; '.join(differing)}.", "2")


def _simulated(facts: Facts) -> Alarm | None:
    on = [name for name in SIMULATED if facts.settings.get(name)]
    if not on:
        return None
    return Alarm("simulated_acceptance", f"Acceptance is simulated ({', '.join(on)}): the figures are not real.", "2")


_RULES: tuple[Callable[[Facts], Alarm | None], ...] = (
    _down,
    _frozen,
    _commit_collapsed,
    _no_graph,
    _queue_on_full_pool,
    _throttled,
    _settings_differ,
    _simulated,
)
