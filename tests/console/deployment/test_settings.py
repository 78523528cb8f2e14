"""The settings table, checks against it, and edits of engine.toml."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.deployment.change import Difference
from console.deployment.settings import SETTINGS, Setting, Value, check_together, find, parse_changes
from console.deployment.settings_file import complete, differences, edit_toml, explicit, first_settings, to_read_back
from console.errors import ExitCode, UsageError

HAND_WRITTEN = """\
# the lab's box

[model]
path = "/models/a"   # do not move

[kv]
# was 16 until May
page_size = 32

[server]
port = 9000
"""


def allowed(setting: Setting) -> st.SearchStrategy[Any]:
    if setting.only_default:
        return st.just(setting.default)
    if setting.choices:
        return st.sampled_from(setting.choices)
    low, high = setting.minimum, setting.maximum
    if setting.kind == "int":
        return st.integers(int(low or 0), int(high) if high is not None else 10**9)
    if setting.kind == "float":
        return st.floats(low, high)
    if setting.kind == "bool":
        return st.booleans()
    return st.text(st.characters(min_codepoint=32, exclude_categories=("Cs", "Cc")), max_size=20).map(str.strip)


valid_changes = st.fixed_dictionaries({}, optional={setting.name: allowed(setting) for setting in SETTINGS})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"page_siz": "8"}, "page_siz: no such setting; the nearest is page_size"),
        ({"page_size": "0"}, "page_size: 0 is below the least, 1; use 1 to 256"),
        ({"page_size": "257"}, "page_size: 257 is above the most, 256; use 1 to 256"),
        ({"page_size": "sixteen"}, "page_size: 'sixteen' is not a whole number; use 1 to 256"),
        ({"page_size": 16.5}, "page_size: 16.5 is not a whole number; use 1 to 256"),
        ({"memory_fraction": "nan"}, "memory_fraction: 'nan' is not a number; use 0.01 to 0.98"),
        ({"mode": "tree"}, "mode: 'tree' is not a choice; use off, dflash or ddtree"),
        ({"path": "a\nb"}, "path: 'a\\nb' is not plain text"),
        ({"tensor_parallel": "2"}, "tensor_parallel: 2 is not possible yet; leave it at 1"),
        ({"page_size": "8", "kv.page_size": "9"}, "page_size: is given twice"),
    ],
)
def test_a_wrong_setting_gets_one_line_with_the_mend_and_exit_2(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_changes(change)
    assert str(caught.value) == said
    assert caught.value.exit_code is ExitCode.USAGE


def test_text_becomes_the_settings_type() -> None:
    given_text = {"context_length": "200,000", "interval_s": "2", "page_size": " 64 ", "path": "/m"}
    assert parse_changes(given_text) == {"context_length": 200_000, "interval_s": 2.0, "page_size": 64, "path": "/m"}


def test_a_qualified_name_finds_the_same_setting() -> None:
    assert find("kv.page_size") is find("page_size")


def test_leaf_names_are_unique_and_defaults_are_in_range() -> None:
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)
    assert all(setting.accept(setting.default) == setting.default for setting in SETTINGS)


def test_an_edit_keeps_comments_order_and_what_it_does_not_touch() -> None:
    edited = edit_toml(HAND_WRITTEN, {"page_size": 64, "tree_budget": 8})
    assert edited.startswith(HAND_WRITTEN.replace("page_size = 32", "page_size = 64"))
    assert explicit(edited) == {"path": "/models/a", "page_size": 64, "port": 9000, "tree_budget": 8}


def test_a_default_spelled_out_is_no_difference() -> None:
    edited = edit_toml(HAND_WRITTEN, {"max_running_requests": 1, "page_size": 7})
    assert differences(HAND_WRITTEN, edited) == (Difference("page_size", 32, 7),)


@given(valid_changes)
def test_the_first_file_reads_back_to_what_was_asked_for(values: dict[str, Value]) -> None:
    text = first_settings(values)
    assert complete(text) == {**{setting.name: setting.default for setting in SETTINGS}, **values}
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == len(SETTINGS) + 1  # each key has its help


@given(valid_changes, valid_changes)
def test_editing_a_file_changes_exactly_the_settings_named(first: dict[str, Value], second: dict[str, Value]) -> None:
    before = edit_toml(HAND_WRITTEN, first)
    after = edit_toml(before, second)
    assert explicit(after) == {**explicit(before), **second}
    assert [line for line in after.splitlines() if line.startswith("#")] == ["# the lab's box", "# was 16 until May"]
    assert edit_toml(after, second) == after


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[kv]\npage_sise = 3\n", "page_sise: no such setting; the nearest is page_size"),
        ("[server]\npage_size = 3\n", "page_size: stands in [server]; it belongs in [kv]"),
        ("page_size = 3\n", "page_size: stands outside every table; put it under [kv]"),
        ("[kv]\npage_size = 999\n", "page_size: 999 is above the most, 256; use 1 to 256"),
    ],
)
def test_a_wrong_file_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        explicit(text)
    assert str(caught.value) == said


def test_a_file_that_is_no_toml_says_where() -> None:
    with pytest.raises(UsageError, match=r"^engine\.toml: .*line 2 col"):
        explicit("[kv]\npage_size = = 3\n")


def test_settings_left_to_the_engine_and_secrets_are_not_read_back() -> None:
    text = first_settings({"path": "/m", "drafter": "/d", "context_length": 0, "api_key_file": "/k", "pages": 12})
    wanted = to_read_back(text)
    assert wanted["pages"] == 12
    assert not {"context_length", "dtype", "api_key_file"} & wanted.keys()


def test_an_unsaid_mode_without_a_drafter_is_off_and_a_said_one_is_refused() -> None:
    assert complete('[model]\npath = "/m"\n')["mode"] == "off"
    with pytest.raises(UsageError, match="ddtree needs a drafter"):
        check_together(complete('[model]\npath = "/m"\n[speculation]\nmode = "ddtree"\n'))
    with pytest.raises(UsageError, match="no model is named"):
        check_together(complete(""))
