"""The console's table and the engine's own configuration must not drift apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import get_type_hints

import pytest

from console.deployment.settings import SETTINGS, Setting, check_together
from console.deployment.settings_file import complete, first_settings
from console.errors import UsageError
from engine.config import EngineConfig, config_from_toml, leaf_settings
from engine.errors import EngineError
from engine.server.auth import require_key_off_loopback


def test_both_sides_know_the_same_tables_keys_and_defaults() -> None:
    engine = {
        (table, leaf.name): leaf.default
        for table, kind in get_type_hints(EngineConfig).items()
        for leaf in fields(kind)
    }
    assert {(setting.table, setting.name): setting.default for setting in SETTINGS} == engine


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_the_engine_takes_every_value_the_console_lets_through(setting: Setting) -> None:
    edges = [value for value in (setting.minimum, setting.maximum) if value is not None and not setting.only_default]
    some = "/x" if setting.kind == "path" else setting.default
    for value in (some, *setting.choices, *edges):
        text = first_settings({"path": "/m", "drafter": "/d", setting.name: setting.accept(value)})
        in_force = leaf_settings(config_from_toml(text))
        assert setting.secret == (setting.name not in in_force)
        assert in_force.get(setting.name, value) == value


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.only_default], ids=lambda setting: setting.name)
def test_what_the_console_marks_as_not_there_yet_the_engine_refuses(setting: Setting) -> None:
    other = {bool: not setting.default, int: 2, str: "on"}[type(setting.default)]
    with pytest.raises(EngineError, match=setting.name):
        config_from_toml(f'[model]\npath = "/m"\n[{setting.table}]\n{setting.name} = {json.dumps(other)}\n')


def test_the_first_settings_file_is_one_the_engine_reads() -> None:
    config = config_from_toml(first_settings({"path": "/m", "drafter": "/d", "page_size": 7}))
    assert leaf_settings(config)["page_size"] == 7


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.8.8.8", "::1", "localhost", "unix:/run/e.sock", "0.0.0.0", "::", "10.0.0.7", "gpu-01", ""],
)
def test_an_address_that_needs_a_key_is_refused_by_the_plan_as_by_the_engine(host: str) -> None:
    def refuses(check: Callable[[], None], error: type[Exception]) -> bool:
        try:
            check()
        except error as said:
            assert "is open to other machines, and no key is set" in str(said)
            return True
        return False

    values = {**complete('[model]\npath = "/m"\n'), "host": host}
    here = refuses(lambda: check_together(values), UsageError)
    assert here == refuses(lambda: require_key_off_loopback(host, None), EngineError)
    check_together({**values, "api_key_file": "/etc/ddtree/key"})
