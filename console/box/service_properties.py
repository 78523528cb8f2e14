"""`systemctl show` properties -> ServiceState. The supervisor prints the same properties, so that this is the one reader."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from console.box.target import Scope
from console.box.values import ServiceName, ServiceState

PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "StatusText",
    "MainPID",
    "ExecMainCode",
    "ExecMainStatus",
    "NRestarts",
    "StartLimitBurst",
    "RestartPreventExitStatus",
    "InvocationID",
    "ActiveEnterTimestamp",
    "ActiveEnterTimestampMonotonic",
    "InactiveExitTimestampMonotonic",
    "StateChangeTimestamp",
    "MemoryCurrent",
    "TasksCurrent",
)
_UNSET = {"", "[not set]", str(2**64 - 1)}


def parse_show(text: str) -> dict[str, str]:
    """`Key=Value` lines as a mapping; values may hold `=`, and the order is the manager's own."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def service_state(properties: Mapping[str, str], *, unit: str, scope: Scope) -> ServiceState:
    """What the properties say of the unit, in the console's words."""
    name = _name(properties)
    up = properties.get("ActiveState") in ("active", "activating", "reloading")
    ended = _number(properties, "ExecMainCode")  # 0: no main process has ended in this run
    return ServiceState(
        state=name,
        unit=unit,
        scope=scope,
        since=_time(properties.get("ActiveEnterTimestamp" if name == "serving" else "StateChangeTimestamp", "")),
        invocation=properties.get("InvocationID") or None,
        status_text=(properties.get("StatusText") or None) if up else None,  # a dead unit keeps its last text
        result=properties.get("Result") or None,
        main_pid=_number(properties, "MainPID") or None,
        exit_status=_number(properties, "ExecMainStatus") if ended else None,
        restarts=_number(properties, "NRestarts"),
        memory_bytes=_number(properties, "MemoryCurrent"),
    )


def _name(properties: Mapping[str, str]) -> ServiceName:
    """The state. Never "stopped" or "serving" from a unit that is not loaded: systemd says Result=success of those."""
    if properties.get("LoadState") != "loaded":
        return "unknown" if not properties.get("LoadState") else "not-installed"
    active, sub, result = (properties.get(key, "") for key in ("ActiveState", "SubState", "Result"))
    if active in ("active", "reloading"):
        return "serving" if sub != "exited" else "stopped"
    if active == "activating":
        return "restarting" if sub.startswith("auto-restart") else "starting"
    if active == "deactivating":
        return "stuck-in-stop" if sub in ("stop-sigkill", "final-sigkill") else "stopping"
    if active == "inactive":
        return "stopped"
    if active != "failed":
        return "unknown"
    if result == "start-limit-hit" or _gave_up(properties):
        return "start-limit-hit"
    if result == "timeout":
        if (_number(properties, "TasksCurrent") or 0) > 0:
            return "stuck-in-stop"  # even SIGKILL did not end it: a process stuck in a driver
        entered, began = (_number(properties, f"{key}TimestampMonotonic") for key in ("ActiveEnter", "InactiveExit"))
        if entered is not None and began is not None and entered < began:
            return "start-timeout"
    return "failed"


def _gave_up(properties: Mapping[str, str]) -> bool:
    """Whether automatic restarts used up the start limit: systemd then leaves the last run's Result in place (252)."""
    burst, restarts = _number(properties, "StartLimitBurst"), _number(properties, "NRestarts")
    final = properties.get("RestartPreventExitStatus", "").split()
    return bool(burst and restarts and restarts >= burst) and properties.get("ExecMainStatus") not in final


def _number(properties: Mapping[str, str], key: str) -> int | None:
    text = properties.get(key, "")
    return None if text in _UNSET or not text.isdigit() else int(text)


def _time(text: str) -> str | None:
    """ISO 8601 in UTC from `@seconds` or from systemd's own form under TZ=UTC."""
    if text.startswith("@"):
        moment = datetime.fromtimestamp(float(text[1:]), UTC)
    elif text.endswith(" UTC"):
        moment = datetime.strptime(text, "%a %Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC)
    else:
        return None
    return moment.isoformat(timespec="seconds")
