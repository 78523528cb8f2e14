"""Every call that waits for the network says how long: a hung engine must end as an error, not as a run without end."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from console.experiments.script.code import Code
from console.experiments.script.fault import Fault
from console.experiments.script.limits import is_limit
from console.experiments.script.made import made_by, place


@dataclass(frozen=True)
class Waits:
    """Where a call takes its time-out: by keyword, and by position if it has one."""

    keyword: str = "timeout"
    position: int | None = None


_CALLS: dict[str, Waits] = {
    "urllib.request.urlopen": Waits(position=2),
    "http.client.HTTPConnection": Waits(position=2),
    "http.client.HTTPSConnection": Waits(),
    "socket.create_connection": Waits(position=1),
    "ssl.get_server_certificate": Waits(),
    "ftplib.FTP": Waits(position=4),
    "ftplib.FTP_TLS": Waits(),
    "smtplib.SMTP": Waits(position=3),
    "smtplib.SMTP_SSL": Waits(),
    "poplib.POP3": Waits(position=2),
    "poplib.POP3_SSL": Waits(),
    "imaplib.IMAP4": Waits(position=2),
    "imaplib.IMAP4_SSL": Waits(),
    "telnetlib.Telnet": Waits(position=2),
    "nntplib.NNTP": Waits(),
    "select.select": Waits(position=3),
}
_NEVER = {
    "urllib.request.urlretrieve": "it takes no time-out; use urlopen(…, timeout=…)",
    "urllib.request.URLopener": "it takes no time-out; use urlopen(…, timeout=…)",
    "urllib.request.FancyURLopener": "it takes no time-out; use urlopen(…, timeout=…)",
    "os.wait": "it waits for any child without end; use subprocess with timeout=…",
    "signal.pause": "it waits for a signal without end; use time.sleep or threading.Event().wait(timeout)",
    "xmlrpc.client.ServerProxy": "it takes no time-out; use http.client with timeout=…",
}
_PASSES_ON = frozenset({"functools.partial", "asyncio.to_thread"})
_OPENER = "urllib.request.build_opener"
_ASKS_A_TYPE = frozenset({"builtins.isinstance", "builtins.issubclass", "typing.cast", "typing.TypeVar"})


def check_timeouts(code: Code) -> Iterator[Fault]:
    """A fault for each network call whose time-out is missing, None or not above zero, or cannot be seen."""
    if has_default_timeout(code):
        return
    classes = _subclasses(code)
    openers = {where for where, path in made_by(code).items() if path == _OPENER}
    for call in code.calls():
        path = code.dotted(call.func)
        if isinstance(call.func, ast.Name) and call.func.id in classes:
            path = classes[call.func.id]
        if path in _NEVER:
            yield code.fault(call, f"{path}: {_NEVER[path]}")
        elif path in _CALLS:
            yield from judge_call(code, call, path, _CALLS[path])
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "open":
            made = isinstance(call.func.value, ast.Call) and code.dotted(call.func.value.func) == _OPENER
            if made or place(code, call.func.value) in openers:
                yield from judge_call(code, call, "opener.open", Waits(position=2))
    yield from _handed_on(code)


def judge_call(code: Code, call: ast.Call, path: str, waits: Waits) -> Iterator[Fault]:
    """A fault when a call has no time-out, or one that is no limit."""
    named = [word.value for word in call.keywords if word.arg == waits.keyword]
    named += [value for word in call.keywords if word.arg is None for value in _spread(code, word.value, waits.keyword)]
    if not named and waits.position is not None and len(call.args) > waits.position:
        named = [call.args[waits.position]]
    if not named:
        yield code.fault(call, f"{path}() without a time-out; write timeout=…, or it may wait without end")
    elif not is_limit(code, named[0]):
        yield code.fault(named[0], f"{path}(): timeout={ast.unparse(named[0])} is no limit")


def _spread(code: Code, value: ast.AST, keyword: str) -> Iterator[ast.expr]:
    """What `**{…}` or `**dict(…)` gives for a keyword."""
    value = code.constant(value) or value
    if isinstance(value, ast.Dict):
        for key, one in zip(value.keys, value.values, strict=True):
            if key is not None and code.text(key) == keyword:
                yield one
    elif isinstance(value, ast.Call) and code.dotted(value.func) == "builtins.dict":
        yield from (word.value for word in value.keywords if word.arg == keyword)


def has_default_timeout(code: Code) -> bool:
    """`socket.setdefaulttimeout(x)` at the top level covers every call after it, unless another call takes it back."""
    calls = [call for call in code.calls() if code.dotted(call.func) == "socket.setdefaulttimeout"]
    if not all(call.args and is_limit(code, call.args[0]) for call in calls):
        return False
    return any(
        isinstance(code.parent(call), ast.Expr) and code.parent(code.parent(call) or call) is code.tree
        for call in calls
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


def _handed_on(code: Code) -> Iterator[Fault]:
    """A network function given to another to call, or kept for later: the time-out has to stand beside it."""
    for node in code.nodes:
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        path = code.dotted(node)
        if path not in _CALLS and path not in _NEVER:
            continue
        parent = code.parent(node)
        call = code.parent(parent) if isinstance(parent, ast.keyword) else parent
        if isinstance(call, ast.Call) and node is not call.func:
            if code.dotted(call.func) not in _ASKS_A_TYPE:
                yield from _given(code, call, path or "")
        elif isinstance(parent, ast.Dict | ast.List | ast.Set) or _is_kept_in_a_class(code, parent):
            message = (
                f"{path} is kept here and called elsewhere, where its time-out cannot be seen; wrap it in a function"
            )
            yield code.fault(node, message)


def _given(code: Code, call: ast.Call, path: str) -> Iterator[Fault]:
    passes_on = code.dotted(call.func) in _PASSES_ON
    executor = isinstance(call.func, ast.Attribute) and call.func.attr in ("submit", "run_in_executor")
    later = [ast.keyword(None, word.value) for word in call.keywords if word.arg in ("kwargs", "kwds")]
    keywords = call.keywords if passes_on or executor else later
    yield from judge_call(code, ast.copy_location(ast.Call(call.func, [], keywords), call), path, Waits())


def _is_kept_in_a_class(code: Code, parent: ast.AST | None) -> bool:
    """`class A: get = urlopen`, `self.get = urlopen`: no alias that a later call could be followed to."""
    if not isinstance(parent, ast.Assign):
        return False
    return isinstance(code.parent(parent), ast.ClassDef) or any(
        isinstance(target, ast.Attribute | ast.Subscript) for target in parent.targets
    )
