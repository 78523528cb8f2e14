"""Why a unit's log is empty, with the mend. Looking is apart from judging."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from console.box.journal import SUPPRESSED_ID
from console.box.layout import layout_for
from console.box.service_properties import parse_show
from console.box.target import Scope

if TYPE_CHECKING:
    from console.box.connection import Connection
    from console.box.services import ServiceManager

READERS = ("systemd-journal", "adm", "wheel")  # groups that may read every journal, as systemd ships it
UNIT_PROPERTIES = ("LoadState", "InvocationID", "StandardOutput", "LogNamespace", "LogLevelMax")

Cause = Literal[
    "not installed", "wrong scope", "output goes elsewhere", "namespace", "not in the group", "no persistent journal",
    "journal stores nothing", "rate limit", "never started", "nothing written",
]  # fmt: skip


@dataclass(frozen=True)
class EmptyLog:
    """The reason for an empty log, in a sentence, and what to do about it; `mend` is a command where there is one."""

    cause: Cause
    text: str
    mend: str

    def to_json(self) -> dict[str, Any]:
        """The object `ddtree logs --json` says it with."""
        return {"cause": self.cause, "text": self.text, "mend": self.mend}


@dataclass(frozen=True)
class LogFindings:
    """What was seen of one unit and of the journal it should be in."""

    host: str
    unit: str
    scope: Scope
    user: str
    uid: int
    groups: tuple[str, ...]
    properties: Mapping[str, str]
    """UNIT_PROPERTIES of the unit in `scope`; LoadState "not-found" where it is not there."""
    elsewhere: Scope | None = None
    """Another scope that has a unit of that name."""
    persistent: bool = True
    storage: str = "auto"
    """journald's Storage=."""
    suppressed: str | None = None
    """journald's latest word on lines that it dropped of this unit."""

    @property
    def reads_all(self) -> bool:
        """The login may read the system's journal."""
        return self.uid == 0 or any(group in READERS for group in self.groups)


async def why_empty(connection: Connection, manager: ServiceManager) -> EmptyLog:
    """Look at the unit, the journal and the rights of the login. Raises LinkError."""
    return judge_empty(await look_at_log(connection, manager))


async def look_at_log(connection: Connection, manager: ServiceManager) -> LogFindings:
    """What `judge_empty` judges; changes nothing on the box."""
    facts, scope, unit = connection.facts, manager.scope, manager.unit
    groups = (await connection.run(["id", "-Gn"])).stdout.decode("utf-8", "replace").split()
    properties = await _properties(connection, manager, scope)
    others: tuple[Scope, ...] = ("system", "user") if facts.systemd_version is not None else ()
    elsewhere = None
    if properties.get("LoadState") != "loaded":
        for other in others:
            if other != scope and (await _properties(connection, manager, other)).get("LoadState") == "loaded":
                elsewhere = other
    if scope == "supervisor":
        return LogFindings(
            connection.target.name, unit, scope, facts.user, facts.uid, tuple(groups), properties, elsewhere
        )
    config = await connection.run(["systemd-analyze", "cat-config", "systemd/journald.conf"])
    return LogFindings(
        host=connection.target.name,
        unit=unit,
        scope=scope,
        user=facts.user,
        uid=facts.uid,
        groups=tuple(groups),
        properties=properties,
        elsewhere=elsewhere,
        persistent=await connection.exists("/var/log/journal"),
        storage=_storage(config.stdout.decode("utf-8", "replace")),
        suppressed=await _suppressed(connection, manager),
    )


async def _properties(connection: Connection, manager: ServiceManager, scope: Scope) -> Mapping[str, str]:
    if scope == "supervisor":
        layout = layout_for(scope, connection.home, manager.unit)
        there = await connection.exists(f"{layout.supervised}/service.json")
        shown = await connection.run(manager.state_argv()) if there and manager.scope == scope else None
        return parse_show(shown.stdout.decode("utf-8", "replace")) if shown else {"LoadState": "not-found"}
    user = ["--user"] if scope == "user" else []
    shown = await connection.run(["systemctl", *user, "show", manager.unit, f"--property={','.join(UNIT_PROPERTIES)}"])
    return parse_show(shown.stdout.decode("utf-8", "replace")) or {"LoadState": "not-found"}


def _storage(config: str) -> str:
    """The last Storage= of journald's configuration, drop-ins included, as `systemd-analyze cat-config` prints it."""
    found: list[str] = re.findall(r"^\s*Storage\s*=\s*(\w+)", config, re.MULTILINE)
    return found[-1].lower() if found else "auto"


async def _suppressed(connection: Connection, manager: ServiceManager) -> str | None:
    argv = ["journalctl", "--quiet", "--output=json", "--lines=20", f"MESSAGE_ID={SUPPRESSED_ID}", "_UID=0"]
    shown = await connection.run(argv)
    own = (manager.unit, f"user@{connection.uid}.service") if manager.scope == "user" else (manager.unit,)
    for line in reversed(shown.stdout.splitlines()):
        try:
            message = json.loads(line).get("MESSAGE")
        except ValueError:
            continue  # journalctl was cut short in its last line
        if isinstance(message, str) and any(name in message for name in own):
            return message
    return None


def judge_empty(found: LogFindings) -> EmptyLog:
    """The first reason that holds, from what hides every line to what hides some."""
    return _of_unit(found) or _of_journal(found) or _of_run(found)


def _of_unit(found: LogFindings) -> EmptyLog | None:
    if found.properties.get("LoadState") != "loaded":
        if found.elsewhere is not None:
            return EmptyLog(
                "wrong scope",
                f"{found.unit} is no {found.scope} unit here, but a {found.elsewhere} unit",
                f'set scope = "{found.elsewhere}" for {found.host} in hosts.toml',
            )
        return EmptyLog("not installed", f"there is no {found.scope} unit {found.unit}", f"ddtree install {found.host}")
    output = found.properties.get("StandardOutput", "journal")
    if output not in ("", "journal", "journal+console", "kmsg", "kmsg+console", "inherit"):
        return EmptyLog(
            "output goes elsewhere",
            f"StandardOutput={output} keeps what {found.unit} says out of the journal",
            f"remove StandardOutput= from the unit: {_edit(found)}",
        )
    space = found.properties.get("LogNamespace", "")
    if space:
        return EmptyLog(
            "namespace",
            f"{found.unit} logs into the journal namespace {space}, which plain journalctl does not show",
            f"journalctl --namespace={space} shows it; remove LogNamespace= from the unit: {_edit(found)}",
        )
    return None


def _edit(found: LogFindings) -> str:
    return f"systemctl {'--user ' if found.scope == 'user' else ''}edit --full {found.unit}"


def _of_journal(found: LogFindings) -> EmptyLog | None:
    if found.scope == "supervisor":
        return None
    if found.storage == "none":
        return EmptyLog(
            "journal stores nothing",
            "journald is set to Storage=none and keeps nothing at all",
            "set Storage=persistent in /etc/systemd/journald.conf, then: sudo systemctl restart systemd-journald",
        )
    join = f"sudo usermod -aG systemd-journal {found.user}, then log in again"
    if not found.reads_all and found.scope == "system":
        return EmptyLog(
            "not in the group", f"{found.user} may not read the system's journal: in none of {', '.join(READERS)}", join
        )
    if not found.reads_all and (not found.persistent or found.storage == "volatile"):
        keep = "sudo mkdir -p /var/log/journal && sudo systemctl restart systemd-journald"
        if found.persistent:
            keep = "set Storage=persistent in /etc/systemd/journald.conf, then: sudo systemctl restart systemd-journald"
        return EmptyLog(
            "no persistent journal",
            f"the journal is not kept on disk, and then {found.user} has none of their own to read",
            f"{keep}; or {join}",
        )
    if found.suppressed is not None:
        where = f"LogRateLimitBurst= of {found.unit}" if found.scope == "system" else "RateLimitBurst= of journald"
        return EmptyLog("rate limit", f"journald drops lines: {found.suppressed}", f"raise {where}, or log less")
    return None


def _of_run(found: LogFindings) -> EmptyLog:
    if not found.properties.get("InvocationID"):
        return EmptyLog(
            "never started", f"{found.unit} was not started since the box came up", f"ddtree start {found.host}"
        )
    level = found.properties.get("LogLevelMax", "")
    if level and level.isdigit() and int(level) < 6:
        return EmptyLog(
            "nothing written",
            f"LogLevelMax={level} drops the engine's figures, which are of level 6",
            f"remove LogLevelMax= from the unit: {_edit(found)}",
        )
    return EmptyLog(
        "nothing written",
        f"{found.unit} was started and has not written a line that is still kept",
        "send it a request, or run a playbook: it writes a line for each second of decoding",
    )
