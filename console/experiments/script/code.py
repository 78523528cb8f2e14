"""Code: a script's syntax tree with what its names stand for and what its strings amount to, without running it.

Checks ask "does this expression mean `os.system`?" and "what text is this?", whatever alias or concatenation wrote it.
Both answers are best efforts of reading: what cannot be known is None, or a NUL in the place of an unknown part.
"""

from __future__ import annotations

import ast
import base64
import binascii
import builtins
from collections import Counter
from collections.abc import Iterator
from functools import cached_property

from console.experiments.script.fault import Fault, Source

UNKNOWN = "\0"
_BUILTINS = frozenset(dir(builtins))
_SAME = {"posix": "os", "nt": "os", "_io": "io", "_socket": "socket", "posixpath": "os.path", "_thread": "threading"}
_SAME_TEXT = frozenset({"pathlib.Path", "pathlib.PurePath", "shutil.which", "builtins.str"})
_DECODERS = frozenset(
    {
        "base64.b64decode",
        "base64.standard_b64decode",
        "builtins.bytes.fromhex",
        "binascii.unhexlify",
        "binascii.a2b_base64",
    }
)
_NAMESPACES = frozenset({"builtins.globals", "builtins.locals", "builtins.vars"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Code:
    """The tree, its parents, the meaning of its names."""

    def __init__(self, source: Source, tree: ast.Module) -> None:
        self.source = source
        self.tree = tree
        self.nodes: tuple[ast.AST, ...] = tuple(ast.walk(tree))
        self._parents = {child: parent for parent in self.nodes for child in ast.iter_child_nodes(parent)}
        self.aliases: dict[str, str] = {}  # bound name -> dotted path it was imported as, or plainly assigned
        self._read_imports()
        for _ in range(3):  # an alias of an alias of an alias
            self._read_assignments()

    def fault(self, node: ast.AST, message: str) -> Fault:
        """A fault where `node` begins."""
        line = getattr(node, "lineno", 1)
        return self.source.fault(line, self.source.column_of_bytes(line, getattr(node, "col_offset", 0)), message)

    @cached_property
    def positions(self) -> dict[ast.AST, int]:
        """Where each element of a list or tuple, and each argument of a call, stands among its fellows."""
        lists = [one.elts for one in self.nodes if isinstance(one, ast.List | ast.Tuple)]
        lists += [one.args for one in self.nodes if isinstance(one, ast.Call)]
        return {part: index for parts in lists for index, part in enumerate(parts)}

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node around `node`; None for the module."""
        return self._parents.get(node)

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around `node`, innermost first."""
        while (above := self._parents.get(node)) is not None:
            yield above
            node = above

    def calls(self) -> Iterator[ast.Call]:
        """Every call, in the order of the tree."""
        return (node for node in self.nodes if isinstance(node, ast.Call))

    # Names

    def _read_imports(self) -> None:
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for one in node.names:
                    self.aliases[one.asname or one.name.split(".")[0]] = (
                        one.name if one.asname else one.name.split(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self.aliases.update({one.asname or one.name: f"{node.module}.{one.name}" for one in node.names})

    def _read_assignments(self) -> None:
        for node in self.nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                meaning = self.dotted(node.value)
                if meaning:
                    self.aliases.update({one.id: meaning for one in targets if isinstance(one, ast.Name)})

    @cached_property
    def star_imports(self) -> tuple[str, ...]:
        """Modules whose names were imported by `*`."""
        return tuple(
            node.module
            for node in self.nodes
            if isinstance(node, ast.ImportFrom) and node.module and node.names[0].name == "*"
        )

    def dotted(self, node: ast.AST | None) -> str | None:
        """The dotted path an expression stands for (`os.system`, `builtins.eval`), or None."""
        path = self._dotted(node)
        if path is None:
            return None
        head, _, rest = path.partition(".")
        head = _SAME.get(head, head)
        return f"{head}.{rest}" if rest else head

    def _dotted(self, node: ast.AST | None) -> str | None:
        if isinstance(node, ast.Name):
            if node.id in self.aliases:
                return self.aliases[node.id]
            if node.id == "__builtins__":
                return "builtins"
            return f"builtins.{node.id}" if node.id in _BUILTINS and not self._is_bound(node) else None
        if isinstance(node, ast.Attribute):
            owner = self._dotted(node.value)
            return f"{owner}.{node.attr}" if owner else None
        if isinstance(node, ast.Call):
            return self._dotted_call(node)
        if isinstance(node, ast.Subscript):
            key = self.text(node.slice)
            inside = isinstance(node.value, ast.Call) and not node.value.args and self._dotted(node.value.func)
            if key is not None and inside in _NAMESPACES:
                return "builtins" if key == "__builtins__" else self._dotted(ast.Name(key, ast.Load()))
            owner = self._dotted(node.value)
            if key is None or owner is None:
                return None
            if owner == "sys.modules":
                return key
            return (
                f"{owner.removesuffix('.__dict__')}.{key}"
                if owner.endswith(".__dict__") or owner == "builtins"
                else None
            )
        return None

    def _dotted_call(self, node: ast.Call) -> str | None:
        function = self._dotted(node.func)
        if function == "builtins.getattr" and len(node.args) >= 2:
            owner, name = self._dotted(node.args[0]), self.text(node.args[1])
            return f"{owner}.{name}" if owner and name else None
        if function in ("builtins.__import__", "importlib.import_module", "importlib.__import__") and node.args:
            return self.text(node.args[0])
        if function == "builtins.vars" and node.args:
            owner = self._dotted(node.args[0])
            return f"{owner}.__dict__" if owner else None
        return None

    def _is_bound(self, name: ast.Name) -> bool:
        """Whether the script itself binds a builtin's name, in a function around its use or at the top."""
        return self.scope(name) is not None

    def scope(self, name: ast.Name) -> ast.AST | None:
        """The innermost function around `name` that binds it, else the module that does; None when nobody does."""
        functions = (one for one in self.around(name) if isinstance(one, _FUNCTIONS))
        return next((one for one in (*functions, self.tree) if name.id in self._bindings[one]), None)

    @property
    def bound_names(self) -> frozenset[str]:
        """Every name that the script binds, wherever."""
        return frozenset().union(*self._bindings.values())

    @cached_property
    def _bindings(self) -> dict[ast.AST, set[str]]:
        found: dict[ast.AST, set[str]] = {self.tree: set()}
        for node in self.nodes:
            if isinstance(node, _FUNCTIONS):
                found.setdefault(node, set())
        for node in self.nodes:
            scope = next((one for one in self.around(node) if isinstance(one, _FUNCTIONS)), self.tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found[scope].add(node.name)
            elif isinstance(node, ast.arg):
                found[scope].add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found[scope].add(node.id)
            elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
                found[scope].add(node.name)
            elif isinstance(node, ast.MatchMapping) and node.rest:
                found[scope].add(node.rest)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                found[scope].update(one.asname or one.name.split(".")[0] for one in node.names)
            elif isinstance(node, ast.Global):
                found[self.tree].update(node.names)
        return found

    # Texts

    @cached_property
    def _constants(self) -> dict[str, ast.expr]:
        """Names that exactly one plain assignment binds."""
        values: dict[str, list[ast.expr]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        values.setdefault(target.id, []).append(node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                values.setdefault(node.target.id, []).append(node.value)
        stores = Counter(
            node.id for node in self.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )
        return {name: found[0] for name, found in values.items() if len(found) == 1 and stores[name] == 1}

    def constant(self, node: ast.AST | None) -> ast.AST | None:
        """The expression that a name stands for when exactly one assignment binds it; `node` itself otherwise."""
        for _ in range(5):
            if not isinstance(node, ast.Name) or node.id not in self._constants:
                break
            node = self._constants[node.id]
        return node

    def text(self, node: ast.AST | None, depth: int = 0) -> str | None:
        """What a string expression amounts to, with NUL for each unknown part; None when it is no string at all."""
        if depth > 50 or node is None:
            return None
        if isinstance(node, ast.Constant):
            if isinstance(node.value, bytes):
                return node.value.decode("latin-1")
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            value = self._constants.get(node.id)
            return self.text(value, depth + 1)
        if isinstance(node, ast.JoinedStr):
            return "".join(
                self._part(one.value if isinstance(one, ast.FormattedValue) else one, depth) for one in node.values
            )
        if isinstance(node, ast.BinOp):
            return self._operation(node, depth)
        if isinstance(node, ast.Call):
            return self._call(node, depth)
        if isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "::-1":
            text = self.text(node.value, depth + 1)
            return text[::-1] if text is not None else None
        return None

    def _part(self, node: ast.AST, depth: int) -> str:
        text = self.text(node, depth + 1)
        return UNKNOWN if text is None else text

    def _operation(self, node: ast.BinOp, depth: int) -> str | None:
        left, right = self.text(node.left, depth + 1), self.text(node.right, depth + 1)
        if isinstance(node.op, ast.Add) and (left is not None or right is not None):
            return (UNKNOWN if left is None else left) + (UNKNOWN if right is None else right)
        if isinstance(node.op, ast.Div) and right is not None:  # pathlib
            return f"{UNKNOWN if left is None else left}/{right}"
        if isinstance(node.op, ast.Mod) and left is not None:
            values = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
            return _fill(left.replace("%%", "%"), ("%s", "%d", "%r"), [self._part(one, depth) for one in values])
        return None

    def _call(self, node: ast.Call, depth: int) -> str | None:
        path = self.dotted(node.func)
        if path in _SAME_TEXT and node.args:
            return self.text(node.args[0], depth + 1)
        if path in _DECODERS and node.args:
            return _decoded(str(path), self.text(node.args[0], depth + 1))
        if path == "builtins.chr" and node.args:
            number = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
            return chr(number) if isinstance(number, int) and 0 <= number < 0x110000 else UNKNOWN
        if not isinstance(node.func, ast.Attribute):
            return None
        method = node.func.attr
        if path == "os.path.join":
            return "/".join(self._part(one, depth) for one in node.args)
        owner = self.text(node.func.value, depth + 1)
        if owner is None:
            return None
        if method == "join" and node.args and isinstance(node.args[0], ast.List | ast.Tuple):
            return owner.join(self._part(one, depth) for one in node.args[0].elts)
        if method == "format":
            return _fill(owner, ("{}",), [self._part(one, depth) for one in node.args])
        if method == "replace" and len(node.args) == 2:
            old, new = (self._part(one, depth) for one in node.args)
            return owner.replace(old, new) if old else owner
        if method in ("lower", "upper", "casefold", "title", "swapcase"):
            return str(getattr(owner, method)())
        return owner if method in ("encode", "decode", "strip", "rstrip", "lstrip") else None

    @cached_property
    def texts(self) -> tuple[tuple[ast.expr, str], ...]:
        """Every string expression with what it amounts to, docstrings left out; larger ones before their parts."""
        return tuple(
            (node, text)
            for node in self.nodes
            if isinstance(node, ast.expr)
            and not isinstance(node, ast.Name)
            and not isinstance(self.parent(node), ast.Expr)
            and (text := self.text(node)) is not None
        )


def _decoded(path: str, text: str | None) -> str | None:
    """What a decoder makes of a known text; None when it makes nothing of it."""
    if text is None or UNKNOWN in text:
        return None
    try:
        data = bytes.fromhex(text) if "hex" in path else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None
    return data.decode("latin-1")


def _fill(pattern: str, marks: tuple[str, ...], values: list[str]) -> str:
    for value in values:
        places = [place for mark in marks if (place := pattern.find(mark)) >= 0]
        if not places:
            break
        place = min(places)
        pattern = pattern[:place] + value + pattern[place + 2 :]
    return pattern
