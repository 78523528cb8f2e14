"""What came with a newer Python than the script must run on, and what no parser of another version would notice.

The standard library's names and keywords ("What's New in Python 3.x"), and the few forms that `ast.parse` accepts
whatever `feature_version` says: an unpacking in a subscript (3.11), `int | None` where it is worked out (3.10).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from console.experiments.script.code import Code
from console.experiments.script.fault import Fault
from console.experiments.script.versions import Version

_NAMES: dict[str, Version] = {
    path: version
    for version, paths in {
        (
            3,
            10,
        ): "itertools.pairwise contextlib.aclosing typing.TypeAlias typing.ParamSpec typing.Concatenate typing.TypeGuard"
        " statistics.correlation statistics.covariance statistics.linear_regression types.NoneType types.UnionType"
        " types.EllipsisType dataclasses.KW_ONLY inspect.get_annotations sys.orig_argv"
        " sys.stdlib_module_names os.eventfd pathlib.Path.hardlink_to",
        (
            3,
            11,
        ): "asyncio.TaskGroup asyncio.Runner asyncio.timeout asyncio.timeout_at asyncio.Barrier datetime.UTC enum.StrEnum"
        " enum.ReprEnum enum.verify enum.member enum.nonmember enum.EnumCheck contextlib.chdir hashlib.file_digest math.cbrt"
        " math.exp2 operator.call typing.Self typing.LiteralString typing.Never typing.assert_never typing.assert_type"
        " typing.reveal_type typing.Required typing.NotRequired typing.Unpack typing.TypeVarTuple http.HTTPMethod sys.exception"
        " logging.getLevelNamesMapping inspect.getmembers_static",
        (3, 12): "itertools.batched math.sumprod calendar.Month calendar.Day calendar.JANUARY random.binomialvariate"
        " typing.override typing.TypeAliasType collections.abc.Buffer inspect.markcoroutinefunction logging.getHandlerByName"
        " os.listdrives sys.monitoring sys.activate_stack_trampoline",
        (3, 13): "copy.replace os.process_cpu_count os.timerfd_create queue.ShutDown typing.ReadOnly typing.TypeIs"
        " typing.NoDefault typing.get_protocol_members warnings.deprecated random.kde random.kde_random math.fma",
        (3, 14): "heapq.heapify_max heapq.heappush_max concurrent.futures.InterpreterPoolExecutor",
    }.items()
    for path in paths.split()
}
_KEYWORDS: dict[tuple[str, str], Version] = {
    ("builtins.zip", "strict"): (3, 10),
    ("dataclasses.dataclass", "slots"): (3, 10),
    ("dataclasses.dataclass", "kw_only"): (3, 10),
    ("dataclasses.field", "kw_only"): (3, 10),
    ("bisect.bisect", "key"): (3, 10),
    ("bisect.bisect_left", "key"): (3, 10),
    ("bisect.bisect_right", "key"): (3, 10),
    ("bisect.insort", "key"): (3, 10),
    ("glob.glob", "root_dir"): (3, 10),
    ("dataclasses.dataclass", "weakref_slot"): (3, 11),
    ("subprocess.Popen", "process_group"): (3, 11),
    ("subprocess.run", "process_group"): (3, 11),
    ("shutil.rmtree", "onexc"): (3, 12),
    ("builtins.map", "strict"): (3, 14),
}
_TYPES = frozenset(
    {"builtins.int", "builtins.str", "builtins.float", "builtins.bool", "builtins.bytes", "builtins.list", "builtins.dict",
     "builtins.tuple", "builtins.set", "builtins.object", "builtins.type", "builtins.complex", "pathlib.Path"}
)  # fmt: skip


def check_newer(code: Code, target: Version) -> Iterator[Fault]:
    """A fault for each name, keyword and form that `target` has not. What stands behind a test of the version passes."""
    for node in code.nodes:
        came, what = _came(code, node)
        if came is not None and came > target and not _is_guarded(code, node):
            have = f"Python {came[0]}.{came[1]}, and this script must run on {target[0]}.{target[1]}"
            yield code.fault(node, f"{what} came with {have}")


def _came(code: Code, node: ast.AST) -> tuple[Version | None, str]:
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        for one in node.names:
            if (path := f"{node.module}.{one.name}") in _NAMES:
                return _NAMES[path], path
    elif isinstance(node, ast.Attribute):
        path = code.dotted(node) or ""
        return _NAMES.get(path), path
    elif isinstance(node, ast.Call):
        path = code.dotted(node.func) or ""
        for word in node.keywords:
            if word.arg and (path, word.arg) in _KEYWORDS:
                return _KEYWORDS[path, word.arg], f"{path.removeprefix('builtins.')}({word.arg}=…)"
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        line = code.source.line(node.slice.lineno)
        bracketed = line.encode()[node.slice.col_offset : node.slice.col_offset + 1] == b"("
        if not bracketed and any(isinstance(one, ast.Starred) for one in node.slice.elts):
            return (3, 11), "an unpacking (*) in a subscript"
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.NamedExpr):
        before = code.source.line(node.slice.lineno).encode()[: node.slice.col_offset]
        if before.rstrip().endswith(b"["):
            return (3, 10), "a := without brackets in a subscript"
    elif isinstance(node, ast.arg) and isinstance(node.annotation, ast.Starred):
        return (3, 11), "an unpacking (*) in an annotation"
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp) and any(one.is_async for one in node.generators):
        if _in_a_plain_comprehension(code, node):
            return (3, 11), "an asynchronous comprehension inside a plain one"
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and _is_union(code, node):
        return (3, 10), f"{ast.unparse(node)}, worked out as it is reached,"
    return None, ""


def _in_a_plain_comprehension(code: Code, node: ast.AST) -> bool:
    for around in code.around(node):
        if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return False
        if isinstance(around, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            return not any(one.is_async for one in around.generators)
    return False


def _is_union(code: Code, node: ast.BinOp) -> bool:
    """A type joined with a type or None by `|`, where it is worked out: not in an annotation that stays text."""
    sides = (node.left, node.right)
    types = [code.dotted(one) in _TYPES or _is_generic(code, one) for one in sides]
    nones = [isinstance(one, ast.Constant) and one.value is None for one in sides]
    if not any(types) or not all(is_type or is_none for is_type, is_none in zip(types, nones, strict=True)):
        return False
    late = any(
        isinstance(one, ast.ImportFrom) and one.module == "__future__" and one.names[0].name == "annotations"
        for one in code.tree.body
    )
    return not (late and in_annotation(code, node)) and not _is_local_annotation(code, node)


def _is_generic(code: Code, node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and code.dotted(node.value) in _TYPES


def in_annotation(code: Code, node: ast.AST) -> bool:
    """Whether a node stands in the annotation of an argument, a variable or a result."""
    for around in code.around(node):
        if isinstance(around, ast.arg):
            return True
        if isinstance(around, ast.AnnAssign):
            return around.annotation is node
        if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef):
            return around.returns is node
        if isinstance(around, ast.stmt):
            return False
        node = around
    return False


def _is_local_annotation(code: Code, node: ast.AST) -> bool:
    """Annotations of a function's own variables are never worked out."""
    inside = any(isinstance(one, ast.AnnAssign) and in_annotation(code, node) for one in code.around(node))
    return inside and any(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) for one in code.around(node))


def _is_guarded(code: Code, node: ast.AST) -> bool:
    """Behind `sys.version_info`, `hasattr`, or `try … except ImportError` and the like."""
    for around in code.around(node):
        if isinstance(around, ast.If | ast.IfExp):
            asked = {code.dotted(one) for one in ast.walk(around.test) if isinstance(one, ast.Name | ast.Attribute)}
            if asked & {"sys.version_info", "builtins.hasattr"}:
                return True
        if isinstance(around, ast.Try) and around.handlers:
            caught = {code.dotted(one) for handler in around.handlers if handler.type for one in ast.walk(handler.type)}
            if caught & {
                "builtins.ImportError",
                "builtins.ModuleNotFoundError",
                "builtins.AttributeError",
                "builtins.TypeError",
            }:
                return True
    return False
