"""Loading and running a model brings nothing into memory that it does not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DATA = Path(__file__).parents[1] / "data" / "tiny-ddtree"

PROGRAM = f"""
import sys
import engine.server.main
from engine.config import ContextTable, EngineConfig, KvTable, ModelTable, SpeculationTable
from engine.runtime import load_runtime
from engine.server.loading import warm_up

warm_up(load_runtime(EngineConfig(
    model=ModelTable(path={str(DATA / "target")!r}, drafter={str(DATA / "drafter")!r}),
    context=ContextTable(64), kv=KvTable(pages=8), speculation=SpeculationTable("ddtree"),
)))
print(*sorted({{"sympy", "torch._dynamo", "torch._inductor", "transformers", "scipy", "engine.round"}} & sys.modules.keys()))
"""


def test_serving_loads_neither_torchs_compiler_nor_what_comes_with_it() -> None:
    """Those 80 MB came with one random number that nobody wanted, drawn on the meta device."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["engine.round"]
