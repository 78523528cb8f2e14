"""The engine's unit, as text: for systemd a unit file, for the supervisor its service.json. One set of limits for both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from console.box.layout import IDENTIFIER, Layout

START_TIMEOUT_S = 600  # of one loading phase: the engine extends it with each phase it begins
STOP_TIMEOUT_S = 60  # to let running requests end
WATCHDOG_S = 120  # the decode loop feeds it; a long prefill chunk on a slow processor must fit
RESTART_DELAY_S = 2
RESTART_LIMIT = 5
RESTART_WINDOW_S = 300
FINAL_EXIT_STATUSES = (2, 78)  # bad settings do not get better by trying again


def systemctl(layout: Layout) -> list[str]:
    """The command for the manager of a user or system installation."""
    return ["systemctl", "--user"] if layout.scope == "user" else ["systemctl"]


def command(layout: Layout) -> list[str]:
    """The engine's command line; the paths lead through `current`, so that an upgrade needs no new unit."""
    return [layout.python, "-m", "engine", "serve", "--config", layout.settings]


def undo_command(layout: Layout) -> list[str]:
    """What runs before each start: a settings change that a power cut has left half-way is taken back. Its failure stops
    nothing, and for the system unit it runs outside the sandbox, in which the settings are read-only."""
    return [layout.python, "-S", layout.agent("apply.py"), "--state", layout.state, "undo"]


def _words(argv: Sequence[str]) -> str:
    return " ".join(quoted(word.replace("$", "$$")) for word in argv)


def environment(layout: Layout) -> dict[str, str]:
    """What the engine's process gets besides what the manager gives."""
    own = {"PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
    if layout.scope == "system":  # everything else is read-only to it
        own.update(HOME=layout.state, XDG_CACHE_HOME=CACHE_PARENT)
    return own


CACHE_PARENT = "/var/cache"


def unit_text(layout: Layout) -> str:
    """The systemd unit file of a user or system installation."""
    lines = [
        "[Unit]",
        "Description=DDTree inference engine",
        *(["After=network.target nvidia-persistenced.service"] if layout.scope == "system" else []),
        f"StartLimitIntervalSec={RESTART_WINDOW_S}",
        f"StartLimitBurst={RESTART_LIMIT}",
        "",
        "[Service]",
        "Type=notify",
        "NotifyAccess=main",
        f"ExecStartPre={'-+' if layout.scope == 'system' else '-'}{_words(undo_command(layout))}",
        f"ExecStart={_words(command(layout))}",
        f"WorkingDirectory={escaped(layout.state)}",
        *(f"Environment={quoted(f'{name}={value}')}" for name, value in environment(layout).items()),
        f"SyslogIdentifier={IDENTIFIER}",
        f"TimeoutStartSec={START_TIMEOUT_S}",
        f"TimeoutStopSec={STOP_TIMEOUT_S}",
        f"WatchdogSec={WATCHDOG_S}",
        "Restart=on-failure",
        f"RestartSec={RESTART_DELAY_S}",
        f"RestartPreventExitStatus={' '.join(map(str, FINAL_EXIT_STATUSES))}",
        "KillMode=control-group",
        "OOMPolicy=stop",
        "UMask=0077",
        *(SYSTEM_SANDBOX if layout.scope == "system" else USER_SANDBOX),
        "",
        "[Install]",
        f"WantedBy={'multi-user.target' if layout.scope == 'system' else 'default.target'}",
    ]
    return "\n".join(lines) + "\n"


# What a user's manager can set up without privileges. No MemoryDenyWriteExecute: kernels are compiled at run time.
USER_SANDBOX = (
    "NoNewPrivileges=yes",
    "LockPersonality=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "SystemCallArchitectures=native",
)
# `systemd-analyze security` must stay at or below 4.0. Models may lie in anyone's home, so homes stay readable.
SYSTEM_SANDBOX = (
    *USER_SANDBOX,
    "StateDirectory=ddtree",
    "StateDirectoryMode=0700",
    "CacheDirectory=ddtree",
    "CacheDirectoryMode=0700",
    "CapabilityBoundingSet=CAP_DAC_READ_SEARCH",
    "DevicePolicy=closed",
    "DeviceAllow=char-nvidia* rw",
    "ProtectSystem=strict",
    "ProtectHome=read-only",
    "ProtectClock=yes",
    "ProtectControlGroups=yes",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "ProtectProc=invisible",
    "PrivateTmp=yes",
    "PrivateMounts=yes",
    "RemoveIPC=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "RestrictNamespaces=yes",
    "SystemCallFilter=@system-service",
    "SystemCallErrorNumber=EPERM",
)


def service_json(layout: Layout, extra: Mapping[str, str], bound_to: int | None) -> str:
    """The supervisor's description of the service. `extra` is added to the environment; with `bound_to`, the service
    ends when that process does."""
    spec: dict[str, Any] = {
        "name": layout.unit,
        "argv": command(layout),
        "cwd": layout.state,
        "env": {**environment(layout), **extra},
        "identifier": IDENTIFIER,
        "before_start": undo_command(layout),
        "start_timeout_s": START_TIMEOUT_S,
        "stop_timeout_s": STOP_TIMEOUT_S,
        "watchdog_s": WATCHDOG_S,
        "restart_delay_s": RESTART_DELAY_S,
        "restart_limit": RESTART_LIMIT,
        "restart_window_s": RESTART_WINDOW_S,
        "no_restart_on": FINAL_EXIT_STATUSES,
        "bound_to": bound_to,
    }
    return json.dumps(spec, indent=2) + "\n"


def escaped(text: str) -> str:
    """`text` as a unit file takes it literally: `%` begins a specifier there."""
    return text.replace("%", "%%")


def quoted(text: str) -> str:
    """One word of a command line or an assignment in a unit file."""
    plain = escaped(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{plain}"' if any(character in text for character in " \t\"'\\;") or not text else plain
