"""kv_capacity: four numbers of context that should agree, bytes a token in both readings, and how far a probe came."""

from __future__ import annotations

from typing import Any

from console.analysis.judges.facts import RunFacts, screened, verdict
from console.analysis.verdicts import Caution


def judge_capacity(facts: RunFacts) -> dict[str, Any]:
    """Verdict with `capacity`: the numbers, as the engine told them and as the probe found them."""
    rows = screened(facts, loops_count=True)
    if rows.ended and rows.ended["class"].startswith("void"):
        return rows.ended
    found = dict(facts.summary)
    probed, limit = found.get("probed_tokens") or 0, found.get("limit_tokens") or 0
    asked, model, pool, served = (found.get(f"{name}_tokens") for name in ("asked", "model", "pool", "served"))
    cautions = list(rows.cautions)
    if asked and served and served < asked:
        reason = "the pool holds no more" if pool and pool < asked else "the engine has capped it"
        cautions.append(Caution("capped", f"{asked:,} tokens were asked for and {served:,} are served: {reason}"))
    if model and served and served > model:
        cautions.append(Caution("stretched", f"{served:,} tokens are served, and the model was made for {model:,}"))
    if probed < limit:
        cautions.append(
            Caution("not_probed", f"the probe stopped at {probed:,} of {limit:,} tokens, where its time was used up")
        )
    words = f"{served:,} tokens a request are served; a request of {probed:,} was held"
    if pool:
        words += f"; the pool has {pool:,} tokens, {pool / served:.1f} requests of full length"
    whole, split = found.get("bytes_per_token"), found.get("bytes_per_token_if_split")
    if whole:
        words += f"; {whole:,.0f} B a token held whole on each GPU"
        words += f", {split:,.0f} B if split" if split and split != whole else ""
    broken = asked and served and served < asked
    return verdict(
        "inconsistent_data" if broken else "healthy",
        words,
        cautions,
        "set context_length to what is served, or make the pool larger" if broken else "nothing to mend",
        capacity=found,
    )
