"""Text to ids and back, character by character, and chat templates in their sandbox."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.chat_template import ChatTemplate, ChatTemplateError
from engine.errors import EngineError
from engine.tokenizer import Detokenizer, Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(speaking_model: Path) -> Tokenizer:
    loaded = load_tokenizer(speaking_model)
    assert loaded is not None
    return loaded


def pushed(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    stream = Detokenizer(tokenizer)
    return [stream.push(token_id) for token_id in token_ids]


def test_text_survives_the_round_trip_with_its_characters_split_over_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("lake é 😀")
    assert ids[:2] == tokenizer.encode("la") + tokenizer.encode("ke")
    assert tokenizer.decode(ids) == "lake é 😀"


def test_a_split_character_comes_out_whole_with_its_last_byte(tokenizer: Tokenizer) -> None:
    assert pushed(tokenizer, tokenizer.encode("aé😀b")) == ["a", "", "é", "", "", "", "😀", "b"]


def test_bytes_that_never_become_a_character_do_not_hold_the_text_back_for_ever(tokenizer: Tokenizer) -> None:
    broken = tokenizer.encode("é")[0]
    parts = pushed(tokenizer, [broken] * 8 + tokenizer.encode("a"))
    assert parts[-1].endswith("a")
    assert any(parts[:-1]), "the first broken bytes were given out before a good character came"


def test_special_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    assert pushed(tokenizer, [*tokenizer.encode("a"), tokenizer.eos_ids[0], *tokenizer.encode("b")]) == ["a", "", "b"]


@given(text=st.text(alphabet=[*"abklmn e,:!\n", "é", "😀"], max_size=40))
def test_what_is_given_out_is_always_a_beginning_of_the_whole_text(speaking_model: Path, text: str) -> None:
    loaded = load_tokenizer(speaking_model)
    assert loaded is not None
    given_out = ""
    for part in pushed(loaded, loaded.encode(text)):
        given_out += part
        assert text.startswith(given_out)
    assert given_out == text


def test_the_end_of_text_id_comes_from_the_tokenizer_files(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos_ids == (1,)


def test_a_conversation_goes_through_the_models_template(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_chat([{"role": "user", "content": "ok"}])
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|start|>user\nok<|end|><|start|>assistant\n"


def test_a_template_refuses_in_its_own_words(tokenizer: Tokenizer) -> None:
    with pytest.raises(ChatTemplateError, match="no such role"):
        tokenizer.encode_chat([{"role": "tool", "content": "ok"}])


def test_a_template_cannot_leave_its_sandbox() -> None:
    template = ChatTemplate("{{ messages.__class__.__mro__ }}", special_tokens={})
    with pytest.raises(ChatTemplateError, match="unsafe"):
        template.render([])


def test_templates_get_the_switches_filters_and_clock_that_published_ones_use() -> None:
    source = (
        "{%- for m in messages %}{%- if loop.index > 1 %}{% break %}{% endif %}{{ m | tojson }}{% endfor %}"
        "{% generation %}{{ strftime_now('%Y') }}{% endgeneration %}{{ enable_thinking }}"
    )
    template = ChatTemplate(source, special_tokens={}, now=lambda: datetime(2031, 2, 3))
    text = template.render(
        [{"role": "user", "content": "<a>é"}, {"role": "user", "content": "never seen"}],
        arguments={"enable_thinking": False},
    )
    assert text == '{"role": "user", "content": "<a>é"}2031False'


def test_a_jinja_file_wins_over_the_settings(speaking_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(speaking_model, tmp_path / "model")
    (folder / "chat_template.jinja").write_text("from the file")
    loaded = load_tokenizer(folder)
    assert loaded is not None
    assert loaded.template is not None
    assert loaded.template.render([]) == "from the file"


def test_the_template_called_default_is_taken_from_a_list(speaking_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(speaking_model, tmp_path / "model")
    named = [{"name": "rag", "template": "wrong"}, {"name": "default", "template": "right"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    loaded = load_tokenizer(folder)
    assert loaded is not None
    assert loaded.template is not None
    assert loaded.template.render([]) == "right"


def test_a_folder_without_a_tokenizer_gives_none(tmp_path: Path) -> None:
    assert load_tokenizer(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer.json", "{", "not a tokenizer"),
        ("tokenizer_config.json", "{", "not JSON"),
        ("chat_template.jinja", "{% if %}", "cannot be compiled: line 1"),
    ],
)
def test_a_broken_file_is_named(speaking_model: Path, tmp_path: Path, name: str, content: str, says: str) -> None:
    folder = shutil.copytree(speaking_model, tmp_path / "model")
    (folder / name).write_text(content)
    with pytest.raises(EngineError, match=says) as caught:
        load_tokenizer(folder)
    assert name in str(caught.value)
