"""Weights under one name are told apart by their bytes, wherever in a tensor these differ, and by nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.errors import EngineError
from engine.models.weights_sha import weights_sha

TENSORS = {"a.weight": torch.arange(64 * 1024, dtype=torch.float32).reshape(256, 256), "b.bias": torch.ones(3)}


def folder_with(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_a_copy_has_the_same_word_and_so_has_one_spread_over_files(tmp_path: Path) -> None:
    whole = weights_sha(folder_with(tmp_path / "one", TENSORS))
    assert weights_sha(folder_with(tmp_path / "two", dict(reversed(TENSORS.items())))) == whole
    spread = tmp_path / "spread"
    spread.mkdir()
    for name, tensor in TENSORS.items():
        save_file({name: tensor}, spread / f"{name}.safetensors", metadata={"format": "pt"})
    index = {"weight_map": {name: f"{name}.safetensors" for name in TENSORS}}
    (spread / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weights_sha(spread) == whole


@pytest.mark.parametrize("place", [(0, 0), (128, 0), (255, 255)])
def test_a_number_at_the_beginning_the_middle_or_the_end_of_a_tensor_counts(
    tmp_path: Path, place: tuple[int, int]
) -> None:
    changed = TENSORS["a.weight"].clone()
    changed[place] += 1
    words = {
        weights_sha(folder_with(tmp_path / "before", TENSORS)),
        weights_sha(folder_with(tmp_path / "after", {**TENSORS, "a.weight": changed})),
    }
    assert len(words) == 2


def test_a_name_a_type_and_a_shape_count(tmp_path: Path) -> None:
    renamed = {"c.weight": TENSORS["a.weight"], "b.bias": TENSORS["b.bias"]}
    reshaped = {**TENSORS, "a.weight": TENSORS["a.weight"].reshape(512, 128)}
    retyped = {**TENSORS, "b.bias": torch.tensor([0x3F800000] * 3, dtype=torch.int32)}  # the bytes of three ones
    variants = (TENSORS, renamed, reshaped, retyped)
    words = {weights_sha(folder_with(tmp_path / str(number), one)) for number, one in enumerate(variants)}
    assert len(words) == 4


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 64, b"\x02" + b"\0" * 7 + b"[]", (2**40).to_bytes(8, "little") + b"{}"]
)
def test_what_is_no_safetensors_file_is_one_clear_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(EngineError, match="is no safetensors file"):
        weights_sha(tmp_path)
