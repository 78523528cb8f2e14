"""Waits on things that were made earlier: sockets, selectors, asyncio's streams, child processes.

Each has its limit apart from the call that made it: `.settimeout(…)`, `asyncio.wait_for(…)`, `.communicate(timeout=…)`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from console.experiments.script.code import Code
from console.experiments.script.fault import Fault
from console.experiments.script.limits import is_limit
from console.experiments.script.made import Place, bindings, made_by, maker, methods, place
from console.experiments.script.timeouts import Waits, has_default_timeout, judge_call

_SOCKETS = frozenset(
    {"socket.socket", "socket.SocketType", "socket.create_server", "socket.fromfd", "socket.socketpair"}
)
_STREAMS = frozenset({"asyncio.open_connection", "asyncio.open_unix_connection"})
_CONNECTIONS = frozenset({"http.client.HTTPConnection", "http.client.HTTPSConnection"})
_SELECTORS = {
    "select": frozenset(
        f"selectors.{one}Selector" for one in ("Default", "Select", "Poll", "Epoll", "Kqueue", "Devpoll")
    ),
    "poll": frozenset({"select.poll", "select.epoll", "select.devpoll"}),
}
_LOOP_CALLS = ("sock_recv", "sock_recv_into", "sock_connect", "sock_accept", "sock_sendall", "create_unix_connection")
_READS = ("read", "readline", "readexactly", "readuntil")
_CHILDREN = ("subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output")
_ENDS = {"wait": Waits(position=0), "communicate": Waits(position=1)}
_ASYNC_CHILD = frozenset({"asyncio.create_subprocess_exec", "asyncio.subprocess.create_subprocess_exec"})


def check_waits(code: Code) -> Iterator[Fault]:
    """A fault for each wait on a socket, selector, stream or child that has no limit."""
    made = made_by(code)
    if not has_default_timeout(code):
        yield from _sockets(code)
    yield from _selectors(code, made)
    yield from _streams(code, made)
    yield from _children(code, made)


def _sockets(code: Code) -> Iterator[Fault]:
    limited: set[Place | None] = set()
    for call, method, where, _ in methods(code, "settimeout", "setblocking"):
        if not call.args:
            continue
        value = call.args[0]
        if method == "setblocking":
            if isinstance(value, ast.Constant) and not value.value:
                limited.add(where)
            else:
                yield code.fault(call, f".setblocking({ast.unparse(value)}) takes the time-out off this socket again")
        elif is_limit(code, value) or (isinstance(value, ast.Constant) and value.value == 0):
            limited.add(where)
        else:
            yield code.fault(value, f".settimeout({ast.unparse(value)}) is no limit")
    kept = {made: where for where, value in bindings(code) if (made := maker(code, value)) is not None}
    for call in code.calls():
        path = code.dotted(call.func)
        accepts = isinstance(call.func, ast.Attribute) and call.func.attr == "accept" and not call.args
        if (path in _SOCKETS or accepts) and (call not in kept or kept[call] not in limited):
            name = path if path in _SOCKETS else ".accept"
            yield code.fault(call, f"{name}(): no .settimeout(…) on this socket; it may wait without end")
    yield from _taken_off(code)


def _taken_off(code: Code) -> Iterator[Fault]:
    """`connection.timeout = None` after it was made with a limit."""
    connections = {where for where, path in made_by(code).items() if path in _CONNECTIONS}
    for node in code.nodes:
        if not isinstance(node, ast.Assign) or is_limit(code, node.value):
            continue
        for target in node.targets:
            if not isinstance(target, ast.Attribute) or target.attr != "timeout":
                continue
            owner = place(code, target.value)
            if owner is not None and owner in connections:
                yield code.fault(target, f"{ast.unparse(target)} = {ast.unparse(node.value)} is no limit")


def _selectors(code: Code, made: Mapping[Place, str]) -> Iterator[Fault]:
    for call, method, where, _ in methods(code, "select", "poll"):
        if where is not None and made.get(where) in _SELECTORS[method]:
            yield from judge_call(code, call, f"{made[where]}().{method}", Waits(position=0))


def _streams(code: Code, made: Mapping[Place, str]) -> Iterator[Fault]:
    for call in code.calls():
        path = code.dotted(call.func)
        if path in _STREAMS and not _awaited_with_limit(code, call):
            yield code.fault(call, f"{path}(): wrap it in asyncio.wait_for(…, timeout=…)")
    for call, method, where, owner in methods(code, "create_connection", *_LOOP_CALLS, *_READS):
        on_a_loop = method not in _READS and code.dotted(owner) != "socket"
        reads = method in _READS and where is not None and made.get(where) in _STREAMS
        if (on_a_loop or reads) and not _awaited_with_limit(code, call):
            yield code.fault(call, f".{method}(): wrap it in asyncio.wait_for(…, timeout=…)")


def _awaited_with_limit(code: Code, call: ast.Call) -> bool:
    for around in code.around(call):
        if isinstance(around, ast.Call) and code.dotted(around.func) == "asyncio.wait_for":
            limits = [word.value for word in around.keywords if word.arg == "timeout"] or around.args[1:2]
            return bool(limits) and is_limit(code, limits[0])
        if isinstance(around, ast.AsyncWith):
            for item in around.items:
                inner = item.context_expr
                if isinstance(inner, ast.Call) and code.dotted(inner.func) in ("asyncio.timeout", "asyncio.timeout_at"):
                    return bool(inner.args) and is_limit(code, inner.args[0])
    return False


def _children(code: Code, made: Mapping[Place, str]) -> Iterator[Fault]:
    for call in code.calls():
        path = code.dotted(call.func)
        if path in _CHILDREN:
            yield from judge_call(code, call, path or "", Waits())
    for call, method, where, owner in methods(code, *_ENDS):
        by_hand = maker(code, owner)
        path = code.dotted(by_hand.func) if by_hand is not None else made.get(where) if where is not None else None
        if path == "subprocess.Popen":
            yield from judge_call(code, call, f"{path}(…).{method}", _ENDS[method])
        elif path in _ASYNC_CHILD and not _awaited_with_limit(code, call):
            yield code.fault(call, f".{method}() of a child process: wrap it in asyncio.wait_for(…, timeout=…)")
