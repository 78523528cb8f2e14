"""A GPU that is not there: tensors with shapes and a device but no values, on which a whole round is run as a capture runs it.

Reading a value, or an operation over two devices, is an error there, as it is (or ought to be) while a graph is captured.
Kernels are not launched but written down. Runs as a program of its own: it gives torch a device, for good.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import kernels
from engine.cache import KvStore, PagePool, PageTable
from engine.config import EngineConfig, ModelTable
from engine.device.answer import packed, packed_tree
from engine.device.model import DeviceModel, device_state, model_of
from engine.device.round import Plan, drafted, plan_of, verified
from engine.device.serving import DeviceRounds
from engine.draft import Drafting, DraftRequest, DraftState, draft_candidates, take_in_context
from engine.draft_head import DraftHead
from engine.drafter import Drafter
from engine.drafter_config import read_drafter_config
from engine.models.decoder import Decoder
from engine.models.layers import Linear
from engine.models.loader import read_model_config
from engine.round import Generation, Rows, run_target
from engine.runtime import Runtime, Sampling, Speculation
from kernels.launch import KNOWN_GPUS, Launch
from kernels.token_choice import SamplingTensors
from tests.engine.small_models import write_models

BLOCK, PAGE_SIZE, PAGES = 6, 16, 32


class Watch(TorchDispatchMode):
    """Raises for an operation that would wait for the device, or that makes or takes a tensor elsewhere."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func)
        if name.startswith(("aten._local_scalar_dense", "aten.nonzero", "aten._unique2", "aten.masked_select")):
            raise AssertionError(f"{name} waits for the device")
        for leaf in tree_leaves((args, kwargs, out)):
            if isinstance(leaf, torch.Tensor) and leaf.device.type != self._device.type:
                raise AssertionError(f"{name} has a tensor on {leaf.device}")
        return out


def prepare() -> torch.device:
    """Give torch the device, and let kernels take its tensors."""
    _setup_privateuseone_for_python_backend("pretended")
    names = [f"kernels.{info.name}" for info in pkgutil.iter_modules(kernels.__path__) if info.name != "__main__"]
    for name in (*names, "engine.models.experts"):
        module: Any = importlib.import_module(name)
        if hasattr(module, "on_triton"):
            module.on_triton = lambda *tensors: any(tensor.device.type == "pretended" for tensor in tensors)
        if hasattr(module, "gpu_of"):
            module.gpu_of = lambda tensor: KNOWN_GPUS[90]
    return torch.device("pretended", 0)


@contextmanager
def launches() -> Iterator[list[str]]:
    """Every launch in words that tell one compilation from another."""
    told: list[str] = []

    def note(self: Launch) -> None:
        numbers = {name: value for name, value in self.arguments.items() if not isinstance(value, torch.Tensor)}
        strangers = [
            name
            for name, value in self.arguments.items()
            if isinstance(value, torch.Tensor) and value.device.type != "pretended"
        ]
        assert not strangers, f"{self.kernel.__name__}: {strangers} elsewhere"
        told.append(f"{self.kernel.__name__} {self.grid} {numbers} {self.warps} {self.stages}")

    before, Launch.run = Launch.run, note  # type: ignore[method-assign]
    try:
        yield told
    finally:
        Launch.run = before  # type: ignore[method-assign]


def on_device(module: Any, device: torch.device) -> None:
    """Parameters without values, there."""
    for part in module.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is not None:
                dtype = torch.bfloat16 if parameter.dtype.is_floating_point else parameter.dtype
                dtype = torch.float32 if "e_score" in name else dtype
                made = torch.empty(parameter.shape, dtype=dtype, device=device)
                part._parameters[name] = nn.Parameter(made, requires_grad=False)
    module.rotary.frequencies = torch.empty(module.rotary.frequencies.shape, device=device)


def runtime_of(kind: str, folder: Path, device: torch.device, *, words: int, packed_experts: bool) -> Runtime:
    target_folder, drafter_folder = write_models(kind, folder)
    if packed_experts:
        config = json.loads((target_folder / "config.json").read_text())
        group = {"weights": {"num_bits": 4, "type": "int", "symmetric": True, "group_size": 32, "strategy": "group"}}
        config["hidden_size"], config["moe_intermediate_size"] = 64, 32
        config["quantization_config"] = {
            "quant_method": "compressed-tensors", "format": "pack-quantized",
            "config_groups": {"group_0": {**group, "targets": ["Linear"]}},
        }  # fmt: skip
        (target_folder / "config.json").write_text(json.dumps(config))
        drafts = json.loads((drafter_folder / "config.json").read_text())
        (drafter_folder / "config.json").write_text(json.dumps({**drafts, "hidden_size": 64}))
    shape = read_model_config(target_folder)
    drafts_shape = read_drafter_config(drafter_folder, shape)
    with FAKE:
        with torch.device("meta"):
            target, drafter = Decoder(shape), Drafter(drafts_shape)
        for module in (target, drafter):
            on_device(module, device)
        head = DraftHead()
        if words:
            rows = Linear(shape.hidden_size, words)
            rows.weight = nn.Parameter(torch.empty(words, shape.hidden_size, dtype=torch.bfloat16, device=device))
            head = DraftHead(torch.empty(words, dtype=torch.int64, device=device), rows)
        slots, dtype = PAGES * PAGE_SIZE, torch.bfloat16
        latent = shape.latent.rank if shape.latent else 0
        kv = KvStore(slots, shape.layers, shape.kv_heads, shape.head_dim, dtype, latent, device)
        own = KvStore(slots, drafts_shape.layers, drafts_shape.kv_heads, drafts_shape.head_dim, dtype, device=device)
    if packed_experts:
        assert any(name.endswith("gate_up_proj_packed") for name, _ in target.named_parameters())
    config = EngineConfig(model=ModelTable(path=str(target_folder)))
    config = replace(config, context=replace(config.context, context_length=128))
    return Runtime(config, target, PagePool(PAGES, PAGE_SIZE), kv, Drafting(drafter, own, BLOCK, 0, head))


def plans(model: DeviceModel) -> list[Plan]:
    """Every shape of a round."""
    tree = plan_of("ddtree", 12, model, 512)
    return [
        plan_of("off", 0, model, 512, keeps_up=False),
        plan_of("off", 0, model, 512),
        plan_of("dflash", 0, model, 512),
        tree,
        replace(tree, costs=torch.empty(13, device=model.device)),
    ]


def check_rounds(runtime: Runtime, device: torch.device) -> set[str]:
    """Each plan's round twice, as a warm-up and a capture run it -> the kernels launched."""
    seen: set[str] = set()
    with FAKE:
        model = model_of(runtime)
        sampling = SamplingTensors(
            torch.empty(1, dtype=torch.int64, device=device),
            torch.empty(1, dtype=torch.int32, device=device),
            torch.empty(3, device=device),
        )
        state = device_state(model, pages=PAGES, sampling=sampling)
        for plan in plans(model):
            told = []
            for _ in range(2):
                with launches() as launched, Watch(device):
                    tree = drafted(model, state, plan)
                    assert packed_tree(tree).device == device
                    row = packed(state.accepted, verified(model, state, plan, tree))
                told.append(launched)
                assert row.device == device and row.dtype is torch.int64
            assert told[0] and told[0] == told[1], "what is captured has been compiled in the warm-up"
            seen |= {launch.split(" ")[0] for launch in told[0]}
    return seen


def check_host_side(runtime: Runtime, device: torch.device) -> None:
    """Prefill, the host's drafts, and putting a request on the stage: tensors meet on one device, values are read at ends."""
    assert runtime.drafting is not None

    def bias(visible: torch.Tensor, length: int, group: int, dtype: torch.dtype) -> torch.Tensor:
        """`tree_bias` looks whether anything is hidden at all, which takes a value."""
        assert visible.device == device
        return torch.zeros(len(visible) * group, length, dtype=dtype, device=device)

    plain = torch.tensor

    def without_values(data: Any, dtype: torch.dtype | None = None, device: torch.device | None = None) -> torch.Tensor:
        """torch keeps the values of these even where others have none, and cannot on a device that is not there."""
        made = plain(data, dtype=dtype)
        return torch.empty(made.shape, dtype=made.dtype, device=device)

    with (
        patch("torch.tensor", without_values),
        patch("engine.round.tree_bias", bias),
        FAKE,
        launches(),
    ):
        table = PageTable(runtime.pool)
        table.share(runtime.pool.take(2))  # one after the other: a slice
        table.share(runtime.pool.take(3)[::-1])  # in no order: indices
        state = DraftState(torch.empty(0))
        generation = Generation([3] * 20, Sampling(), Speculation("ddtree", 12), table, state)
        causal = torch.ones(20, 20, dtype=torch.bool).tril()
        hidden, state.features = run_target(runtime, [Rows(generation, [3] * 20, range(20), causal)])
        assert hidden.device == device and state.features.device == device
        take_in_context(runtime.drafting, table, state)
        assert state.rows == 20
        generation.position, generation.token_ids = 20, [5]
        state.features = torch.empty(2, state.features.shape[1], dtype=torch.bfloat16, device=device)
        generation.position = 22
        assert reads_a_value(
            lambda: draft_candidates(runtime.drafting, runtime.target, [DraftRequest(table, state, 5, 12)])  # type: ignore[arg-type]
        )
        runtime.target_kv.commit(table, 40, (0, 2, 5))
        rounds = DeviceRounds(runtime, print)
        rounds._put_on_stage(generation)
        assert reads_a_value(lambda: rounds.decode([generation]))


def reads_a_value(work: Callable[[], object]) -> bool:
    """Whether work came to where a value is read: as far as one can go without values."""
    try:
        work()
    except Exception as end:  # of a kind that torch does not name in public
        if "DataDependent" in type(end).__name__ or "data-dependent" in str(end).lower():
            return True
        raise
    return False


FAKE = FakeTensorMode()

CASES = {
    "llama": ("llama", 0, False),
    "a draft vocabulary": ("llama", 20, False),
    "experts": ("qwen3-moe", 0, False),
    "packed experts": ("qwen3-moe", 0, True),
    "latents": ("deepseek", 0, False),
}


def main() -> None:
    """A JSON line a case: its name and the kernels its rounds launch."""
    device = prepare()
    for name, (kind, words, packed_experts) in CASES.items():
        with tempfile.TemporaryDirectory() as kept:
            runtime = runtime_of(kind, Path(kept), device, words=words, packed_experts=packed_experts)
            kernels_seen = check_rounds(runtime, device)
            check_host_side(runtime, device)
        print(json.dumps({"case": name, "kernels": sorted(kernels_seen)}), flush=True)
    with FAKE, Watch(device):
        value = torch.empty(1, device=device)
        assert reads_a_value(value.item), "the watch sees what it is for"
        try:
            value + torch.empty(1)
        except Exception as end:  # noqa: BLE001 - the point
            print(json.dumps({"case": "two devices", "kernels": [type(end).__name__]}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
