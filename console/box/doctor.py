"""What would stop the engine from working on a box, each finding with its mend. Looking is apart from judging."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from console.box.as_root import AsRoot, Files, SudoRefused
from console.box.check import Check as Check
from console.box.check import Verdict
from console.box.connection import Connection
from console.box.doctor_link import LinkFindings, judge_link, look_at_link
from console.box.doctor_machine import judge_machine
from console.box.empty_log import EmptyLog, why_empty
from console.box.errors import BoxError, NoSuchFile, NotAllowed
from console.box.facts import BoxFacts
from console.box.interpreter import survey
from console.box.layout import IDENTIFIER, Layout
from console.box.model_check import ModelFolders, judge_model
from console.box.release import requirements, unmet
from console.box.services import ServiceManager
from console.box.values import ServiceState

HIDING = ("output goes elsewhere", "namespace", "journal stores nothing", "rate limit")
"""Causes of an empty log that no other check tells of."""


@dataclass(frozen=True)
class Findings:
    """All that was seen on the box. `survey` is agent/survey.py's object; `settings` the tables of engine.toml."""

    facts: BoxFacts
    link: LinkFindings
    layout: Layout
    service: ServiceState | str
    """A string is why the manager did not answer."""
    survey: Mapping[str, Any]
    settings: Mapping[str, Any] | str | NotAllowed | SudoRefused | None
    """None: no file; a string: why it cannot be read; an error: this login may not read it."""
    model: ModelFolders | None
    log: EmptyLog | None = None
    """Why the unit's log would be empty, whether it is or not; None where nothing hides it."""
    bundled: bool = True
    """The unit runs the engine that comes with the console."""


async def examine(connection: Connection, manager: ServiceManager) -> tuple[Check, ...]:
    """Look at the box and judge. Raises BoxError only where it cannot be looked at at all."""
    return judge(await look(connection, manager))


async def look(connection: Connection, manager: ServiceManager) -> Findings:
    """Everything the checks are made of; changes nothing on the box."""
    layout = manager.layout
    service: ServiceState | str
    try:
        service = await manager.state()
    except BoxError as error:
        service = str(error)
    files: Files = AsRoot(connection) if manager.needs_sudo else connection
    settings = await _settings(files, layout)
    server = settings.get("server", {}) if isinstance(settings, Mapping) else {}
    arguments = [
        "--packages",
        ",".join(requirements()),
        "--import-torch",
        "--disk",
        "~",
        "--port",
        str(server.get("port", 8765)),
    ]
    if await _is_there(connection, layout.python):
        arguments += ["--python", layout.python]
    model = settings.get("model", {}) if isinstance(settings, Mapping) else {}
    installed = isinstance(service, ServiceState) and service.state != "not-installed"
    return Findings(
        facts=connection.facts,
        link=await look_at_link(connection),
        layout=layout,
        service=service,
        survey=await survey(connection, *arguments),
        settings=settings,
        model=await _model_folders(files, model) if model.get("path") else None,
        log=await why_empty(connection, manager) if installed else None,
        bundled=manager.identifier == IDENTIFIER,
    )


async def _settings(files: Files, layout: Layout) -> Mapping[str, Any] | str | NotAllowed | SudoRefused | None:
    try:
        return tomllib.loads((await files.read(layout.settings)).decode())
    except NoSuchFile:
        return None
    except (NotAllowed, SudoRefused) as error:
        return error
    except ValueError as error:
        return str(error)


async def _is_there(files: Files, path: str) -> bool:
    """Whether this login finds it there."""
    try:
        return await files.exists(path)
    except (NotAllowed, SudoRefused):
        return False


async def _model_folders(files: Files, model: Mapping[str, Any]) -> ModelFolders:
    path, drafter = str(model["path"]), str(model.get("drafter", ""))
    index = await _json(files, f"{path}/model.safetensors.index.json")
    shards = sorted(set((index or {}).get("weight_map", {}).values())) or ["model.safetensors"]
    return ModelFolders(
        path=path,
        config=await _json(files, f"{path}/config.json"),
        missing_shards=tuple([shard for shard in shards if not await _is_there(files, f"{path}/{shard}")]),
        has_tokenizer=await _is_there(files, f"{path}/tokenizer.json"),
        drafter=drafter,
        drafter_config=await _json(files, f"{drafter}/config.json") if drafter else None,
        weight_bytes=await _bytes_of(files, [f"{path}/{shard}" for shard in shards]),
    )


async def _bytes_of(files: Files, paths: list[str]) -> int | None:
    """The files' sizes together; None when one of them is not there, or may not be looked at."""
    try:
        shown = await files.run(["stat", "--dereference", "--format=%s", "--", *paths])
    except SudoRefused:
        return None
    return sum(map(int, shown.stdout.split())) if shown.exit_status == 0 else None


async def _json(files: Files, path: str) -> dict[str, Any] | None:
    try:
        found = json.loads(await files.read(path))
    except (NoSuchFile, NotAllowed, SudoRefused, ValueError):
        return None
    return found if isinstance(found, dict) else None


# --- judging: functions of the findings


def judge(found: Findings) -> tuple[Check, ...]:
    """Every check, in the order in which one depends on the other."""
    return (
        *judge_link(found.link),
        *_manager(found),
        *_journal(found),
        *_log(found),
        *(_python(found) if found.bundled else ()),
        *_service(found),
        *(Check(*row) for row in (judge_model(found.model) if found.model else ())),
        *_port(found),
        *judge_machine(
            found.survey, weight_bytes=_weight_bytes(found), ours=_own_pids(found), root=found.facts.uid == 0
        ),
    )


def _manager(found: Findings) -> list[Check]:
    facts, scope = found.facts, found.layout.scope
    if scope == "supervisor":
        return [Check("service", "manager", "pass", "agent/supervise.py, for boxes without systemd")]
    if facts.systemd_version is None:
        return [Check("service", "manager", "fail", f"no systemd for a {scope} unit", "use --scope supervisor")]
    checks = [Check("service", "manager", "pass", f"systemd {facts.systemd_version}, {scope} unit")]
    if scope == "user":
        enable = f"loginctl enable-linger {facts.user}"
        itself = (("loginctl", "enable-linger", facts.user),)
        if not facts.has_runtime_dir:
            checks.append(Check("service", "user manager", "fail", f"there is no {facts.runtime_dir}", enable, itself))
        lingers = bool(found.survey["linger"])
        text = "the service outlives the login" if lingers else "the service would end with the last login"
        checks.append(
            Check("service", "linger", "pass", text)
            if lingers
            else Check("service", "linger", "fail", text, enable, itself)
        )
    return checks


def _journal(found: Findings) -> list[Check]:
    if found.layout.scope == "supervisor":
        return [Check("journal", "access", "pass", "kept by the supervisor")]
    journal, user = found.survey["journal"], found.facts.user
    own = found.layout.scope == "user"
    readable = own or journal["readable"]
    join = None if readable else f"sudo usermod -aG systemd-journal {user}, then log in again"
    checks = [
        Check(
            "journal",
            "access",
            "pass" if readable else "fail",
            f"{user} {'can' if readable else 'cannot'} read it",
            join,
        )
    ]
    if not journal["persistent"]:
        keep = "sudo mkdir -p /var/log/journal && sudo systemctl restart systemd-journald"
        what = "a user's own journal needs it on disk" if own and not journal["readable"] else "a reboot loses it"
        grave: Verdict = "fail" if own and not journal["readable"] else "warn"
        commands = (("mkdir", "-p", "/var/log/journal"), ("systemctl", "restart", "systemd-journald"))
        checks.append(Check("journal", "storage", grave, what, keep, commands if user == "root" else ()))
    return checks


def _log(found: Findings) -> list[Check]:
    """What hides the unit's lines from the console, although the unit writes them."""
    if found.log is None or found.log.cause not in HIDING:
        return []
    grave: Verdict = "warn" if found.log.cause == "rate limit" else "fail"
    return [Check("journal", found.log.cause, grave, found.log.text, found.log.mend)]


def _weight_bytes(found: Findings) -> int | None:
    return found.model.loaded_bytes if found.model else None


def _own_pids(found: Findings) -> tuple[int, ...]:
    pid = found.service.main_pid if isinstance(found.service, ServiceState) else None
    return (pid,) if pid is not None else ()


def _python(found: Findings) -> list[Check]:
    usable = [one for one in found.survey["interpreters"] if "version" in one.get("torch", {})]
    if not usable:
        seen = [
            f"{one['path']}: {one.get('error') or one.get('torch', {}).get('error', 'no torch')}"
            for one in found.survey["interpreters"]
        ]
        mend = "install torch for a Python of 3.11 or newer, or name one: ddtree install --python PATH"
        return [Check("python", "torch", "fail", "; ".join(seen) or "no Python of 3.11 or newer", mend)]
    one = usable[0]
    torch = one["torch"]
    checks = [
        Check(
            "python",
            "torch",
            "pass",
            f"{one['path']}: torch {torch['version']}, CUDA {torch['cuda'] or 'not built in'}",
        )
    ]
    if found.survey["gpus"] and not torch["gpus"]:
        checks.append(
            Check(
                "python", "CUDA", "fail", "there are GPUs, and torch sees none", "install a torch built for this driver"
            )
        )
    missing = unmet(requirements(), one["packages"])
    if missing:
        mend = f"{one['path']} -m pip install {' '.join(sorted(missing))}, or let `ddtree install` fetch them"
        checks.append(Check("python", "packages", "warn", f"lacks {', '.join(sorted(missing))}", mend))
    return checks


def _service(found: Findings) -> list[Check]:
    if isinstance(found.service, str):
        return [Check("service", "state", "fail", found.service, "see the checks above")]
    now = found.service
    if now.state == "not-installed":
        return [Check("service", "state", "warn", "the engine is not installed", "ddtree install HOST")]
    checks: list[Check] = []
    if isinstance(found.settings, str):
        checks.append(
            Check("service", "settings", "fail", f"{found.layout.settings}: {found.settings}", "mend the file's TOML")
        )
    elif isinstance(found.settings, NotAllowed | SudoRefused):
        change = found.settings.mend or f"log in as the owner of {found.layout.settings}"
        checks.append(Check("service", "settings", "warn", f"{found.layout.settings}: {found.settings.what}", change))
    elif found.settings is None and found.bundled:
        checks.append(
            Check("service", "settings", "fail", f"there is no {found.layout.settings}", "ddtree install HOST")
        )
    mends = {
        "failed": "ddtree logs HOST tells why, then ddtree start HOST",
        "start-limit-hit": "ddtree logs HOST tells why, then ddtree start HOST",
        "start-timeout": "ddtree logs HOST tells in which phase of loading",
        "stuck-in-stop": "the process does not react to SIGKILL: reboot the box",
        "restarting": "it fails again and again: ddtree logs HOST tells why",
    }
    mend = mends.get(now.state)
    checks.append(Check("service", "state", "fail" if mend else "pass", now.state, mend))
    return checks + [
        Check(
            "service",
            "other engine",
            "warn",
            f"process {one['pid']} is not this unit's and holds {_held(one)} of the same machine: {one['command']}",
            f"if nobody needs it: kill {one['pid']}",
        )
        for one in found.survey["engines"]
        if one["pid"] != now.main_pid
    ]


def _held(process: Mapping[str, Any]) -> str:
    """`1.2 GB`, and what it holds of the GPUs' memory."""
    held = f"{process.get('memory_bytes', 0) / 1e9:.1f} GB"
    return held + (f" and {process['gpu_bytes'] / 1e9:.1f} GB of GPU memory" if process.get("gpu_bytes") else "")


def _port(found: Findings) -> list[Check]:
    port, owner = found.survey["port"]["number"], found.survey["port"]["owner"]
    if owner is None:
        return [Check("port", str(port), "pass", "free")]
    ours = found.service.main_pid if isinstance(found.service, ServiceState) else None
    if ours is not None and owner["pid"] in (None, ours):
        return [Check("port", str(port), "pass", "the engine listens")]
    who = "a process of another user" if owner["pid"] is None else f"process {owner['pid']}: {owner['command']}"
    return [Check("port", str(port), "fail", f"held by {who}", "stop it, or ddtree restart HOST --set port=N")]
