"""Values, speeds and whole rounds of the kernels, one table last. `tests/gpu/run.sh` says how to start it."""

from __future__ import annotations

import sys
from time import perf_counter

import torch

from kernels.launch import triton
from tests.gpu.measure import Bench, Row, copy_bandwidth, print_table
from tests.gpu.rounds import check_rounds, time_rounds
from tests.gpu.speed import attention_grid, attention_peers, latencies, streaming, verdicts
from tests.gpu.values import check_values


def main(mode: str) -> int:
    """Exit status: 0 done, 2 bad usage, 4 no GPU. A wrong value ends it with an assertion that names the kernel."""
    if mode not in ("measure", "rehearse"):
        print(f"tests/gpu: {mode} is not known; take measure or rehearse", file=sys.stderr)
        return 2
    if mode == "measure" and not torch.cuda.is_available():
        print("tests/gpu: no GPU that torch can use; take rehearse, or run it on a GPU box", file=sys.stderr)
        return 4
    bench = Bench(torch.device("cuda" if mode == "measure" else "cpu"), mode == "measure")
    torch.set_grad_enabled(False)
    began = perf_counter()

    def told(part: str) -> None:
        print(f"{perf_counter() - began:6.1f} s  {part}", flush=True)

    name = torch.cuda.get_device_name() if bench.measures else "no GPU: a rehearsal"
    rows = [Row("machine", name, note=f"torch {torch.__version__}, triton {triton.__version__ if triton else 'none'}")]
    told("values")
    rows += check_values(bench)
    told("whole rounds: equal tokens")
    rows += check_rounds(bench)
    told("copy")
    copy = copy_bandwidth(bench)
    rows.append(Row("copy", "1 GiB", gb_s=copy / 1e9))
    told("attention")
    rows += attention_grid(bench, copy)
    told("its peers")
    rows += attention_peers(bench, copy)
    told("the other kernels")
    rows += streaming(bench, copy)
    told("build, walk, choice")
    rows += latencies(bench)
    told("whole rounds: times")
    rows += time_rounds(bench, copy)
    told("done")
    print_table([*rows, *verdicts(rows)])
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
