"""What a name holds: sockets, readers, child processes, by the call that made them, and the calls of their methods."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from console.experiments.script.code import Code

Place: TypeAlias = tuple[
    ast.AST | None, str
]  # the scope that binds the name, and the name; (None, text) for attributes
_HANDS_THROUGH = frozenset({"asyncio.wait_for", "contextlib.closing", "asyncio.create_task", "asyncio.ensure_future"})


def place(code: Code, node: ast.AST | None) -> Place | None:
    """Where a value is kept: `s` of one function is not `s` of another; `self.sock` is one in the whole script."""
    if isinstance(node, ast.Tuple | ast.List) and node.elts:
        return place(code, node.elts[0])
    if isinstance(node, ast.Name):
        return code.scope(node), node.id
    if isinstance(node, ast.Attribute | ast.Subscript):
        return None, ast.unparse(node)
    return None


def maker(code: Code, value: ast.AST | None) -> ast.Call | None:
    """The call that made a value: seen through `await`, `asyncio.wait_for(…)`, `closing(…)` and `enter_context(…)`."""
    for _ in range(5):
        if isinstance(value, ast.Await):
            value = value.value
        elif (
            isinstance(value, ast.Call)
            and value.args
            and (
                code.dotted(value.func) in _HANDS_THROUGH
                or (
                    isinstance(value.func, ast.Attribute)
                    and value.func.attr in ("enter_context", "enter_async_context")
                )
            )
        ):
            value = value.args[0]
        else:
            break
    return value if isinstance(value, ast.Call) else None


def bindings(code: Code) -> Iterator[tuple[Place, ast.AST]]:
    """Every place with an expression that it is bound to, by `=`, `:=` and `with … as`."""
    for node in code.nodes:
        pairs: list[tuple[ast.AST, ast.AST]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            pairs = [(node.target, node.value)]
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            pairs = [(node.optional_vars, node.context_expr)]
        for target, value in pairs:
            if (found := place(code, target)) is not None:
                yield found, value


def made_by(code: Code) -> Mapping[Place, str]:
    """Every place that holds what a known function made, with that function's dotted path; `()` of a method by its name."""
    found: dict[Place, str] = {}
    for where, value in bindings(code):
        call = maker(code, value)
        if call is None:
            continue
        path = code.dotted(call.func)
        if path is None and isinstance(call.func, ast.Attribute):
            path = f".{call.func.attr}"
        if path is not None:
            found[where] = path
    return found


def methods(code: Code, *names: str) -> Iterator[tuple[ast.Call, str, Place | None, ast.expr]]:
    """Calls of the named methods: the call, the method, the place of the object, and the object's expression."""
    for call in code.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr in names:
            yield call, call.func.attr, place(code, call.func.value), call.func.value
