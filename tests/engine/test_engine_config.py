"""engine.toml: defaults, ranges, and what is refused by name."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from engine.config import EngineConfig, config_from_toml, leaf_settings, load_config, settings_sha
from engine.errors import EngineError

MODEL = '[model]\npath = "m"\ndrafter = "d"\n'


def refusal(text: str) -> str:
    with pytest.raises(EngineError) as caught:
        config_from_toml(text)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_everything_but_the_model_has_a_default() -> None:
    settings = leaf_settings(config_from_toml(MODEL))
    assert settings == {
        "path": "m",
        "drafter": "d",
        "dtype": "auto",
        "context_length": 0,
        "rope_scaling": "",
        "page_size": 16,
        "kv_dtype": "auto",
        "memory_fraction": 0.85,
        "pages": 0,
        "prefix_cache": True,
        "mode": "ddtree",
        "block_size": 0,
        "tree_budget": 16,
        "adaptive_budget": False,
        "draft_window": 0,
        "lookup": "off",
        "host": "127.0.0.1",
        "port": 8765,
        "max_running_requests": 1,
        "reasoning_parser": "",
        "tool_parser": "",
        "tensor_parallel": 1,
        "interval_s": 1.0,
    }


def test_what_points_at_secrets_is_no_leaf_setting() -> None:
    config = config_from_toml(MODEL + '[server]\napi_key_file = "/secret/key"')
    assert config.server.api_key_file == "/secret/key"
    assert "api_key_file" not in leaf_settings(config)


def test_leaf_names_are_unique_over_all_tables() -> None:
    names = [leaf.name for table in fields(EngineConfig) for leaf in fields(type(getattr(EngineConfig(), table.name)))]
    assert len(names) == len(set(names))


def test_without_a_drafter_an_unsaid_mode_is_off_and_a_said_one_is_refused() -> None:
    assert config_from_toml('[model]\npath = "m"').speculation.mode == "off"
    line = refusal('[model]\npath = "m"\n[speculation]\nmode = "dflash"')
    assert line == (
        'engine.toml [speculation]: mode = "dflash" needs a drafter; set drafter in [model], or mode = "off"'
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[kv]\npage_size = 257", "engine.toml [kv]: page_size = 257 is outside 1-256"),
        ("[kv]\npage_size = 0", "engine.toml [kv]: page_size = 0 is outside 1-256"),
        ("[kv]\npage_sise = 16", "unknown setting page_sise; the nearest known one is page_size in [kv]"),
        ("[speculation]\ntree_buget = 8", "the nearest known one is tree_budget in [speculation]"),
        ("[kv]\ntree_budget = 8", "engine.toml [kv]: tree_budget does not belong here; move it to [speculation]"),
        ("[speculatoin]\nmode = 'off'", "unknown table [speculatoin]; the nearest known one is [speculation]"),
        ("kv = 3", "kv is a value, not a table; write it as [kv]"),
        ("[kv]\npage_size = true", "page_size = true is not a whole number"),
        ("[kv]\npage_size = '16'", 'page_size = "16" is not a whole number'),
        ("[speculation]\nmode = 'tree'", 'mode = "tree" is not one of off, dflash, ddtree'),
        ("[context]\ncontext_length = -1", "context_length = -1 is below 0"),
        ("[kv]\nmemory_fraction = 1.5", "memory_fraction = 1.5 is outside 0.01-0.98"),
        ("[speculation]\nadaptive_budget = 1", "adaptive_budget = 1 is not true or false"),
        ("[speculation]\nlookup = 'ngram'", 'lookup = "ngram" is not one of off, on, auto'),
        ("[speculation]\ndraft_window = -1", "draft_window = -1 is below 0"),
        ("[parallel]\ntensor_parallel = 2", "tensor_parallel = 2 is not supported by this engine; leave it at 1"),
        (
            "[server]\ntool_parser = 'kimi'",
            'tool_parser = "kimi" is not one of hermes, qwen3, qwen3_coder, kimi_k2 or ""',
        ),
        ("[server]\nreasoning_parser = 'qwen'", 'reasoning_parser = "qwen" is not one of qwen3, deepseek_r1, kimi_k2'),
        ("[kv]\nprefix_cache = 1", "prefix_cache = 1 is not true or false"),
        ("[kv]\nkv_dtype = 'fp8'", 'kv_dtype = "fp8" is not supported by this engine; leave it at "auto"'),
        ("[context]\nrope_scaling = 4", "rope_scaling = 4 is not a text"),
        ("[kv", "not valid TOML"),
    ],
)
def test_what_cannot_be_is_refused_by_name(text: str, says: str) -> None:
    assert says in refusal(text if text == "[kv" or text == "kv = 3" else MODEL + text)


def test_a_config_without_a_model_says_so() -> None:
    assert refusal("") == "engine.toml: no model is named; set path in [model] to a model folder"


def test_a_whole_number_stands_for_a_float() -> None:
    assert config_from_toml(MODEL + "[log]\ninterval_s = 2").log.interval_s == 2.0


def test_equal_settings_have_equal_shas_and_others_do_not() -> None:
    plain, same = config_from_toml(MODEL), config_from_toml("# a comment\n" + MODEL + "[kv]\npage_size = 16")
    other = config_from_toml(MODEL + "[kv]\npage_size = 17")
    assert settings_sha(plain) == settings_sha(same) != settings_sha(other)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"absent\.toml: cannot read the settings"):
        load_config(tmp_path / "absent.toml")
    (tmp_path / "engine.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(EngineError, match="is not UTF-8"):
        load_config(tmp_path / "engine.toml")
