"""Is it Python, for the box's version? Parsed and compiled here, never run; errors come back as places, never raised."""

from __future__ import annotations

import ast
import sys
import warnings

from console.experiments.script.fault import Fault, Source
from console.experiments.script.fstrings import Problem, Scan, scan_fstrings
from console.experiments.script.versions import Version

_HERE: Version = (sys.version_info.major, sys.version_info.minor)


def check_syntax(source: Source, target: Version) -> tuple[ast.Module | None, tuple[Fault, ...], tuple[Fault, ...]]:
    """The syntax tree of a script, or None; its faults; and what Python itself warns about.

    `target` is the oldest Python that the script must run on. `ast.parse` knows most of an older version's grammar by
    `feature_version`; the f-string forms of Python 3.12 it does not (tested: it accepts them for 3.9), so they are
    looked for in the text. The whole compile step is done, since `return` outside a function and its like parse well.
    """
    scan = scan_fstrings(source.text)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            tree = ast.parse(source.text, feature_version=min(target, _HERE))
            compile(source.text, "script.py", "exec", dont_inherit=True)
        except SyntaxError as error:
            return None, (_fault(source, scan, error, target),), ()
        except (RecursionError, MemoryError):
            return None, (source.fault(1, 1, "nested too deeply for Python to read"),), ()
        except (ValueError, OverflowError) as error:
            return None, (source.fault(1, 1, f"Python cannot read it: {error}"),), ()
    newer = [problem for problem in scan.problems if problem.since is not None and problem.since > target]
    if newer:
        return tree, tuple(source.fault_at(problem.index, _dated(problem, target)) for problem in newer), ()
    return tree, (), tuple(sorted({source.fault(one.lineno, 1, str(one.message)) for one in caught}))


def _dated(problem: Problem, target: Version) -> str:
    if problem.since is None:
        return problem.message
    return f"{problem.message}; Python {_dotted(problem.since)} reads it, and the script must run on {_dotted(target)}"


def _dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def _fault(source: Source, scan: Scan, error: SyntaxError, target: Version) -> Fault:
    line = error.lineno or 1
    message = f"{error.msg}"
    if problem := _cause_in_fstring(source, scan, error):
        return source.fault_at(problem.index, _explained(problem, target))
    if place := _place_in_field(source, scan, error):
        return source.fault_at(place, message)
    return source.fault(line, error.offset or 1, message)


def _explained(problem: Problem, target: Version) -> str:
    if problem.since is None or problem.since > target:
        return _dated(problem, target)
    return f"{problem.message}; it needs Python {_dotted(problem.since)}, and this console's {_dotted(_HERE)} cannot check it"


def _cause_in_fstring(source: Source, scan: Scan, error: SyntaxError) -> Problem | None:
    """The problem with a replacement field that Python means, whose own place for it differs from version to version."""
    line = error.lineno or 1
    readable = [problem for problem in scan.problems if problem.since is None or problem.since > _HERE]
    on_line = [problem for problem in readable if source.fault_at(problem.index, "").line == line]
    if on_line:
        return on_line[0]
    if "f-string" in (error.msg or ""):
        before = [problem for problem in readable if source.fault_at(problem.index, "").line < line]
        return before[-1] if before else None
    return None


def _place_in_field(source: Source, scan: Scan, error: SyntaxError) -> int | None:
    """Python up to 3.11 parses a field apart, as `(expression)`, and counts its offset in that; find the field again."""
    shown = (error.text or "").rstrip("\n")
    if not shown.startswith("(") or shown.lstrip() == source.line(error.lineno or 1).lstrip():
        return None
    for field in scan.fields:
        apart = f"({source.text[field.start + 1 : field.end]})"
        if (
            apart.split("\n")[0].startswith(shown.split("\n")[0])
            and source.fault_at(field.start, "").line == error.lineno
        ):
            return field.start + max(error.offset or 1, 1) - 1
    return None
