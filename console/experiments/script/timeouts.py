"""Every call that waits for the network says how long: a hung engine must end as an error, not as a run without end."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from console.experiments.script.code import Code
from console.experiments.script.fault import Fault


@dataclass(frozen=True)
class _Waits:
    """Where a call takes its time-out: by keyword, and by position if it has one."""

    keyword: str = "timeout"
    position: int | None = None


_CALLS: dict[str, _Waits] = {
    "urllib.request.urlopen": _Waits(position=2),
    "http.client.HTTPConnection": _Waits(position=2),
    "http.client.HTTPSConnection": _Waits(),
    "socket.create_connection": _Waits(position=1),
    "ssl.get_server_certificate": _Waits(),
    "ftplib.FTP": _Waits(position=4),
    "ftplib.FTP_TLS": _Waits(),
    "smtplib.SMTP": _Waits(position=3),
    "smtplib.SMTP_SSL": _Waits(),
    "poplib.POP3": _Waits(position=2),
    "poplib.POP3_SSL": _Waits(),
    "imaplib.IMAP4": _Waits(position=2),
    "imaplib.IMAP4_SSL": _Waits(),
    "telnetlib.Telnet": _Waits(position=2),
    "nntplib.NNTP": _Waits(),
    "select.select": _Waits(position=3),
}
_NEVER = {
    "urllib.request.urlretrieve": "it takes no time-out; use urlopen(…, timeout=…)",
    "urllib.request.URLopener": "it takes no time-out; use urlopen(…, timeout=…)",
    "urllib.request.FancyURLopener": "it takes no time-out; use urlopen(…, timeout=…)",
    "xmlrpc.client.ServerProxy": "it takes no time-out; use http.client with timeout=…",
}
_SOCKETS = frozenset(
    {"socket.socket", "socket.SocketType", "socket.create_server", "socket.fromfd", "socket.socketpair"}
)
_STREAMS = frozenset({"asyncio.open_connection", "asyncio.open_unix_connection"})
_PASSES_ON = frozenset({"functools.partial", "asyncio.to_thread"})


def check_timeouts(code: Code) -> Iterator[Fault]:
    """A fault for each network call whose time-out is missing, None or not above zero, or cannot be seen."""
    if _has_default_timeout(code):
        return
    classes = _subclasses(code)
    for call in code.calls():
        path = code.dotted(call.func)
        if isinstance(call.func, ast.Name) and call.func.id in classes:
            path = classes[call.func.id]
        if path in _NEVER:
            yield code.fault(call, f"{path}: {_NEVER[path]}")
        elif path in _CALLS:
            yield from _judge(code, call, path, _CALLS[path])
        elif path in _SOCKETS:
            if not _set_later(code, call):
                yield code.fault(call, f"{path}(): no .settimeout(…) on this socket; it may wait without end")
        elif path in _STREAMS:
            if not _awaited_with_limit(code, call):
                yield code.fault(call, f"{path}(): wrap it in asyncio.wait_for(…, timeout=…)")
        elif _is_opener(code, call):
            yield from _judge(code, call, "opener.open", _Waits(position=2))
        yield from _handed_on(code, call, path)


def _judge(code: Code, call: ast.Call, path: str, waits: _Waits) -> Iterator[Fault]:
    named = [word.value for word in call.keywords if word.arg == waits.keyword]
    named += [
        value
        for word in call.keywords
        if word.arg is None and isinstance(word.value, ast.Dict)
        for key, value in zip(word.value.keys, word.value.values, strict=True)
        if key is not None and code.text(key) == waits.keyword
    ]
    if not named and waits.position is not None and len(call.args) > waits.position:
        named = [call.args[waits.position]]
    if not named:
        yield code.fault(call, f"{path}() without a time-out; write timeout=…, or it may wait without end")
    elif not _is_limit(named[0]):
        yield code.fault(named[0], f"{path}(): timeout={ast.unparse(named[0])} is no limit")


def _is_limit(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int | float) and not isinstance(value.value, bool) and value.value > 0
    return not (isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub))


def _has_default_timeout(code: Code) -> bool:
    """`socket.setdefaulttimeout(x)` at the top level covers every call after it, http.client's and urlopen's too."""
    return any(
        code.dotted(call.func) == "socket.setdefaulttimeout"
        and call.args
        and _is_limit(call.args[0])
        and isinstance(code.parent(call), ast.Expr)
        and code.parent(code.parent(call) or call) is code.tree
        for call in code.calls()
    )


def _subclasses(code: Code) -> dict[str, str]:
    """Classes of the script that add no constructor to a connection class: their calls take the same arguments."""
    found = {}
    for node in code.nodes:
        if isinstance(node, ast.ClassDef):
            own = any(isinstance(one, ast.FunctionDef) and one.name == "__init__" for one in node.body)
            for base in node.bases:
                path = code.dotted(base)
                if path in _CALLS and not own:
                    found[node.name] = path
    return found


def _target_of(code: Code, call: ast.Call) -> str | None:
    """The name that a call's value is bound to, as source text: `s`, `self.sock`."""
    parent = code.parent(call)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        return ast.unparse(parent.targets[0])
    if isinstance(parent, ast.AnnAssign | ast.NamedExpr):
        return ast.unparse(parent.target)
    if isinstance(parent, ast.withitem) and parent.optional_vars is not None:
        return ast.unparse(parent.optional_vars)
    return None


def _set_later(code: Code, made: ast.Call) -> bool:
    target = _target_of(code, made)
    names = {part.strip() for part in (target or "").strip("()").split(",")}
    for call in code.calls():
        if not isinstance(call.func, ast.Attribute) or not call.args or ast.unparse(call.func.value) not in names:
            continue
        if call.func.attr == "settimeout" and _is_limit(call.args[0]):
            return True
        if call.func.attr == "setblocking" and isinstance(call.args[0], ast.Constant) and not call.args[0].value:
            return True
    return False


def _awaited_with_limit(code: Code, call: ast.Call) -> bool:
    for around in code.around(call):
        if isinstance(around, ast.Call) and code.dotted(around.func) == "asyncio.wait_for":
            limits = [word.value for word in around.keywords if word.arg == "timeout"] or around.args[1:2]
            return bool(limits) and _is_limit(limits[0])
        if isinstance(around, ast.AsyncWith):
            for item in around.items:
                inner = item.context_expr
                if isinstance(inner, ast.Call) and code.dotted(inner.func) in ("asyncio.timeout", "asyncio.timeout_at"):
                    return bool(inner.args) and _is_limit(inner.args[0])
    return False


def _is_opener(code: Code, call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "open":
        return False
    owner = call.func.value
    if isinstance(owner, ast.Call):
        return code.dotted(owner.func) == "urllib.request.build_opener"
    made = [one for one in code.calls() if code.dotted(one.func) == "urllib.request.build_opener"]
    return any(_target_of(code, one) == ast.unparse(owner) for one in made)


def _handed_on(code: Code, call: ast.Call, path: str | None) -> Iterator[Fault]:
    """A network function given to another to call: the time-out has to stand beside it."""
    passes_on = path in _PASSES_ON or (
        isinstance(call.func, ast.Attribute) and call.func.attr in ("submit", "map", "run_in_executor")
    )
    if not passes_on:
        return
    for argument in call.args:
        handed = None if isinstance(argument, ast.Call) else code.dotted(argument)
        if handed in _CALLS:
            yield from _judge(code, ast.copy_location(ast.Call(argument, [], call.keywords), call), handed, _Waits())
