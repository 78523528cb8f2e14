#!/usr/bin/env bash
# Everything about the kernels that needs a GPU, in under ten minutes; prints one table last. From anywhere:
#
#     bash tests/gpu/run.sh              on a GPU
#     bash tests/gpu/run.sh --rehearse   the same steps on a CPU at toy sizes, no figure measured: do they run at all?
#
# A step that fails, dies or hangs is a row of the table; the others run. Needs the engine's requirements and the triton
# that came with torch. PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/../.."
mode="${1:-measure}"
shift || true
exec "${PYTHON:-python3}" -m tests.gpu.run "${mode#--}" "$@"
