"""Text to token ids and back, from the tokenizer files of a Hugging Face model folder; `transformers` is not needed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from engine.chat_template import ChatTemplate, ChatTemplateError
from engine.errors import EngineError
from engine.models.fields import refuse_pointer
from engine.tiktoken_file import read_tiktoken

MAX_PARTIAL_TOKENS = 3
"""A UTF-8 character has at most four bytes and a token at least one, so no more than three tokens wait for a last byte."""

UNDECODABLE = "\ufffd"


@dataclass(frozen=True)
class Tokenizer:
    """The tokenizer of one model. `eos_ids` are the ids its files name as end of text (often one, sometimes none)."""

    backend: tokenizers.Tokenizer
    template: ChatTemplate | None
    eos_ids: tuple[int, ...]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`; `add_special_tokens` adds what the tokenizer puts around a bare text (a BOS, say)."""
        return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`; bytes that are no UTF-8 come out as U+FFFD."""
        return str(self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token: of byte-level pieces exactly, part of a character included; else of its text."""
        piece = self.backend.id_to_token(token_id) or ""
        if piece and all(character in _BYTE_OF for character in piece):
            return bytes(_BYTE_OF[character] for character in piece)
        return (self.decode([token_id], skip_special_tokens=False) or piece).encode()

    @property
    def is_byte_level(self) -> bool:
        """Whether each token stands for certain bytes, whatever is around it."""
        return "ByteLevel" in str(self.backend.decoder)

    @cached_property
    def pieces(self) -> list[bytes]:
        """Each token's bytes, by id, where tokens are byte-level; none for special tokens."""
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        found = [b""] * (max(vocabulary.values(), default=-1) + 1)
        added = self.backend.get_added_tokens_decoder()
        for piece, token in vocabulary.items():
            if token in added:
                found[token] = b"" if added[token].special else piece.encode()
            elif all(character in _BYTE_OF for character in piece):
                found[token] = bytes(_BYTE_OF[character] for character in piece)
        return found

    def special_ids(self, texts: Sequence[str]) -> dict[int, str]:
        """Those of `texts` that are one special token each, which decoding leaves out: id -> text."""
        ids = {self.backend.token_to_id(text): text for text in texts}
        return {token: text for token, text in ids.items() if token is not None and not self.decode([token])}

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Ids of a conversation put through the chat template. Raises ChatTemplateError, also where there is none."""
        if self.template is None:
            raise ChatTemplateError("the model folder has no chat template")
        text = self.template.render(messages, add_generation_prompt=add_generation_prompt, arguments=arguments)
        return self.encode(text, add_special_tokens=False)  # the template has written its special tokens itself


def _byte_alphabet() -> dict[str, int]:
    """Byte-level pieces write each byte as one character: printable ones as themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(byte): byte for byte in printable}, **{chr(0x100 + i): byte for i, byte in enumerate(others)}}


_BYTE_OF = _byte_alphabet()


@dataclass
class Detokenizer:
    """Text that grows token by token; a character whose last bytes have not come yet is held back.

    Decoders look at neighbours (a leading blank, joined bytes), so each token is decoded together with the ones
    just before it, and only the growth is given out.
    """

    tokenizer: Tokenizer
    _token_ids: list[int] = field(default_factory=list)
    _given: int = 0  # tokens whose text has been given out
    _anchor: int = 0  # where decoding starts: a few tokens before _given

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; "" while a character is still partial."""
        self._token_ids.append(token_id)
        return self._give_up_to(len(self._token_ids))

    def _give_up_to(self, end: int) -> str:
        before = self.tokenizer.decode(self._token_ids[self._anchor : self._given])
        after = self.tokenizer.decode(self._token_ids[self._anchor : end])
        if after.endswith(UNDECODABLE):
            if end - self._given <= MAX_PARTIAL_TOKENS:
                return ""
            # More tokens than any character needs: the oldest bytes really are no text.
            return self._give_broken(end - MAX_PARTIAL_TOKENS, before)
        if len(after) <= len(before):  # a special token: it has no text, and no word may be decoded as following it
            return ""
        self._anchor, self._given = self._given, end
        return after[len(before) :]

    def _give_broken(self, end: int, before: str) -> str:
        text = self.tokenizer.decode(self._token_ids[self._anchor : end])[len(before) :]
        self._anchor, self._given = end, end
        return text


def load_tokenizer(model_dir: str | Path) -> Tokenizer | None:
    """The tokenizer of a model folder, or None where it has neither tokenizer.json nor tiktoken.model: then only ids are served.

    Raises EngineError for a file that is there and cannot be used.
    """
    folder = Path(model_dir)
    path, older = folder / "tokenizer.json", folder / "tiktoken.model"
    settings = _read_json(folder / "tokenizer_config.json")
    try:
        if path.exists():
            backend = tokenizers.Tokenizer.from_file(str(path))
        elif older.exists():
            backend = read_tiktoken(older, settings, {byte: character for character, byte in _BYTE_OF.items()})
        else:
            return None
    except EngineError:
        raise
    except Exception as fault:  # the package raises bare Exception for any malformed file
        refuse_pointer(path)
        raise EngineError(f"not a tokenizer: {fault}", where=str(path), mend="copy the file again") from fault
    special_tokens = _special_tokens(settings)
    eos = backend.token_to_id(special_tokens["eos_token"]) if "eos_token" in special_tokens else None
    return Tokenizer(backend, _load_template(folder, settings, special_tokens), () if eos is None else (eos,))


def _load_template(folder: Path, settings: Mapping[str, Any], special_tokens: Mapping[str, str]) -> ChatTemplate | None:
    """chat_template.jinja first, as in `transformers`; else the string, or the one called default, in tokenizer_config.json."""
    path = folder / "chat_template.jinja"
    try:
        source = path.read_text(encoding="utf-8") if path.exists() else settings.get("chat_template")
    except (OSError, UnicodeDecodeError) as fault:
        raise EngineError(f"chat template cannot be read: {fault}", where=str(path)) from fault
    if isinstance(source, list):
        named = [entry for entry in source if isinstance(entry, dict) and entry.get("name") == "default"]
        source = named[0].get("template") if named else None
    if source is None:
        return None
    if not isinstance(source, str):
        raise EngineError("chat_template is not a text", where=str(folder / "tokenizer_config.json"))
    try:
        return ChatTemplate(source, special_tokens=special_tokens)
    except ChatTemplateError as fault:
        where = path if path.exists() else folder / "tokenizer_config.json"
        raise EngineError(f"chat template cannot be compiled: {fault}", where=str(where)) from fault


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token, … as text: the files write them as a string or as an object with `content`."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if not name.endswith("_token"):
            continue
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as fault:
        refuse_pointer(path)
        raise EngineError(f"not JSON: {fault}", where=str(path), mend="copy the file again") from fault
    if not isinstance(value, dict):
        raise EngineError("not a JSON object", where=str(path), mend="copy the file again")
    return value
