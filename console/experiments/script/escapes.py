"""What outlives a cancel, or leaves without a word: sessions of its own, ignored signals, an exit past the `end` event."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from console.experiments.script.code import Code
from console.experiments.script.fault import Fault

_LEAVES = "a cancel ends the script's own process group, and what leaves it goes on; start it as a plain child"
_OWN_GROUP = frozenset({"os.setsid", "os.setpgrp", "os.setpgid", "os.fork", "os.forkpty"})
_SILENT = {
    "os._exit": "it ends the process without an end event, so that the run counts as truncated; use sys.exit",
    "os.abort": "it ends the process without an end event, so that the run counts as truncated; use sys.exit",
}
_OUTLIVERS = frozenset({"nohup", "setsid", "disown", "daemonize", "at", "batch", "crontab", "screen", "tmux"})
_CANCELS = frozenset({"signal.SIGTERM", "signal.SIGINT", "signal.SIGHUP"})
_RUNNERS = ("subprocess.", "asyncio.create_subprocess")


def check_escapes(code: Code) -> Iterator[Fault]:
    """A fault for each way out of the reach of a cancel, and each exit that writes no end."""
    for node in code.nodes:
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            path = code.dotted(node)
            if path in _OWN_GROUP:
                yield code.fault(node, f"{path}: {_LEAVES}")
            elif path in _SILENT:
                yield code.fault(node, f"{path}: {_SILENT[path]}")
        elif isinstance(node, ast.keyword) and node.arg in ("start_new_session", "process_group"):
            if not (isinstance(node.value, ast.Constant) and node.value.value in (False, None)):
                yield code.fault(node.value, f"{node.arg}={ast.unparse(node.value)}: {_LEAVES}")
        elif isinstance(node, ast.Call):
            yield from _call(code, node)


def _call(code: Code, call: ast.Call) -> Iterator[Fault]:
    path = code.dotted(call.func) or ""
    if path in ("signal.signal", "signal.pthread_sigmask") and len(call.args) == 2:
        ignored = code.dotted(call.args[1]) == "signal.SIG_IGN" or path == "signal.pthread_sigmask"
        named = {code.dotted(one) for one in ast.walk(call.args[1 if path != "signal.signal" else 0])}
        if ignored and named & _CANCELS:
            yield code.fault(call, "the signal that cancels a run is shut out, so that no end is ever written")
    if path.startswith(_RUNNERS):
        first = call.args[0] if call.args else None
        words = first.elts if isinstance(first, ast.List | ast.Tuple) else call.args
        program = (code.text(words[0]) or "").split()[:1] if words else []
        if program and program[0].rsplit("/", 1)[-1] in _OUTLIVERS:
            yield code.fault(words[0], f"{program[0]}: {_LEAVES}")
