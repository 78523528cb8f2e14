"""Key-like strings: a script is uploaded, stored and exported, so that a key in it is a key given away."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from console.experiments.script.code import UNKNOWN, Code
from console.experiments.script.fault import Fault, Source

_MEND = "give it as a parameter of type secret, or in a 0600 file on the box"
# Prefixes that the services themselves document for their tokens, and shapes that are nothing else.
_SHAPES = re.compile(
    r"""
    \bsk-(?=[A-Za-z0-9_-]*\d)[A-Za-z0-9_-]{16,}
    | \b(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{20,} | \bgithub_pat_[A-Za-z0-9_]{20,} | \bglpat-[A-Za-z0-9_-]{16,}
    | \bgsk_[A-Za-z0-9]{20,} | \bxai-[A-Za-z0-9]{20,} | \br8_[A-Za-z0-9]{20,} | \bdop_v1_[a-f0-9]{20,} | \bSG\.[\w-]{16,}\.[\w-]{16,}
    | \bhf_[A-Za-z0-9]{16,} | \bnvapi-[A-Za-z0-9_-]{16,} | \bxox[abeoprs]-[A-Za-z0-9-]{10,}
    | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b | \bAIza[0-9A-Za-z_-]{30,} | \bpypi-[A-Za-z0-9_-]{30,} | \bnpm_[A-Za-z0-9]{30,}
    | -----BEGIN\ [A-Z\ ]*PRIVATE\ KEY-----
    | \beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+
    | \b(?:Bearer|Basic|Token|ApiKey)\s+(?=\S*[\d=])[A-Za-z0-9+/_.=-]{12,}
    | (?i:\b(?:x-)?(?:api|auth|access|secret)[_-](?:key|token)):\ *(?=[^\s"']*\d)[A-Za-z0-9+/_.=-]{10,}
    | \b[a-z][a-z0-9+.-]{0,20}://[^/\s:@'"{}]+:[^/\s:@'"{}]+@
    """,
    re.VERBOSE,
)
_STRONG = re.compile(
    r"(?:^|_|-)(?:(?:api|access|private|secret|auth|signing)[_-]?key|secret|passwd|password|passphrase|credentials?"
    r"|authorization|bearer)(?:$|_|-)",
    re.IGNORECASE,
)
_WEAK = re.compile(r"(?:^|_|-)(?:key|token|auth)(?:$|_|-)", re.IGNORECASE)
_ABOUT_A_KEY = re.compile(r"(?:file|path|dir|env|name|var|header|param|id|type|scheme|prefix)s?$", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z0-9+/_.=~!@#$%^&*-]+")
_ENVIRONMENT_NAME = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")


def check_keys(source: Source, code: Code | None) -> Iterator[Fault]:
    """Faults for strings that look like keys: known shapes anywhere in the file, and key-named values in the code."""
    seen: set[int] = set()
    for number, line in enumerate(source.lines, 1):
        if match := _SHAPES.search(line):
            seen.add(number)
            yield source.fault(number, match.start() + 1, f"this looks like a key ({_hidden(match[0])}); {_MEND}")
    if code is None:
        return
    for node, text in code.texts:
        if node.lineno not in seen and (match := _SHAPES.search(text)):
            seen.add(node.lineno)
            yield code.fault(node, f"this amounts to a key ({_hidden(match[0])}); {_MEND}")
    for name, whole in _named_values(code):
        for value in _alternatives(whole):
            held = code.text(value)
            if value.lineno not in seen and held is not None and _is_key(_snake(name), held):
                seen.add(value.lineno)
                yield code.fault(value, f"{name} holds a key ({_hidden(held)}); {_MEND}")


def _alternatives(value: ast.expr) -> Iterator[ast.expr]:
    """The values that `a or b` and `a if c else b` may give."""
    if isinstance(value, ast.BoolOp):
        yield from value.values
    elif isinstance(value, ast.IfExp):
        yield from (value.body, value.orelse)
    else:
        yield value


def _named_values(code: Code) -> Iterator[tuple[str, ast.expr]]:
    for node in code.nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if (name := _name_of(code, target)) is not None:
                    yield name, node.value
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            if (name := _name_of(code, node.target)) is not None:
                yield name, node.value
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg, node.value
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is not None and (name := code.text(key)):
                    yield name, value
        elif isinstance(node, ast.Call | ast.Tuple):
            parts = node.args if isinstance(node, ast.Call) else node.elts
            if isinstance(node, ast.Call) and code.dotted(node.func) == "builtins.setattr":
                parts = parts[1:]
            if len(parts) >= 2 and (name := code.text(parts[0])):
                yield name, parts[1]
            if (
                isinstance(node, ast.Call) and parts and (name := code.text(parts[0]))
            ):  # add_argument("--key", default=…)
                yield from ((name, word.value) for word in node.keywords if word.arg in ("default", "const", "value"))
        elif isinstance(node, ast.arguments):
            pairs = zip(reversed([*node.posonlyargs, *node.args]), reversed(node.defaults), strict=False)
            yield from ((argument.arg, default) for argument, default in pairs)
            keyword_pairs = zip(node.kwonlyargs, node.kw_defaults, strict=True)
            yield from ((argument.arg, default) for argument, default in keyword_pairs if default is not None)


def _name_of(code: Code, target: ast.expr) -> str | None:
    if isinstance(target, ast.Name):
        return target.id
    if isinstance(target, ast.Attribute):
        return target.attr
    return code.text(target.slice) if isinstance(target, ast.Subscript) else None


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)


def looks_like_a_key(name: str, text: str) -> bool:
    """Whether a value given under `name` is a key rather than a word about one."""
    return bool(_SHAPES.search(text)) or _is_key(_snake(name), text)


def _is_key(name: str, text: str) -> bool:
    """One word, no path, no name of an environment variable; after a vague name also long and mixed with digits."""
    if _ABOUT_A_KEY.search(name) or UNKNOWN in text or not _WORD.fullmatch(text):
        return False
    if _ENVIRONMENT_NAME.fullmatch(text) or text.startswith(("/", "./", "~")):
        return False
    if _STRONG.search(name):
        return len(text) >= 6
    mixed = any(letter.isdigit() for letter in text) and any(letter.isalpha() for letter in text)
    return bool(_WEAK.search(name)) and len(text) >= 16 and mixed


def _hidden(text: str) -> str:
    return f"{text[:4]}…" if len(text) > 8 else "…"
