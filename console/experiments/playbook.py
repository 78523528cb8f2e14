"""Playbook: a script file that the console can offer, start and judge. Read and checked here; never executed here.

Nothing leaves this machine while `faults` is not empty: header, syntax for the box's Python, imports, forbidden
calls, time-outs, keys and undeclared effects are all judged from the text (measurement.md 4.2 and 4.3).
"""

from __future__ import annotations

import ast
import hashlib
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from console.experiments.params import Param, expression_names
from console.experiments.script.block import find_block, lines_for_old_readers
from console.experiments.script.code import Code
from console.experiments.script.effects import check_effects
from console.experiments.script.escapes import check_escapes
from console.experiments.script.expression import ExpressionError, parse_expression
from console.experiments.script.fault import Fault, Source
from console.experiments.script.header import Header, read_header
from console.experiments.script.hidden import check_hidden
from console.experiments.script.keys import check_keys
from console.experiments.script.lint import lint, lint_warnings
from console.experiments.script.loopback import check_loopback
from console.experiments.script.names import check_names
from console.experiments.script.newer import check_newer
from console.experiments.script.syntax import check_syntax
from console.experiments.script.text import MAX_BYTES, read_text, too_large
from console.experiments.script.timeouts import check_timeouts
from console.experiments.script.versions import OLDEST, Version, admitted
from console.experiments.script.waits import check_waits
from console.folders import user_folder as own_folder

__all__ = ["Fault", "Param", "Playbook", "built_in_folder", "catalogue", "read_playbook", "user_folder"]

_KIT = re.compile(r"kit(?:_\w+)?\.py|__init__\.py")  # what playbooks share, and no playbook itself
_MAX_SHOWN_FAULTS = 50
_TOML_SINCE: Version = (3, 11)


@dataclass(frozen=True)
class Playbook:
    """One script file: what its header says, and what is wrong with it. `valid` means that it may be uploaded."""

    id: str
    path: Path
    title: str = ""
    key: str = ""
    summary: str = ""
    version: str = ""
    kind: str = ""
    engines: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    wants: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    restarts_on: tuple[str, ...] = ()  # engines on which it restarts the service, where it need not on all
    exclusive: bool = True
    est_seconds: str = ""  # an expression over the parameters; `estimate_s` works it out
    max_seconds: int = 0
    verdicts: tuple[str, ...] = ()
    params: tuple[Param, ...] = ()
    faults: tuple[Fault, ...] = ()
    warnings: tuple[Fault, ...] = ()
    requires_python: str = ""
    data: bytes = field(default=b"", repr=False)  # the very bytes that were judged, and no others, are uploaded

    @property
    def valid(self) -> bool:
        """Whether no fault was found."""
        return not self.faults

    @property
    def sha256(self) -> str:
        """Hash of the script's bytes, hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()

    def effects_on(self, engine: str | None) -> tuple[str, ...]:
        """What it does to a box that serves this kind of engine; None: to any."""
        more = self.restarts_on and (engine is None or engine in self.restarts_on)
        return tuple(dict.fromkeys((*self.effects, *(("restarts_service",) if more else ()))))

    def restarts(self, engine: str | None = None) -> bool:
        """Whether it says that it restarts the service of this kind of engine; None: of any."""
        return "restarts_service" in self.effects_on(engine)

    def estimate_s(self, values: Mapping[str, Any], engine: Mapping[str, int | float] | None = None) -> float | None:
        """Seconds that a run with these parameter values should take; None when the header's expression needs more."""
        if not self.est_seconds:
            return None
        names = {**expression_names(self.params, values), **(engine or {})}
        try:
            return float(parse_expression(self.est_seconds).value(names))
        except ExpressionError:
            return None

    def to_json(self) -> dict[str, Any]:
        """The catalogue's row: every header field, `valid`, and the faults and warnings with their places."""
        defaults = {param.name: param.default for param in self.params if not param.required}
        return {
            "id": self.id,
            "path": str(self.path),
            "title": self.title,
            "key": self.key,
            "summary": self.summary,
            "version": self.version,
            "kind": self.kind,
            "engines": list(self.engines),
            "needs": list(self.needs),
            "wants": list(self.wants),
            "effects": list(self.effects),
            "restarts_on": list(self.restarts_on),
            "exclusive": self.exclusive,
            "est_seconds": self.estimate_s(defaults),
            "max_seconds": self.max_seconds,
            "verdicts": list(self.verdicts),
            "params": [_param_json(param) for param in self.params],
            "valid": self.valid,
            "faults": [fault.to_json() for fault in self.faults],
            "warnings": [fault.to_json() for fault in self.warnings],
        }


def _param_json(param: Param) -> dict[str, Any]:
    row: dict[str, Any] = {"name": param.name, "type": param.type, "required": param.required}
    if not param.required and param.type != "secret":
        row["default"] = param.default
    for name, value in (("min", param.min), ("max", param.max), ("pattern", param.pattern)):
        if value is not None:
            row[name] = value
    if param.choices:
        row["choices"] = list(param.choices)
    return {**row, "help": param.help}


def read_playbook(path: Path, *, target: Version | None = None) -> Playbook:
    """Read and judge one script file; never raises for what the file is or says, never runs it.

    `target` is the box's Python once it is known; before that, every version that `requires-python` admits counts.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():  # a device or a pipe may never end
            return _unreadable(path, "it is no regular file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        return _unreadable(path, error.strerror or str(error))
    if len(data) > MAX_BYTES:
        return replace(_unreadable(path, ""), faults=(too_large(path.stat().st_size),))
    return judge_playbook(path, data, target=target)


def _unreadable(path: Path, reason: str) -> Playbook:
    return Playbook(id=path.stem, path=path, faults=(Fault(0, 0, "", f"the file cannot be read: {reason}"),))


@lru_cache(maxsize=128)
def judge_playbook(path: Path, data: bytes, *, target: Version | None = None) -> Playbook:
    """`read_playbook` for bytes already in hand; `path` gives the name alone. The same bytes are judged once."""
    source, faults = read_text(data)
    if source is None:
        return Playbook(id=path.stem, path=path, faults=faults, data=data)
    header, header_faults = _header(source, path.stem)
    versions = _versions(header, target)
    try:
        code_faults, warnings = _judge_code(source, header, versions)
    except RecursionError:
        code_faults, warnings = (source.fault(1, 1, "nested too deeply to be checked"),), ()
    version_faults = _target_faults(source, header, target)
    all_faults = _shown(source, sorted({*header_faults, *version_faults, *code_faults}))
    fields = {name: getattr(header, name) for name in Header.__dataclass_fields__}
    fields["id"] = header.id or path.stem
    return Playbook(**fields, path=path, faults=tuple(all_faults), warnings=warnings, data=data)


def _shown(source: Source, faults: list[Fault]) -> list[Fault]:
    """The first of them, and how many more there are."""
    if len(faults) <= _MAX_SHOWN_FAULTS:
        return faults
    kept, more = faults[:_MAX_SHOWN_FAULTS], len(faults) - _MAX_SHOWN_FAULTS
    return [*kept, source.fault(kept[-1].line, 1, f"and {more} more faults from here on")]


def _header(source: Source, stem: str) -> tuple[Header, tuple[Fault, ...]]:
    block, faults = find_block(source)
    if block is None:
        return Header(), faults
    header, faults = read_header(source, block, stem)
    if min(admitted(header.requires_python) if header.requires_python else (OLDEST,)) < _TOML_SINCE:
        faults = (*faults, *lines_for_old_readers(source, block))
    return header, faults


def _versions(header: Header, target: Version | None) -> tuple[Version, ...]:
    if target is not None:
        return (target,)
    return admitted(header.requires_python) if header.requires_python else (OLDEST,)


def _target_faults(source: Source, header: Header, target: Version | None) -> tuple[Fault, ...]:
    if target is None or not header.requires_python or target < OLDEST or target in admitted(header.requires_python):
        return ()
    line = next((n for n, text in enumerate(source.lines, 1) if "requires-python" in text), 1)
    message = f"the box has Python {target[0]}.{target[1]}, and requires-python is {header.requires_python}"
    return (source.fault(line, 3, message),)


def _judge_code(
    source: Source, header: Header, versions: tuple[Version, ...]
) -> tuple[tuple[Fault, ...], tuple[Fault, ...]]:
    tree, faults, warnings = check_syntax(source, min(versions))
    if tree is None:
        return (*faults, *check_keys(source, None)), ()
    code = Code(source, tree)
    found = (
        *faults,
        *lint(code, versions),
        *check_names(code, versions, _kit_names()),
        *check_newer(code, min(versions)),
        *check_hidden(code),
        *check_escapes(code),
        *check_loopback(code),
        *check_timeouts(code),
        *check_waits(code),
        *check_keys(source, code),
        *check_effects(code, (*header.effects, *(("restarts_service",) if header.restarts_on else ()))),
    )
    return found, tuple(sorted({*warnings, *lint_warnings(code)}))


def built_in_folder() -> Path:
    """Where the playbooks that come with the console lie: beside its own package."""
    return Path(__file__).resolve().parents[2] / "playbooks"


def kit_files() -> dict[str, bytes]:
    """What is uploaded beside every script: `kit.py` and the parts it is made of, by file name."""
    return {path.name: path.read_bytes() for path in sorted(built_in_folder().glob("kit*.py"))}


@cache
def _kit_names() -> frozenset[str]:
    """What a script may take from `kit`, read from its text."""
    tree = ast.parse((built_in_folder() / "kit.py").read_bytes())
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(one.asname or one.name for one in node.names)
        elif isinstance(node, ast.Assign):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return frozenset(found)


def user_folder() -> Path:
    """Where an operator's own playbooks are looked for: `playbooks` in the config folder."""
    return own_folder("XDG_CONFIG_HOME", ".config") / "playbooks"


def catalogue(folders: Sequence[Path] | None = None) -> tuple[Playbook, ...]:
    """Every script of the folders (built-in and the user's own unless told otherwise), each with its validity."""
    found: list[Playbook] = []
    for folder in (built_in_folder(), user_folder()) if folders is None else folders:
        scripts = sorted(folder.glob("*.py")) if folder.is_dir() else []
        found += [read_playbook(path) for path in scripts if not _KIT.fullmatch(path.name)]
    return warn_of_clashes(found)


def warn_of_clashes(playbooks: Iterable[Playbook]) -> tuple[Playbook, ...]:
    """The same playbooks, where one that takes an id or a key already taken says so; the first keeps the key."""
    owners: dict[str, Playbook] = {}
    judged: list[Playbook] = []
    for playbook in playbooks:
        twin = next((one for one in judged if one.id == playbook.id), None)
        if twin is not None:
            message = f"id {playbook.id!r} is taken by {twin.path}"
            playbook = replace(playbook, faults=(*playbook.faults, _at_header(playbook, "id", message)))
        owner = owners.setdefault(playbook.key, playbook) if playbook.key else playbook
        if owner is not playbook:
            message = f"key {playbook.key!r} belongs to {owner.id}; this playbook has no key of its own"
            playbook = replace(playbook, key="", warnings=(*playbook.warnings, _at_header(playbook, "key", message)))
        judged.append(playbook)
    return tuple(judged)


def _at_header(playbook: Playbook, name: str, message: str) -> Fault:
    source = Source(playbook.data.decode("utf-8", errors="replace"))
    line = next((n for n, text in enumerate(source.lines, 1) if text.startswith(f"# {name} ")), 1)
    return source.fault(line, 3, message)
