"""How Triton kernels are launched: a launch is a value, so what runs on a GPU and what is compiled without one are the same.

Triton is optional. Without it every operation runs as its torch reference, which is the CPU path anyway. Under Triton's
own interpreter (TRITON_INTERPRET=1 when Python starts) kernels take CPU tensors too: that is how they are tested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

try:
    import triton as _triton
except ImportError:
    _triton = None

triton: Any = _triton
"""The triton package, where there is one."""

tl: Any = None if triton is None else triton.language
"""Triton's language, where there is one."""

INTERPRETED: bool = triton is not None and bool(triton.knobs.runtime.interpret)
"""Whether kernels run in Triton's interpreter, on CPU tensors."""

OPTIONS = {"enable_fp_fusion": True}
"""Compiler options of every kernel: products and sums fuse, whatever a Triton release's default is."""

Argument = Tensor | int | float | bool | None


@dataclass(frozen=True)
class Gpu:
    """What a configuration depends on: `arch` is 10 * major + minor of the compute capability, `sms` its multiprocessors."""

    arch: int
    sms: int


@dataclass(frozen=True)
class Floor:
    """The least an operation can do: bytes to and from memory, and arithmetic operations (an addition or a product is one)."""

    bytes_moved: int
    operations: int


KNOWN_GPUS = {80: Gpu(80, 108), 90: Gpu(90, 132), 100: Gpu(100, 148), 120: Gpu(120, 188)}
"""A card of each architecture that kernels are compiled for: A100, H200, B200, RTX PRO 6000."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch: `arguments` by name, compile-time constants among them; `warps` of 32 threads, pipeline `stages`.

    `wide`: whether some loads have to be 16 bytes a thread for the kernel to reach the memory's speed.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Argument]
    warps: int = 4
    stages: int = 2
    wide: bool = False

    def run(self) -> None:
        """Enqueue it on the current stream (or interpret it). An empty grid does nothing."""
        if all(self.grid):
            self.kernel[self.grid](**self.arguments, num_warps=self.warps, num_stages=self.stages, **OPTIONS)


Case = tuple[str, Launch]
"""A configuration's name and a launch of it, on tensors without memory: what `python -m kernels check` compiles."""


def jit(*, varying: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Any]:
    """Decorates a Triton kernel. `varying`: integers that change from call to call, and must not each cost a compilation."""

    def decorate(function: Callable[..., Any]) -> Any:
        return function if triton is None else triton.jit(function, do_not_specialize=list(varying))

    return decorate


def on_triton(x: Tensor, *others: Tensor) -> bool:
    """Whether an operation on `x` runs as a Triton kernel: on a GPU, and on a CPU under Triton's interpreter.

    Not where a gradient of it or of `others` is wanted: the kernels have none, so training takes the torch reference on every
    device. Raises RuntimeError on a GPU without Triton.
    """
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *others)):
        return False
    if not x.is_cuda:
        return INTERPRETED and x.device.type == "cpu"
    if triton is None:
        raise RuntimeError(
            "tensors on a GPU need the triton package; install the triton that this torch was built with"
        )
    return True


def gpu_of(x: Tensor) -> Gpu:
    """The GPU that `x` lives on; under the interpreter, which has none, an H200."""
    return _gpu(x.device.index or 0) if x.is_cuda else KNOWN_GPUS[90]


@lru_cache
def _gpu(index: int) -> Gpu:
    properties = torch.cuda.get_device_properties(index)
    return Gpu(10 * properties.major + properties.minor, properties.multi_processor_count)


def pow2(size: int) -> int:
    """The smallest power of two that is `size` or more; tiles have such sizes."""
    return 1 << max(size - 1, 0).bit_length()


def cdiv(size: int, block: int) -> int:
    """Blocks that cover `size`."""
    return -(-size // block)


def require(holds: bool, argument: str, wanted: str, got: object) -> None:
    """Raise ValueError that names `argument`, what it must be and what it is, unless it `holds`."""
    if not holds:
        raise ValueError(f"{argument} must be {wanted}, not {got}")
