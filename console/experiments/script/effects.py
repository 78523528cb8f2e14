"""Honesty of `effects`: what the code mentions that changes the box has to stand in the header, or nobody is warned.

A mention is judged by what the text amounts to, wherever it stands in the code: in an argument list, a constant, an
f-string, a concatenation. Commands that only look (`systemctl show`, `nvidia-smi -q`) need nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from console.experiments.script.code import UNKNOWN, Code
from console.experiments.script.fault import Fault

_LOOKS = frozenset(
    {"show", "status", "cat", "list-units", "list-unit-files", "list-dependencies", "list-jobs", "list-timers",
     "list-sockets", "is-active", "is-enabled", "is-failed", "is-system-running", "get-default", "show-environment", "help"}
)  # fmt: skip
_EDITS = frozenset(
    {"edit", "set-property", "daemon-reload", "daemon-reexec", "enable", "disable", "reenable", "preset", "mask", "unmask",
     "link", "revert", "add-wants", "add-requires", "set-environment", "unset-environment", "import-environment"}
)  # fmt: skip
_KILLERS = frozenset({"kill", "pkill", "killall", "skill", "fuser", "reboot", "poweroff", "shutdown", "halt"})
_SERVICE_TOOLS = frozenset(
    {"service", "initctl", "supervisorctl", "rc-service", "invoke-rc.d", "busctl", "systemd-run"}
)
_PLAIN_WORDS = frozenset({"kill", "skill", "service", "halt", "shutdown", "fuser"})  # commands only where one is run
_CONTAINERS = frozenset({"docker", "podman", "nerdctl", "crictl", "kubectl"})
_CONTAINER_LOOKS = frozenset({"ps", "inspect", "logs", "stats", "top", "version", "info", "images", "get", "describe"})
_GPU_OPTIONS = re.compile(
    r"^(?:-(?:lgc|lmc|rgc|rmc|ac|rac|pl|pm|cc|gtt|r|e|c|mig|acp)|--(?:lock|reset|applications|power-limit|persistence|gpu-reset|ecc|compute-mode"
    r"|auto-boost|gom|mig|cuda-clocks|gpu-target)[\w-]*|--set[\w-]*|set|reset)(?:=.*)?$"
)
_GPU_TOOLS = frozenset({"nvidia-smi", "rocm-smi", "amd-smi", "nvidia-settings", "xpu-smi"})
_FLUSH = re.compile(
    r"(?:flush|reset|clear|drop|erase|purge|evict|invalidate)[a-z_-]{0,30}cache"
    r"|cache[s]?/(?:flush|reset|clear|drop|erase|purge|evict)|action=(?:erase|clear)|drop_caches",
    re.IGNORECASE,
)
# Endpoints of vLLM and SGLang that take the weights or the pool away, or others' requests.
_CONTROL = re.compile(
    r"/(?:sleep|wake_up|(?:release|resume)_memory_occupation|(?:update|init)_weights\w*|(?:load|unload)_lora_adapter"
    r"|pause_generation|abort_request|collective_rpc|set_internal_state|scale_elastic_ep)(?:[?/]|$)"
)
_FILE_TOOLS = frozenset(
    {"sed", "tee", "cp", "mv", "install", "ln", "rm", "truncate", "dd", "touch", "chmod", "rsync", "patch"}
)
_MOST_WORDS = 40  # of one command that are looked at
_NVML = re.compile(r"^(?:nvmlDevice(?:Set|Reset|Clear)\w+|rsmi_dev_\w*set\w*|amdsmi_set\w+)$")
_UNIT_FILE = re.compile(
    r"/systemd/(?:system|user)\b|\.service\.d\b|\.service$|(?:^|/)engine\.toml$|/generations/|/etc/default/"
)
_CLOCK_FILE = re.compile(r"pp_dpm_|power_dpm_|pp_od_clk|power1_cap|/cpufreq/|scaling_governor")
_SERVICE_BUS = re.compile(r"org\.freedesktop\.systemd1")
_WRITES = frozenset({"write_text", "write_bytes", "rename", "replace", "unlink", "symlink_to", "hardlink_to", "touch"})
_WRITE_CALLS = re.compile(
    r"^(?:os\.(?:rename|replace|remove|unlink|symlink|link|truncate)|shutil\.(?:copy\w*|move|rmtree))$"
)
_RUNS = re.compile(r"^(?:subprocess\.|asyncio\.create_subprocess|shlex\.split$|os\.(?:spawn|posix_spawn|exec))")
_WRAPPERS = frozenset(
    {
        "sudo",
        "env",
        "nohup",
        "exec",
        "setsid",
        "nice",
        "ionice",
        "timeout",
        "time",
        "doas",
        "command",
        "stdbuf",
        "flock",
    }
)


@dataclass(frozen=True)
class _Effect:
    """Something the code does to the box; any one of `needs` declares it."""

    needs: tuple[str, ...]
    what: str


_RESTARTS = ("restarts_service",)


def check_effects(code: Code, declared: Sequence[str]) -> Iterator[Fault]:
    """One fault a line for each effect that the code mentions and the header does not declare."""
    seen: set[tuple[int, tuple[str, ...]]] = set()
    for node, effect in _effects(code):
        place = (getattr(node, "lineno", 0), effect.needs)
        if place not in seen and not set(effect.needs) & set(declared):
            seen.add(place)
            words = " or ".join(f'"{need}"' for need in effect.needs)
            yield code.fault(node, f"{effect.what}: undeclared effect; add {words} to effects, or leave it out")


def _effects(code: Code) -> Iterator[tuple[ast.AST, _Effect]]:
    for node, text in code.texts:
        if _FLUSH.search(text) and not _is_prose(text):
            yield node, _Effect(("flushes_cache",), f"{_shown(text)} empties a cache")
        if _CONTROL.search(text) and not _is_prose(text):
            needs = (*_RESTARTS, "flushes_cache")
            yield node, _Effect(needs, f"{_shown(text)} takes the engine's weights, pool or requests away")
        if _NVML.match(text):
            yield node, _Effect(("writes_gpu_clock",), f"{text} sets the GPU")
        if _SERVICE_BUS.search(text):
            yield node, _Effect((*_RESTARTS, "edits_unit"), f"{_shown(text)} reaches the service manager")
        runs = any(isinstance(one, ast.Call) and _RUNS.match(code.dotted(one.func) or "") for one in code.around(node))
        *earlier, last = re.split(r"[;&|\n]+", text)
        commands = [*(part.split() for part in earlier), _words_from(code, node, last)]
        yield from ((node, effect) for words in commands for effect in _command_effects(words, runs))
    for part in code.nodes:
        if isinstance(part, ast.Attribute) and _NVML.match(part.attr):
            yield part, _Effect(("writes_gpu_clock",), f"{part.attr} sets the GPU")
        elif isinstance(part, ast.Call):
            yield from _call_effects(code, part)
            if code.dotted(part.func) == "kit.Service":
                yield part, _Effect(_RESTARTS, "kit.Service restarts the service")
        elif isinstance(part, ast.List | ast.Tuple) and part.elts and isinstance(part.elts[0], ast.Name):
            words = _words_from(code, part.elts[0], code.text(part.elts[0]) or UNKNOWN)
            yield from ((part, effect) for effect in _command_effects(words, runs=True))


def _words_from(code: Code, node: ast.expr, text: str) -> list[str]:
    """The command that begins with this text: its own words, then the arguments after it in the same list or call."""
    words = text.split()
    parent = code.parent(node)
    if isinstance(node, ast.Call) and code.dotted(node.func) == "shutil.which":
        return []  # it only looks; the command is seen where its name is used
    siblings: Sequence[ast.AST] = ()
    if isinstance(parent, ast.List | ast.Tuple):
        siblings = parent.elts
    elif isinstance(parent, ast.Call):
        siblings = parent.args
        if code.dotted(parent.func) == "shutil.which":
            return []
    if node not in code.positions or not siblings:
        return words if len(words) > 1 else [*words, UNKNOWN]  # a constant: what follows it is seen where it is used
    after = code.positions[node] + 1
    for sibling in siblings[after : after + _MOST_WORDS]:
        inner = code.text(sibling)
        words += [UNKNOWN] if inner is None else inner.split() or [""]
    return words


def _command_effects(words: list[str], runs: bool) -> Iterator[_Effect]:
    words = _without_wrappers(words)
    if not words:
        return
    program, arguments = words[0].rsplit("/", 1)[-1], words[1:]
    if words[0].startswith(("/etc/init.d/", "/etc/rc.d/")):
        program, arguments = "service", [program, *arguments]
    if program == "systemctl":
        yield from _systemctl(arguments)
    elif not arguments or (program in _PLAIN_WORDS and not runs):
        return
    elif program in _KILLERS:
        yield _Effect(_RESTARTS, f"{program} ends processes")
    elif program in _SERVICE_TOOLS and not set(arguments) & {"status", "list", "tree", "introspect"}:
        yield _Effect(_RESTARTS, f"{program} {_shown(arguments[0])} reaches a service manager")
    elif program in _CONTAINERS and not set(arguments[:2]) & _CONTAINER_LOOKS:
        yield _Effect(_RESTARTS, f"{program} {_shown(arguments[0])} changes a container")
    elif program == "supervise.py" and set(arguments) & {"start", "stop", "restart", UNKNOWN}:
        yield _Effect(_RESTARTS, "supervise.py restarts the service")
    elif program == "ddtree" and set(arguments) & {"start", "stop", "restart", "rollback", "install", "uninstall"}:
        yield _Effect(_RESTARTS, "ddtree changes the service")
    elif program in _GPU_TOOLS and (arguments[0] == UNKNOWN or any(_GPU_OPTIONS.match(word) for word in arguments)):
        yield _Effect(("writes_gpu_clock",), f"{program} {_shown(' '.join(arguments))} sets the GPU")
    elif program in _FILE_TOOLS:
        yield from _file_effects(program, arguments)
    elif program == "cpupower" and "frequency-set" in arguments:
        yield _Effect(("writes_gpu_clock",), "cpupower sets the clock")
    elif program == "sysctl" and any("drop_caches" in word for word in arguments):
        yield _Effect(("flushes_cache",), "sysctl drop_caches empties a cache")


def _file_effects(program: str, arguments: list[str]) -> Iterator[_Effect]:
    """A tool that writes files, given one of those that decide how the box runs."""
    if program == "sed" and not any(word.startswith(("-i", "--in-place")) for word in arguments):
        return
    for word in arguments:
        if _UNIT_FILE.search(word):
            yield _Effect(("edits_unit",), f"{program} writes {_shown(word)}")
        elif _CLOCK_FILE.search(word):
            yield _Effect(("writes_gpu_clock",), f"{program} writes {_shown(word)}")


def _without_wrappers(words: list[str]) -> list[str]:
    while words and words[0].rsplit("/", 1)[-1] in _WRAPPERS:
        words = words[1:]
        while words and (words[0].startswith("-") or re.match(r"^\w+=|^\d+[smh]?$", words[0])):
            words = words[1:]
    return words


def _systemctl(arguments: list[str]) -> Iterator[_Effect]:
    verbs = [word for word in arguments if not word.startswith("-")]
    verb = verbs[0] if verbs else UNKNOWN
    if verb in _LOOKS:
        return
    if verb in _EDITS:
        yield _Effect(("edits_unit",), f"systemctl {verb} changes units")
    elif verb == UNKNOWN:
        yield _Effect((*_RESTARTS, "edits_unit"), "systemctl with a verb that cannot be read here")
    else:
        yield _Effect(_RESTARTS, f"systemctl {verb}")


def _call_effects(code: Code, call: ast.Call) -> Iterator[tuple[ast.AST, _Effect]]:
    path = code.dotted(call.func) or ""
    if path in ("os.kill", "os.killpg", "signal.pidfd_send_signal") and not _is_zero(call.args[-1:]):
        yield call, _Effect(_RESTARTS, f"{path} signals another process")
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    renames = method in _WRITES and not (method == "replace" and len(call.args) != 1)  # str.replace takes two
    writes = renames or _opens_for_writing(code, call, path, method) or bool(_WRITE_CALLS.match(path))
    if not writes:
        return
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    for part in (*call.args, *([owner] if owner is not None else [])):
        text = code.text(part) or ""
        if _UNIT_FILE.search(text):
            yield call, _Effect(("edits_unit",), f"it writes {_shown(text)}")
        if _CLOCK_FILE.search(text):
            yield call, _Effect(("writes_gpu_clock",), f"it writes {_shown(text)}")


def _opens_for_writing(code: Code, call: ast.Call, path: str, method: str) -> bool:
    if path in ("os.open", "io.FileIO"):
        return True
    if path not in ("builtins.open", "io.open", "codecs.open") and method != "open":
        return False
    first = 0 if not path else 1  # Path.open(mode), open(file, mode)
    modes = [word.value for word in call.keywords if word.arg == "mode"] + call.args[first : first + 1]
    texts = [code.text(mode) for mode in modes]
    return any(text is None or set(text) & set("wax+") for text in texts)


def _is_zero(arguments: list[ast.expr]) -> bool:
    """Signal 0 asks whether a process lives."""
    return bool(arguments) and isinstance(arguments[0], ast.Constant) and arguments[0].value == 0


def _is_prose(text: str) -> bool:
    return " " in text.strip() and "/" not in text


def _shown(text: str) -> str:
    text = text.replace(UNKNOWN, "…")
    return text if len(text) <= 40 else text[:39] + "…"
