"""What the kernels compile to, without a GPU: the checked-in table is whole, fits every architecture, and is still true.

The table comes from `python -m kernels check --table tests/kernels/compiled_kernels.json`, which compiles everything; here one
configuration of each kernel is compiled again, on the architecture whose limits are the tightest. The whole check takes minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="Triton is for Linux only")

from kernels.check import ARCHITECTURES, MODULES, SHARED_LIMITS, cases  # noqa: E402

TABLE = Path(__file__).with_name("compiled_kernels.json")
TIGHTEST = 120


@cache
def table() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(TABLE.read_text())
    return loaded


def test_the_table_has_a_row_for_every_configuration_on_every_architecture() -> None:
    wanted = [
        (launch.kernel.__name__.removesuffix("_kernel"), config, arch)
        for arch in ARCHITECTURES
        for module in MODULES
        for config, launch in cases(module, arch)
    ]
    assert [(row["kernel"], row["config"], row["arch"]) for row in table()["rows"]] == wanted
    assert len(set(wanted)) == len(wanted)
    assert len({kernel for kernel, _, _ in wanted}) >= 14


def test_everything_fits_without_spills() -> None:
    for row in table()["rows"]:
        assert row["ok"] and row["why"] == "" and row["spill_bytes"] == 0, row
        assert row["shared_bytes"] <= SHARED_LIMITS[row["arch"]] and row["registers"] <= 255, row


def test_what_is_compiled_is_what_tritons_own_launcher_would_ask_for() -> None:
    """A stand-in for the driver, which cannot exist without a GPU, says which architecture it is; the rest is Triton's."""
    program = """
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from kernels.check import MODULES, cases, specialisation
from kernels.launch import OPTIONS

class StandIn:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

driver.set_active(StandIn())
count = 0
for module in MODULES:
    for config, launch in cases(module, 90):
        *_, backend, binder = launch.kernel.create_binder()
        options = {"num_warps": launch.warps, "num_stages": launch.stages, **OPTIONS}
        bound, asked, given = binder(**launch.arguments, **options)
        _, signature, constants, attributes = launch.kernel._pack_args(backend, dict(options), bound, asked, given)
        constants = {launch.kernel.arg_names[place[0]]: value for place, value in constants.items()}
        attributes = {place: found for place, found in attributes.items() if found}
        assert (signature, constants, attributes) == specialisation(launch), (module, config)
        count += 1
print(count)
"""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert 4 * int(ended.stdout) == len(table()["rows"])


@pytest.mark.parametrize("part", range(2))
def test_one_configuration_of_each_kernel_still_compiles_to_the_tables_figures(part: int) -> None:
    """In a process of its own, which no earlier test can have set to interpret. Figures hold for the table's Triton."""
    program = f"""
import json, sys
from dataclasses import asdict
from kernels.check import MODULES, cases, compile_case
done = set()
for module in MODULES:
    for case in cases(module, {TIGHTEST}):
        if case[1].kernel.__name__ not in done:
            done.add(case[1].kernel.__name__)
            if len(done) % 2 == {part}:
                print(json.dumps(asdict(compile_case(case, {TIGHTEST}))), flush=True)
"""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr[-3000:]
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(rows) >= 7
    known = {(row["kernel"], row["config"], row["arch"]): row for row in table()["rows"]}
    for row in rows:
        assert row["ok"], row
        if triton.__version__ == table()["triton"]:
            assert row == known[row["kernel"], row["config"], row["arch"]]
