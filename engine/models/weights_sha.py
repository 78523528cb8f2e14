"""One word for the weights of a folder: two folders of one name with other weights have different words."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, BinaryIO

from engine.errors import EngineError
from engine.models.loader import shards

PIECE_BYTES = 4096
DIGITS = 16


def weights_sha(folder: Path) -> str:
    """16 hexadecimal digits over the names, types, shapes and bytes of every tensor in the folder's safetensors files.

    Of each tensor the beginning, the middle and the end are read, 4 KiB each, so that hundreds of gigabytes take seconds:
    training, merging and quantising change a tensor everywhere. How the tensors are spread over files does not matter.
    It tells weights apart; it is no protection against somebody who means to deceive. Raises EngineError for a file that
    is not a safetensors file.
    """
    tensors: dict[str, bytes] = {}
    for shard in shards(folder):
        with shard.open("rb") as file:
            tensors.update(_tensor_digests(file, str(shard)))
    whole = hashlib.sha256()
    for name in sorted(tensors):
        whole.update(name.encode() + b"\0" + tensors[name])
    return whole.hexdigest()[:DIGITS]


def _tensor_digests(file: BinaryIO, where: str) -> dict[str, bytes]:
    """Tensor name -> digest of what it is and of three pieces of it."""
    try:
        length = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(length))
        header.pop("__metadata__", None)
        return {name: _digest(file, 8 + length, entry) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, MemoryError, OverflowError) as error:
        raise EngineError(f"is no safetensors file ({error})", where=where) from error


def _digest(file: BinaryIO, data_at: int, entry: dict[str, Any]) -> bytes:
    begin, end = entry["data_offsets"]
    size = end - begin
    digest = hashlib.sha256(json.dumps([entry["dtype"], entry["shape"]]).encode())
    for at in sorted({0, max((size - PIECE_BYTES) // 2, 0), max(size - PIECE_BYTES, 0)}):
        file.seek(data_at + begin + at)
        digest.update(file.read(min(PIECE_BYTES, size - at)))
    return digest.digest()
