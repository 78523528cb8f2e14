"""Which Pythons a script must run on, and what their standard library holds.

A script's `requires-python` is a promise for every version it admits; once the box is known, only the box's counts.
"""

from __future__ import annotations

import re
import sys
from typing import TypeAlias

Version: TypeAlias = tuple[int, int]

OLDEST: Version = (3, 9)  # what the playbooks' own helper runs on
NEWEST: Version = (3, 14)
KNOWN: tuple[Version, ...] = tuple((3, minor) for minor in range(OLDEST[1], NEWEST[1] + 1))

# Top-level standard modules that came or went between OLDEST and NEWEST ("What's New In Python 3.x", Removed).
_CAME: dict[str, Version] = {"tomllib": (3, 11), "compression": (3, 14), "annotationlib": (3, 14)}
_WENT: dict[str, Version] = {
    **dict.fromkeys(("formatter", "parser", "symbol", "macpath"), (3, 10)),
    "binhex": (3, 11),
    **dict.fromkeys(("asynchat", "asyncore", "distutils", "imp", "smtpd"), (3, 12)),
    **dict.fromkeys(
        (
            "aifc", "audioop", "cgi", "cgitb", "chunk", "crypt", "imghdr", "lib2to3", "mailcap", "msilib",
            "nis", "nntplib", "ossaudiodev", "pipes", "sndhdr", "spwd", "sunau", "telnetlib", "uu", "xdrlib",
        ),
        (3, 13),
    ),
}  # fmt: skip
_STDLIB = frozenset(sys.stdlib_module_names) | _CAME.keys() | _WENT.keys()

_CLAUSE = re.compile(r"^(?P<op>>=|<=|==|!=|~=|>|<)\s*(?P<version>\d+(?:\.\d+){0,2})(?P<star>\.\*)?$")
_MICROS = range(40)  # micro releases of one minor version that are thought of


def admitted(requires_python: str) -> tuple[Version, ...]:
    """The minor versions from OLDEST to NEWEST that a `requires-python` text admits.

    Raises ValueError for a text that is no comma-separated list of version clauses.
    """
    clauses = [_clause(part.strip()) for part in requires_python.split(",")]
    return tuple(
        version
        for version in KNOWN
        if any(all(_holds((*version, micro), *clause) for clause in clauses) for micro in _MICROS)
    )


def parse_version(text: str) -> Version:
    """`"3.11.2"` or `"Python 3.11.2"` -> (3, 11). Raises ValueError."""
    match = re.search(r"(\d+)\.(\d+)", text)
    if not match:
        raise ValueError(f"{text!r} names no Python version")
    return int(match[1]), int(match[2])


def why_not_stdlib(module: str, versions: tuple[Version, ...]) -> str | None:
    """None when every version's standard library has the top-level `module`; else why not, in words."""
    if module not in _STDLIB:
        return f"{module} is neither in the standard library nor in kit.py; a playbook may import nothing else"
    came, went = _CAME.get(module), _WENT.get(module)
    if came and any(version < came for version in versions):
        return f"{module} came with Python {_dotted(came)}, and this script must run on {_dotted(min(versions))}"
    if went and any(version >= went for version in versions):
        return f"{module} is gone since Python {_dotted(went)}, and this script must run on {_dotted(max(versions))}"
    return None


def _dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def _clause(text: str) -> tuple[str, tuple[int, ...], bool]:
    match = _CLAUSE.match(text)
    if not match or (match["star"] and match["op"] not in ("==", "!=")):
        raise ValueError(f"{text!r} is no version clause such as >=3.9")
    return match["op"], tuple(int(part) for part in match["version"].split(".")), bool(match["star"])


def _holds(release: tuple[int, int, int], op: str, bound: tuple[int, ...], star: bool) -> bool:
    """Whether one release satisfies one clause (the version specifiers of PEP 440, for plain releases)."""
    exact = (*bound, 0, 0)[:3]
    if op == "~=":
        return release >= exact and release[: len(bound) - 1] == bound[:-1]
    if op in ("==", "!="):
        same = release[: len(bound)] == bound if star else release == exact
        return same == (op == "==")
    return {">=": release >= exact, "<=": release <= exact, ">": release > exact, "<": release < exact}[op]
