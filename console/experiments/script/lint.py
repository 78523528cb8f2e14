"""What a detached script must not do: ask a person, go through a shell, run text as code, or import what is not there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from console.experiments.script.code import UNKNOWN, Code
from console.experiments.script.fault import Fault
from console.experiments.script.versions import Version, why_not_stdlib

HELPERS = frozenset({"kit"})  # uploaded beside the script

_ASKS = "it waits for a person, and a detached run has none"
_SHELL = "it goes through a shell; give subprocess.run a list of arguments"
_CODE = "it runs text as code, which no check can read"
_FORBIDDEN: dict[str, str] = {
    **dict.fromkeys(
        ("builtins.input", "builtins.breakpoint", "sys.stdin", "sys.__stdin__", "getpass.getpass", "fileinput.input",
         "fileinput.FileInput", "pdb.set_trace", "pdb.run", "pdb.post_mortem", "code.interact", "builtins.help"),
        _ASKS,
    ),
    **dict.fromkeys(
        ("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "pty.spawn",
         "asyncio.create_subprocess_shell", "asyncio.subprocess.create_subprocess_shell"),
        _SHELL,
    ),
    **dict.fromkeys(
        ("builtins.exec", "builtins.eval", "builtins.compile", "runpy.run_path", "runpy.run_module",
         "code.InteractiveInterpreter", "code.InteractiveConsole", "code.compile_command", "codeop.compile_command"),
        _CODE,
    ),
}  # fmt: skip
_REPLACES = "it replaces the script's process, so that no end is ever written; use subprocess.run"
_IMPORTERS = frozenset({"builtins.__import__", "importlib.import_module", "importlib.__import__"})
_SHELLS = frozenset(
    {"sh", "bash", "dash", "ash", "zsh", "ksh", "fish", "csh", "tcsh", "busybox", "cmd.exe", "powershell"}
)
_POPEN_SHELL_POSITION = 8  # Popen(args, bufsize, executable, stdin, stdout, stderr, preexec_fn, close_fds, shell)


def lint(code: Code, versions: tuple[Version, ...]) -> Iterator[Fault]:
    """Faults of imports, forbidden calls and shells, in no order. `versions` are the Pythons the script must run on."""
    yield from _imports(code, versions)
    yield from _forbidden(code)
    yield from _shells(code)


def lint_warnings(code: Code) -> Iterator[Fault]:
    """What is not wrong and yet worth a look: standard output used outside the helper that writes events."""
    for call in code.calls():
        name = code.dotted(call.func)
        to_stdout = name == "builtins.print" and all(word.arg != "file" for word in call.keywords)
        if (to_stdout or name in ("sys.stdout.write", "sys.stdout.buffer.write", "os.write")) and not _in_emitter(
            code, call
        ):
            yield code.fault(call, "standard output is for events; log through the kit, or print to sys.stderr")


def _in_emitter(code: Code, node: ast.AST) -> bool:
    functions = (one for one in code.around(node) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
    return any("emit" in function.name for function in functions)


def _imports(code: Code, versions: tuple[Version, ...]) -> Iterator[Fault]:
    for node in code.nodes:
        if isinstance(node, ast.ImportFrom) and node.level:
            yield code.fault(node, "a relative import; the script runs alone, with kit.py beside it")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for name in names:
                yield from _import(code, node, name, versions)
        elif isinstance(node, ast.Call) and code.dotted(node.func) in _IMPORTERS:
            name_text = code.text(node.args[0]) if node.args else None
            if name_text is None or UNKNOWN in name_text:
                yield code.fault(node, "an import by a name that cannot be read here; write an import statement")
            else:
                yield from _import(code, node, name_text, versions)


def _import(code: Code, node: ast.AST, name: str, versions: tuple[Version, ...]) -> Iterator[Fault]:
    top = name.split(".")[0]
    if top in HELPERS:
        return
    why = why_not_stdlib(top, versions)
    if why and not (
        _is_guarded(code, node) and why_not_stdlib(top, versions[:1]) != why_not_stdlib(top, versions[-1:])
    ):
        yield code.fault(node, why)


def _is_guarded(code: Code, node: ast.AST) -> bool:
    """Inside `try: … except ImportError`, the usual way to take a module where the version has it."""
    for around in code.around(node):
        if isinstance(around, ast.Try):
            for handler in around.handlers:
                kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
                if any(code.dotted(kind) in ("builtins.ImportError", "builtins.ModuleNotFoundError") for kind in kinds):
                    return True
    return False


def _forbidden(code: Code) -> Iterator[Fault]:
    for module in code.star_imports:
        for path in _FORBIDDEN:
            owner, _, name = path.rpartition(".")
            if owner == module:
                yield from (
                    code.fault(node, f"{path}: {_FORBIDDEN[path]}")
                    for node in code.nodes
                    if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
                )
    for node in code.nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            for one in node.names:
                yield from _forbidden_path(code, node, f"{node.module}.{one.name}")
        elif isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            if isinstance(node, ast.Name) and (not isinstance(node.ctx, ast.Load) or node.id in code.aliases):
                continue  # reported where the alias was made
            yield from _forbidden_path(code, node, code.dotted(node))


def _forbidden_path(code: Code, node: ast.AST, path: str | None) -> Iterator[Fault]:
    if path is None:
        return
    if path in _FORBIDDEN:
        yield code.fault(node, f"{path.removeprefix('builtins.')}: {_FORBIDDEN[path]}")
    elif path.startswith(("os.exec", "os.spawn", "os.posix_spawn")):
        yield code.fault(node, f"{path}: {_REPLACES}")


def _shells(code: Code) -> Iterator[Fault]:
    for node in code.nodes:
        if isinstance(node, ast.keyword) and node.arg == "shell" and not _is_off(node.value):
            yield code.fault(node.value, f"shell={ast.unparse(node.value)}: {_SHELL}")
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is not None and code.text(key) == "shell" and not _is_off(value):
                    yield code.fault(key, f"shell={ast.unparse(value)}: {_SHELL}")
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and code.text(target.slice) == "shell" and not _is_off(node.value):
                    yield code.fault(target, f"shell={ast.unparse(node.value)}: {_SHELL}")
        if isinstance(node, ast.Call):
            path = code.dotted(node.func) or ""
            by_position = node.args[_POPEN_SHELL_POSITION:][:1] if path.startswith("subprocess.") else []
            yield from (code.fault(one, f"shell by position: {_SHELL}") for one in by_position if not _is_off(one))
        if isinstance(node, ast.List | ast.Tuple | ast.Call):
            yield from _shell_arguments(code, node)


def _shell_arguments(code: Code, node: ast.List | ast.Tuple | ast.Call) -> Iterator[Fault]:
    """`["bash", "-c", …]` is a shell by another road."""
    parts = node.args if isinstance(node, ast.Call) else node.elts
    words = [code.text(part) or "" for part in parts]
    for index, word in enumerate(words):
        if word.rsplit("/", 1)[-1] in _SHELLS and any(_is_c_option(later) for later in words[index + 1 :]):
            yield code.fault(parts[index], f"{word} -c: {_SHELL}")


def _is_c_option(word: str) -> bool:
    return word.startswith("-") and not word.startswith("--") and word.endswith("c") and word[1:].isalpha()


def _is_off(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value
