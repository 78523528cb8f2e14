"""client_vs_box: the same streams stamped on both sides. Latency shifts them alike; what stretches them is the way's fault."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from console.analysis.effects import Effect, effect_of_blocks
from console.analysis.judges.facts import Row, RunFacts, inconclusive, verdict
from console.analysis.verdicts import Caution

CONFOUNDED = 0.98
"""A client that surely sees less than this share of the box's rate is slowed down by the way to it."""
QUANTUM_MS = (30.0, 55.0)
"""Delayed acknowledgements hold chunks back for 40 ms."""
QUANTUM_SHARE = 0.1


@dataclass(frozen=True)
class Way:
    """What the way to the client does: rate there over rate on the box, spread of the delays, gaps of about 40 ms."""

    rate: Effect
    slope: float  # of client arrivals against box arrivals: 1 but for what stretches the stream
    jitter_ms: float
    quantum_share: float

    @property
    def slows(self) -> bool:
        """Whether a rate seen by the client may not stand for the engine's."""
        return self.rate.ci is not None and self.rate.ci[1] < CONFOUNDED

    def to_json(self) -> dict[str, Any]:
        """`{"rate", "slope", "jitter_ms", "quantum_share"}`."""
        return {
            "rate": self.rate.to_json(),
            "slope": self.slope,
            "jitter_ms": self.jitter_ms,
            "quantum_share": self.quantum_share,
        }


def way_of(rows: Sequence[Row]) -> Way | None:
    """The way to the client from streams with `box_s` and `client_s`; None with fewer than two whole ones."""
    pairs = [_arrays(row) for row in rows if len(row.get("box_s") or ()) == len(row.get("client_s") or ()) > 3]
    if len(pairs) < 2:
        return None
    ratios = [math.log((box[-1] - box[0]) / (client[-1] - client[0])) for box, client in pairs]
    slopes = [float(stats.linregress(box, client).slope) for box, client in pairs]
    delays = [(client - box) * 1000 for box, client in pairs]
    late = np.concatenate([delay - delay.min() for delay in delays])
    held = np.concatenate([np.diff(delay) for delay in delays])
    return Way(
        rate=effect_of_blocks(ratios),
        slope=float(np.mean(slopes)),
        jitter_ms=float(np.median(late)),
        quantum_share=float(np.mean((held > QUANTUM_MS[0]) & (held < QUANTUM_MS[1]))),
    )


def _arrays(row: Mapping[str, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.asarray(row["box_s"], dtype=float), np.asarray(row["client_s"], dtype=float)


def judge_client(facts: RunFacts) -> dict[str, Any]:
    """Verdict with `way`."""
    way = way_of(facts.rows)
    if way is None:
        return inconclusive("fewer than two streams were read whole on both sides", (), "follow the run to its end")
    klass = "network" if way.slows else "explained" if way.rate.ci is not None else "inconclusive"
    following = "trust figures from the box; look for a proxy or a busy client" if way.slows else "nothing to mend"
    return verdict(klass, way_words(way), way_cautions(way), following, way=way.to_json())


def way_words(way: Way) -> str:
    """One sentence about the way."""
    interval = "" if way.rate.ci is None else f" [{way.rate.ci[0]:.3f}, {way.rate.ci[1]:.3f}]"
    words = f"the client sees {way.rate.ratio:.3f}x{interval} of the box's rate, chunks {way.jitter_ms:.1f} ms late at the median"
    return f"{words}: the way to the client slows it down" if way.slows else words


def way_cautions(way: Way) -> list[Caution]:
    """Delayed acknowledgements, where their quantum shows."""
    if way.quantum_share <= QUANTUM_SHARE:
        return []
    share = f"{100 * way.quantum_share:.0f} % of the chunks"
    return [
        Caution(
            "delayed_ack",
            f"{share} are held back for about 40 ms: delayed acknowledgements, set TCP_NODELAY on the way",
        )
    ]
