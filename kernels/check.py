"""Compile every kernel in every configuration without a GPU, and judge what came out: `python -m kernels check`.

Triton's compiler never looks at the shared-memory limit (that error comes at load, on the device), and spills quietly.
Both are read here from the finished binary, with the tools inside the triton package.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernels.launch import OPTIONS, Argument, Case, Launch, triton

MODULES = (
    "rms_norm",
    "rope",
    "silu_mul",
    "paged_attention",
    "split_attention",
    "kv_store",
    "path_commit",
    "tree_build",
    "accept_walk",
    "draft_topk",
    "token_choice",
    "latent_attention",
    "moe_router",
    "moe_align",
    "int4_gemm",
    "moe_gemm",
)
"""The files of this folder that hold kernels."""

ARCHITECTURES = (80, 90, 100, 120)

SHARED_LIMITS = {80: 166_912, 90: 232_448, 100: 232_448, 120: 101_376}
"""Bytes of shared memory one block may have (CUDA programming guide, table of compute capabilities)."""

REGISTER_LIMIT = 255

_TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64", torch.bool: "i1",
    torch.int8: "i8", torch.uint8: "u8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip
_WIDE = re.compile(r"ld\.global[.\w:]*\.v4\.b32|ld\.global[.\w:]*\.v2\.b64|cp\.async\.cg[^;]*0x10|cp\.async\.bulk")


@dataclass(frozen=True)
class Row:
    """What one kernel came to in one configuration. `why` says what is wrong, "" where `ok`."""

    kernel: str
    config: str
    arch: int
    shared_bytes: int
    registers: int
    spill_bytes: int
    ok: bool
    why: str


def check(architectures: Sequence[int], modules: Sequence[str] = MODULES, workers: int | None = None) -> Iterator[Row]:
    """A row per kernel, configuration and architecture, in that order; finished binaries are kept in Triton's cache.

    `workers`: processes, as many as the machine has cores unless said.
    """
    jobs = [
        (module, index, arch) for arch in architectures for module in modules for index in range(_count(module, arch))
    ]
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        yield from pool.map(_row_of, jobs, chunksize=1)


def cases(module: str, arch: int) -> list[Case]:
    """The configurations of one file of this folder."""
    found: Iterable[Case] = importlib.import_module(f"kernels.{module}").cases(arch)
    return list(found)


def compile_case(case: Case, arch: int) -> Row:
    """Compile one configuration and read the binary's shared memory, registers and spills."""
    config, launch = case
    kernel = str(launch.kernel.__name__).removesuffix("_kernel")
    signature, constants, attributes = specialisation(launch)
    source = triton.compiler.ASTSource(launch.kernel, signature, constants, attributes)
    target = triton.backends.compiler.GPUTarget("cuda", arch, 32)
    options = {"num_warps": launch.warps, "num_stages": launch.stages, **OPTIONS}
    compiled = triton.compile(source, target=target, options=options)
    registers, spills = _resources(compiled.asm["cubin"])
    shared = int(compiled.metadata.shared)
    faults = [
        f"shared memory {shared:,} B over the limit of {SHARED_LIMITS[arch]:,} B"
        if shared > SHARED_LIMITS[arch]
        else "",
        f"spills {spills:,} B a thread" if spills else "",
        f"{registers} registers a thread" if registers > REGISTER_LIMIT else "",
        "no 16-byte loads" if launch.wide and not _WIDE.search(compiled.asm["ptx"]) else "",
    ]
    why = "; ".join(filter(None, faults))
    return Row(kernel, config, arch, shared, registers, spills, not why, why)


def specialisation(launch: Launch) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int, ...], list[list[object]]]]:
    """What Triton's launcher makes of the arguments: types by name, compile-time constants, "divisible by 16" by place."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[object]]] = {}
    for place, parameter in enumerate(launch.kernel.params):
        value = launch.arguments[parameter.name]
        fixed = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (fixed and type(value) is int and value == 1):
            signature[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        signature[parameter.name] = _type_of(value)
        if fixed and _divisible_by_16(value):
            attributes[(place,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def _type_of(value: Argument) -> str:
    if isinstance(value, Tensor):
        return "*" + _TYPES[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32"


def _divisible_by_16(value: Argument) -> bool:
    if isinstance(value, Tensor):  # allocations begin on 512 bytes
        return value.storage_offset() * value.element_size() % 16 == 0
    return type(value) is int and value % 16 == 0


def _resources(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of stack: what spilled) a thread."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listing = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", listing)
    if found is None:
        raise RuntimeError(f"cuobjdump lists no registers: {listing.strip()[:200]}")
    return int(found[1]), int(found[2])


def _count(module: str, arch: int) -> int:
    return len(cases(module, arch))


def _row_of(job: tuple[str, int, int]) -> Row:
    module, index, arch = job
    torch.set_num_threads(1)
    case = cases(module, arch)[index]
    try:
        return compile_case(case, arch)
    except triton.compiler.errors.CompilationError as error:
        kernel = str(case[1].kernel.__name__).removesuffix("_kernel")
        return Row(kernel, case[0], arch, 0, 0, 0, False, f"does not compile: {' '.join(str(error).split())[:300]}")
