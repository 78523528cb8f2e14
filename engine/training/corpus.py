"""Responses and their features on disk: an append-only pair of files, so an interrupted run goes on where it stopped.

`records.jsonl` holds a line a response, `features.bin` its feature rows in bfloat16, one after the other. A response counts once its
line is complete; feature rows after the last counted response are cut off when the corpus is opened for writing.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from engine.errors import EngineError
from engine.training.responses import Response


@dataclass(frozen=True)
class CorpusKey:
    """What the features depend on: a corpus made for another target or other taps must not be trained on."""

    target_sha256: str
    taps: tuple[int, ...]
    width: int  # elements in a feature row: taps * hidden


@dataclass(frozen=True)
class Record:
    """One response. The first `prompt_tokens` ids are the prompt; its len(token_ids) - 1 feature rows start at `first_row`."""

    token_ids: tuple[int, ...]
    prompt_tokens: int
    kind: str
    temperature: float
    first_row: int

    @property
    def response_tokens(self) -> int:
        return len(self.token_ids) - self.prompt_tokens


@dataclass(frozen=True)
class Corpus:
    """Records with a memory map of all feature rows, [rows, width] as raw 16-bit words."""

    records: tuple[Record, ...]
    rows: np.ndarray[tuple[int, int], np.dtype[np.int16]]

    def features(self, record: Record) -> Tensor:
        """The record's features, bfloat16 [len(token_ids) - 1, width]."""
        part = self.rows[record.first_row : record.first_row + len(record.token_ids) - 1]
        return torch.from_numpy(part.copy()).view(torch.bfloat16)

    @property
    def response_tokens(self) -> int:
        return sum(record.response_tokens for record in self.records)

    def answer_ids(self) -> Tensor:
        """The tokens of all answers, int64: what a drafter is to propose."""
        return torch.tensor(
            [token for record in self.records for token in record.token_ids[record.prompt_tokens :]], device="cpu"
        )


def read_corpus(folder: Path, key: CorpusKey) -> Corpus:
    """All complete records of `folder`; an empty corpus where there is none. Raises EngineError where `key` differs."""
    records = _read_records(folder, key)
    path = folder / "features.bin"
    if not records:
        return Corpus((), np.empty((0, key.width), dtype=np.int16))
    rows = np.memmap(path, dtype=np.int16, mode="r").reshape(-1, key.width)
    return Corpus(tuple(records), rows)


class CorpusWriter:
    """Appends responses to a corpus; use it as a context manager."""

    def __init__(self, folder: Path, key: CorpusKey) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        records = _read_records(folder, key)
        (folder / "key.json").write_text(json.dumps(asdict(key)) + "\n", encoding="utf-8")
        self._row_bytes = 2 * key.width
        self._rows = records[-1].first_row + len(records[-1].token_ids) - 1 if records else 0
        self.records = len(records)
        self.response_tokens = sum(record.response_tokens for record in records)
        self._features = (folder / "features.bin").open("ab")
        self._features.truncate(self._rows * self._row_bytes)
        lines = folder / "records.jsonl"
        if lines.exists():
            kept = b"".join(lines.read_bytes().splitlines(keepends=True)[: len(records)])
            lines.write_bytes(kept)
        self._lines = lines.open("a", encoding="utf-8")

    def append(self, response: Response) -> None:
        """Write the features, then the line that makes them count."""
        prompt_tokens = len(response.question.token_ids)
        record = Record(
            token_ids=response.token_ids,
            prompt_tokens=prompt_tokens,
            kind=response.question.kind,
            temperature=response.question.temperature,
            first_row=self._rows,
        )
        self._features.write(response.features.contiguous().view(torch.int16).numpy().tobytes())
        self._features.flush()
        self._lines.write(json.dumps(asdict(record)) + "\n")
        self._lines.flush()
        self._rows += len(response.token_ids) - 1
        self.records += 1
        self.response_tokens += record.response_tokens

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._features.close()
        self._lines.close()


def _read_records(folder: Path, key: CorpusKey) -> list[Record]:
    path = folder / "records.jsonl"
    if not path.exists():
        return []
    stored = json.loads((folder / "key.json").read_text(encoding="utf-8"))
    if CorpusKey(stored["target_sha256"], tuple(stored["taps"]), stored["width"]) != key:
        raise EngineError(
            "holds features of another target or other tapped layers",
            where=str(folder),
            mend="name another work folder, or delete this one",
        )
    records = []
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):  # cut short by a kill while it was being written
            break
        value = json.loads(line)
        records.append(Record(**{**value, "token_ids": tuple(value["token_ids"])}))
    return records
