"""The bundled engine as a deployment: its pool is predicted by its own rule, and what cannot work is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from console.deployment.bundled import BUNDLED, first_settings_with, model_facts
from console.deployment.settings import Value
from console.deployment.settings_file import complete, first_settings
from console.errors import UsageError
from engine.config import config_from_toml
from engine.drafter_config import read_drafter_config
from engine.models.loader import read_model_config
from engine.runtime import kv_bytes_per_token, pool_pages, resolve_dtype

TINY = Path(__file__).parents[2] / "data" / "tiny-ddtree"
MODEL = model_facts(
    json.loads((TINY / "target" / "config.json").read_text()),
    json.loads((TINY / "drafter" / "config.json").read_text()),
)
BASE: dict[str, Value] = {"path": str(TINY / "target"), "drafter": str(TINY / "drafter")}


def values(**changes: Value) -> dict[str, Value]:
    return complete(first_settings({**BASE, **changes}))


@pytest.mark.parametrize("memory_bytes", [10**6, 10**9])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"page_size": 7, "context_length": 300},
        {"page_size": 256, "max_running_requests": 3},
        {"tree_budget": 64, "context_length": 1000, "page_size": 1},
        {"pages": 77},
        {"dtype": "bfloat16", "memory_fraction": 0.5},
    ],
)
def test_the_predicted_pool_is_the_one_the_engine_makes(changes: dict[str, Value], memory_bytes: int) -> None:
    config = config_from_toml(first_settings({**BASE, **changes}))
    target = read_model_config(TINY / "target")
    drafter = read_drafter_config(TINY / "drafter", target)
    token_bytes = kv_bytes_per_token(target, drafter, resolve_dtype(config.model.dtype, target))
    context = config.context.context_length or target.max_position_embeddings
    lookahead = max(config.speculation.tree_budget + 1, drafter.block_size)

    predicted = BUNDLED.capacity(values(**changes), MODEL, memory_bytes)
    assert predicted.bytes_per_token == token_bytes
    assert predicted.pages == pool_pages(config, context, lookahead, token_bytes, memory_bytes)
    assert predicted.context_length == context


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"context_length": 2049}, "context_length: 2049 is above the model's 2048; use 2048 or less"),
        ({"context_length": 161, "pages": 10}, "context_length: 161 needs 11 pages of 16, the pool has 10"),
        ({"block_size": 9}, "block_size: 9 is outside 2 to 8"),
        ({"block_size": 1}, "block_size: 1 is outside 2 to 8"),
        ({"drafter": ""}, "mode: ddtree needs a drafter"),
        ({"path": ""}, "path: no model is named"),
    ],
)
def test_what_cannot_work_is_refused_with_both_numbers(changes: dict[str, Value], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        BUNDLED.check(values(**changes), MODEL)
    assert str(caught.value).startswith(said)


def test_a_context_left_to_the_engine_takes_what_a_fixed_pool_holds() -> None:
    BUNDLED.check(values(context_length=0, pages=10), MODEL)


def test_the_first_settings_are_checked_before_and_completed_after_the_model_is_known() -> None:
    with pytest.raises(UsageError, match="page_size: 0 is below"):
        first_settings_with({"page_size": "0"})
    compose = first_settings_with({"page_size": "32"})
    assert complete(compose("/m", "/d")) == {
        **complete(""),
        "path": "/m",
        "drafter": "/d",
        "page_size": 32,
        "mode": "ddtree",
    }
    assert complete(compose("/m", ""))["mode"] == "off"
    with pytest.raises(UsageError, match="needs a drafter"):
        first_settings_with({"mode": "dflash"})("/m", "")


def test_positions_that_are_stretched_reach_further() -> None:
    limit = MODEL.target.max_position_embeddings
    with pytest.raises(UsageError, match=f"{2 * limit} is above the model's {limit}"):
        BUNDLED.check(values(context_length=2 * limit), MODEL)
    BUNDLED.check(values(context_length=2 * limit, rope_scaling="yarn:2"), MODEL)
    assert BUNDLED.capacity(values(rope_scaling="yarn:2"), MODEL, None).context_length == 2 * limit
    for wrong in ("yarn", "yarn:0.5", "linear:2", "yarn:inf"):
        with pytest.raises(UsageError, match=r"rope_scaling: .* is not known; write yarn:F"):
            BUNDLED.check(values(rope_scaling=wrong), MODEL)
