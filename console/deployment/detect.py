"""Which engine a unit runs, by its command line, and where its settings are: the bundled one, SGLang or vLLM."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from console.box.connection import Connection
from console.box.service_properties import parse_show
from console.box.services import ServiceManager, Systemd
from console.deployment.base import Deployment
from console.deployment.bundled import BUNDLED
from console.deployment.sglang import Sglang
from console.deployment.site import NO_FILE, Site
from console.deployment.vllm import Vllm

PROPERTIES = ("LoadState", "ExecStart", "EnvironmentFiles", "SyslogIdentifier")
KINDS: tuple[tuple[str, type[Sglang] | type[Vllm]], ...] = (
    (r"(?:^|[\s/.])sglang(?:[\s/.]|$)", Sglang),
    (r"(?:^|[\s/.])vllm(?:[\s/.]|$)", Vllm),
)


@dataclass(frozen=True)
class Found:
    """What a unit runs. `settings_file` is "" for the bundled engine, whose file is known."""

    deployment: Deployment
    settings_file: str = ""


async def find_site(connection: Connection, manager: ServiceManager) -> Site:
    """The engine behind the manager's unit, ready to be looked at and changed. Raises LinkError."""
    if not isinstance(manager, Systemd):
        return Site(connection, manager)
    shown = await connection.run(manager.show_argv(PROPERTIES))
    found = engine_of(parse_show(shown.stdout.decode("utf-8", "replace")))
    if not found.settings_file:
        return Site(connection, manager)
    manager.identifier = found.deployment.identifier
    return Site(connection, manager, found.deployment, settings_file=found.settings_file, own_python="python3")


def engine_of(properties: Mapping[str, str]) -> Found:
    """The engine in a unit's properties; the bundled one where nothing speaks for another."""
    command = _command(properties.get("ExecStart", ""))
    for pattern, kind in KINDS:
        if re.search(pattern, command):
            variable = _variable(command)
            identifier = properties.get("SyslogIdentifier", "")
            file = _environment_file(properties.get("EnvironmentFiles", "")) if variable else None
            return Found(kind(variable or f"{kind.kind.upper()}_ARGS", identifier), file or NO_FILE)
    return Found(BUNDLED)


def _command(exec_start: str) -> str:
    """The argument list in `{ path=… ; argv[]=… ; ignore_errors=… }`, as the unit has it, variables unresolved."""
    found = re.search(r"argv\[\]=(.*?) ; ignore_errors=", exec_start)
    return found[1] if found else ""


def _variable(command: str) -> str | None:
    """The variable that becomes several words of the command line: `$NAME` alone, the last one there is."""
    found: list[str] = re.findall(r"(?:^|\s)\$([A-Za-z_]\w*)(?=\s|$)", command)
    return found[-1] if found else None


def _environment_file(value: str) -> str | None:
    """The last file of `/etc/a.env (ignore_errors=no)` lines: it is what systemd lets win."""
    found: list[str] = re.findall(r"(/\S+) \(ignore_errors=(?:no|yes)\)", value)
    return found[-1] if found else None
