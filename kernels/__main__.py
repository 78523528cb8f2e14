"""`python -m kernels check`: compile the kernel set without a GPU."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from kernels.check import ARCHITECTURES, MODULES, Row, check
from kernels.launch import INTERPRETED, triton

_FAILED, _USAGE, _NO_TRITON = 3, 2, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 all well, 2 bad usage, 3 a kernel that does not fit, spills or fails to compile, 4 no Triton."""
    parser = argparse.ArgumentParser(prog="python -m kernels", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser(
        "check", help="compile every kernel in every configuration; shared memory, registers, spills"
    )
    verb.add_argument("--arch", default=",".join(map(str, ARCHITECTURES)), help="comma-separated, of %(default)s")
    verb.add_argument("--only", default="", help="comma-separated files of kernels/, without .py")
    verb.add_argument("--json", action="store_true", help="one JSON object a line")
    verb.add_argument(
        "--table", type=Path, help="write the rows to this file as well, with Triton's version: the checked-in table"
    )
    options = parser.parse_args(arguments)
    try:
        architectures = [int(arch) for arch in options.arch.split(",")]
    except ValueError:
        return _refuse(
            f"--arch {options.arch} is not a list of numbers", f"take some of {', '.join(map(str, ARCHITECTURES))}"
        )
    modules = options.only.split(",") if options.only else MODULES
    for given, known in ((architectures, ARCHITECTURES), (modules, MODULES)):
        unknown = [str(name) for name in given if name not in known]
        if unknown:
            return _refuse(f"{', '.join(unknown)} is not known", f"take some of {', '.join(map(str, known))}")
    if INTERPRETED:
        return _refuse("kernels do not compile under the interpreter", "unset TRITON_INTERPRET")
    if triton is None:
        print("kernels: the triton package is not installed; install the extra `test`", file=sys.stderr)
        return _NO_TRITON
    rows = []
    for row in check(architectures, modules):
        rows.append(row)
        print(json.dumps(asdict(row)) if options.json else _line(row), flush=True)
    if options.table is not None:
        options.table.write_text(table_of(rows), encoding="utf-8")
    failed = sum(not row.ok for row in rows)
    if not options.json:
        kernels = len({row.kernel for row in rows})
        print(f"{kernels} kernels, {len(rows)} configurations, {failed} of them not well")
    return _FAILED if failed else 0


def table_of(rows: Sequence[Row]) -> str:
    """The checked-in form: JSON, a row a line, so that a change of figures is a change of lines."""
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    return f'{{"triton": "{triton.__version__}", "rows": [\n{lines}\n]}}\n'


def _refuse(what: str, mend: str) -> int:
    print(f"kernels: {what}; {mend}", file=sys.stderr)
    return _USAGE


def _line(row: Row) -> str:
    figures = f"{row.shared_bytes:>7,} B shared {row.registers:>3} registers {row.spill_bytes:>4} B spilled"
    return f"{'ok  ' if row.ok else 'FAIL'} sm_{row.arch:<3} {row.kernel:<22} {row.config:<46} {figures}  {row.why}".rstrip()


if __name__ == "__main__":
    raise SystemExit(main())
