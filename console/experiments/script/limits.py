"""What is a limit: the value of a `timeout=` that ends a wait, told from None, nothing, and numbers without an end."""

from __future__ import annotations

import ast
import math

from console.experiments.script.code import Code

LONGEST_S = 7 * 24 * 3600  # nothing waits for a week and means it
_ENDLESS = frozenset(
    {"math.inf", "math.nan", "socket._GLOBAL_DEFAULT_TIMEOUT", "socket.getdefaulttimeout", "threading.TIMEOUT_MAX",
     "sys.maxsize"}
)  # fmt: skip


def is_limit(code: Code, value: ast.AST | None) -> bool:
    """Whether an expression may end a wait. What cannot be known counts as a limit; what is None on one path does not."""
    value = code.constant(value)
    if isinstance(value, ast.Constant):
        seconds = value.value
        return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds <= LONGEST_S
    if isinstance(value, ast.UnaryOp):
        return not isinstance(value.op, ast.USub)
    if isinstance(value, ast.IfExp):
        return is_limit(code, value.body) and is_limit(code, value.orelse)
    if isinstance(value, ast.BoolOp):
        return is_limit(code, value.values[-1]) and (
            isinstance(value.op, ast.Or) or all(is_limit(code, one) for one in value.values)
        )
    if isinstance(value, ast.Call) and code.dotted(value.func) == "builtins.float" and value.args:
        text = code.text(value.args[0])
        return text is None or _is_finite(text)
    if isinstance(value, ast.Name) and _is_none_unless_given(code, value):
        return False
    path = code.dotted(value.func if isinstance(value, ast.Call) else value)
    return path not in _ENDLESS


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _is_none_unless_given(code: Code, name: ast.Name) -> bool:
    """A parameter whose default is None, and which its function never binds again."""
    function = code.scope(name)
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return False
    given = function.args
    defaults = dict(zip(reversed([*given.posonlyargs, *given.args]), reversed(given.defaults), strict=False))
    defaults |= {arg: one for arg, one in zip(given.kwonlyargs, given.kw_defaults, strict=True) if one is not None}
    default = next((one for arg, one in defaults.items() if arg.arg == name.id), None)
    if not isinstance(default, ast.Constant) or default.value is not None:
        return False
    return not any(
        isinstance(one, ast.Name) and one.id == name.id and (isinstance(one.ctx, ast.Store) or _is_asked(code, one))
        for one in ast.walk(function)
    )


def _is_asked(code: Code, name: ast.Name) -> bool:
    """Whether a condition looks at the name, such as `if timeout is None`."""
    above: ast.AST = name
    for around in code.around(name):
        if isinstance(around, ast.If | ast.IfExp | ast.While | ast.Assert):
            return around.test is above
        if isinstance(around, ast.stmt):
            return False
        above = around
    return False
