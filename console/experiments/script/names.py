"""Names that nobody binds: a misspelt one ends a run where it is first reached, which may be an hour in."""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from console.experiments.script.code import Code
from console.experiments.script.fault import Fault
from console.experiments.script.nearest import did_you_mean
from console.experiments.script.newer import in_annotation
from console.experiments.script.versions import Version

_MODULE_NAMES = frozenset(
    {"__name__", "__file__", "__doc__", "__spec__", "__package__", "__loader__", "__builtins__", "__cached__",
     "__annotations__", "__dict__", "__class__", "__debug__", "__path__", "__module__", "__qualname__"}
)  # fmt: skip
_CAME: dict[str, Version] = {
    "aiter": (3, 10),
    "anext": (3, 10),
    "EncodingWarning": (3, 10),
    "ExceptionGroup": (3, 11),
    "BaseExceptionGroup": (3, 11),
    "PythonFinalizationError": (3, 13),
}


def check_names(code: Code, versions: tuple[Version, ...], kit: frozenset[str]) -> Iterator[Fault]:
    """A fault for each name that is bound nowhere, each name that `kit` lacks, and each missing standard submodule."""
    if not code.star_imports and not any(code.dotted(call.func) == "builtins.globals" for call in code.calls()):
        yield from _unbound(code, min(versions))
    yield from _counted_before_bound(code)
    yield from _not_in_the_kit(code, kit)
    yield from _submodules(code)


def _unbound(code: Code, target: Version) -> Iterator[Fault]:
    late = any(isinstance(one, ast.ImportFrom) and one.module == "__future__" for one in code.tree.body)
    seen: set[str] = set()
    for node in code.nodes:
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load) or node.id in seen:
            continue
        if node.id in _MODULE_NAMES or code.scope(node) is not None or (late and in_annotation(code, node)):
            continue
        came = _CAME.get(node.id)
        if came is not None and came > target:
            seen.add(node.id)
            have = f"Python {came[0]}.{came[1]}, and this script must run on {target[0]}.{target[1]}"
            yield code.fault(node, f"{node.id} came with {have}")
        elif came is None and not hasattr(builtins, node.id):
            seen.add(node.id)
            near = did_you_mean(node.id, {*code.bound_names, *dir(builtins)})
            yield code.fault(node, f"the name {node.id} is bound nowhere in the script{near}")


def _counted_before_bound(code: Code) -> Iterator[Fault]:
    """`count += 1` in a function that binds `count` by nothing else, where one of an outer scope was meant."""
    for function in code.nodes:
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        own = [node for node in ast.walk(function) if next(_functions_around(code, node), None) is function]
        outer = {name for node in own if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
        counted = {node.target for node in own if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)}
        bound = {node.id for node in own if isinstance(node, ast.Name) and _binds(node) and node not in counted}
        bound |= {node.arg for node in own if isinstance(node, ast.arg)}
        for target in sorted(counted, key=lambda node: (node.lineno, node.col_offset)):
            if isinstance(target, ast.Name) and target.id not in bound | outer:
                yield code.fault(
                    target, f"{target.id} has no value here yet: say nonlocal or global {target.id}, or set it"
                )


def _binds(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store | ast.Del)


def _functions_around(code: Code, node: ast.AST) -> Iterator[ast.AST]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
    return (one for one in code.around(node) if isinstance(one, kinds))


def _not_in_the_kit(code: Code, kit: frozenset[str]) -> Iterator[Fault]:
    for node in code.nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "kit" and not node.level:
            names = [one.name for one in node.names if one.name != "*"]
        elif isinstance(node, ast.Attribute) and code.dotted(node.value) == "kit" and isinstance(node.ctx, ast.Load):
            names = [node.attr]
        else:
            continue
        for name in names:
            if name not in kit and not name.startswith("__"):
                yield code.fault(node, f"kit has no {name}{did_you_mean(name, kit)}")


def _submodules(code: Code) -> Iterator[Fault]:
    for node in code.nodes:
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        else:
            continue
        for name in names:
            if "." in name and name not in ("os.path",) and (known := _modules_of(name.rpartition(".")[0])):
                last = name.rpartition(".")[2]
                if last not in known and (near := did_you_mean(last, known)):
                    yield code.fault(node, f"{name}: no such module in this Python's standard library{near}")


def _modules_of(package: str) -> Mapping[str, None]:
    """The modules that a standard package holds here, found on disk and not imported; empty for one that is not here."""
    folder = Path(sysconfig.get_path("stdlib"), *package.split("."))
    suffixes = importlib.machinery.all_suffixes()
    if not (folder / "__init__.py").is_file():
        return {}
    files = {
        one.name[: -len(suffix)]: None for one in folder.iterdir() for suffix in suffixes if one.name.endswith(suffix)
    }
    return files | {one.name: None for one in folder.iterdir() if (one / "__init__.py").is_file()}
