"""What no check can read: code in a string for another interpreter, functions fetched by a name that is not there yet,
data that runs as it is loaded. A script whose effects cannot be read cannot be called honest."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from console.experiments.script.code import UNKNOWN, Code
from console.experiments.script.fault import Fault
from console.experiments.script.made import Place, made_by, maker, place

_LOADERS = frozenset(
    {"pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads", "shelve.open", "types.FunctionType",
     "types.CodeType", "importlib.machinery.SourceFileLoader", "importlib.util.spec_from_file_location"}
)  # fmt: skip
_FETCHERS = frozenset({"operator.attrgetter", "operator.methodcaller"})
_OWNERS = frozenset({"os", "subprocess", "builtins", "asyncio", "pty", "ctypes", "signal"})
_LIBRARIES = frozenset({"ctypes.CDLL", "ctypes.PyDLL", "ctypes.cdll.LoadLibrary", "ctypes.util.find_library"})
_LIBC_RUNS = re.compile(r"^(?:system|popen|exec\w*|fork|vfork|posix_spawnp?)$")
_INTERPRETER = re.compile(r"^(?:python[\d.]*|perl|ruby|node|lua|php|deno|tclsh|Rscript)$")
_SHELL = re.compile(r"^(?:sh|bash|dash|ash|zsh|ksh|fish|csh|tcsh)$")
_RUNNERS = re.compile(r"^(?:subprocess\.(?:run|call|check_call|check_output|Popen)|asyncio\.create_subprocess_exec)$")


def check_hidden(code: Code) -> Iterator[Fault]:
    """A fault for each way to run what a reader of the script cannot see."""
    libraries = {where for where, path in made_by(code).items() if path in _LIBRARIES}
    for call in code.calls():
        path = code.dotted(call.func) or ""
        if path in _LOADERS:
            yield code.fault(call, f"{path}: it can run what it reads, which no check can read")
        elif path in _FETCHERS:
            yield code.fault(call, f"{path}: the name is fetched as the script runs; write the attribute itself")
        elif path in ("builtins.getattr", "builtins.setattr") and len(call.args) >= 2:
            yield from _by_name(code, call, call.args[0], call.args[1])
        elif isinstance(call.func, ast.Attribute):
            yield from _on_an_owner(code, call, call.func, libraries)
        if _RUNNERS.match(path):
            yield from _interpreters(code, call, path)


def _by_name(code: Code, call: ast.Call, owner: ast.AST, name: ast.AST) -> Iterator[Fault]:
    module, text = code.dotted(owner), code.text(name)
    if module in _OWNERS and (text is None or UNKNOWN in text):
        yield code.fault(call, f"a function of {module} by a name that cannot be read here; write the name itself")


def _on_an_owner(code: Code, call: ast.Call, function: ast.Attribute, libraries: Collection[Place]) -> Iterator[Fault]:
    owner = function.value
    if function.attr in ("__getattribute__", "__getattr__") and code.dotted(owner) in _OWNERS:
        yield code.fault(call, f"{ast.unparse(function)}: write the attribute itself")
    made = maker(code, owner)
    loaded = made is not None and code.dotted(made.func) in _LIBRARIES
    if _LIBC_RUNS.match(function.attr) and (
        loaded or place(code, owner) in libraries or code.dotted(owner) == "ctypes.pythonapi"
    ):
        yield code.fault(
            call, f".{function.attr} of the C library: it runs commands past every check; use subprocess.run"
        )


def _interpreters(code: Code, call: ast.Call, path: str) -> Iterator[Fault]:
    """`[sys.executable, "-c", …]` is code in a string; `["bash"]` fed by `input=` is a shell by another road."""
    words = call.args if path.startswith("asyncio") else _first_list(code, call)
    if not words:
        return
    texts = [code.text(word) or "" for word in words]
    program = texts[0].rsplit("/", 1)[-1]
    python = bool(_INTERPRETER.match(program)) or code.dotted(words[0]) == "sys.executable"
    if python and any(re.match(r"^-\w*[ce]$", text) for text in texts[1:]):
        yield code.fault(words[0], f"{program or 'python'} -c: {_STRING}")
    fed = any(word.arg in ("input", "stdin") for word in call.keywords)
    if _SHELL.match(program) and (fed or "-s" in texts[1:]) and not any(_is_script(text) for text in texts[1:]):
        yield code.fault(
            words[0], f"{program} that reads its commands: it goes through a shell; give the command as a list"
        )


_STRING = "it runs text as code, which no check can read; write it as a function of the script"


def _is_script(text: str) -> bool:
    return bool(text) and not text.startswith("-")


def _first_list(code: Code, call: ast.Call) -> list[ast.expr]:
    given = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "args")][:1]
    value = code.constant(given[0]) if given else None
    return list(value.elts) if isinstance(value, ast.List | ast.Tuple) else []
