"""Put a release of the engine on a box, with its unit and first settings.

A release is complete in its own folder before `current` is swapped to it by one rename, so that an interrupted install
leaves the old release working. What is there already is left alone: a second install of the same release changes
nothing and says so.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from console.box.connection import Connection
from console.box.errors import NoSuchFile
from console.box.interpreter import choose_interpreter
from console.box.layout import Layout
from console.box.release import COMPLETE, SHIPPED_DRAFTER, release_files, release_name, requirements, version
from console.box.release_build import build_release
from console.box.services import ServiceManager
from console.box.steps import InstallError, Progress, last_line, make_folders, must, must_be_ours, sweep_parts
from console.box.unit_file import CACHE_PARENT, service_json, systemctl, unit_text
from console.errors import UsageError

HIDDEN_FROM_UNIT = ("/tmp/", "/var/tmp/")  # PrivateTmp
FETCH_S = 900.0  # the bundled model is a download of 93 MB


@dataclass(frozen=True)
class InstallRequest:
    """What to install.

    `compose` makes the first settings file from the model and drafter folders on the box ("" for no drafter); it is
    called only where there are no settings yet. `environment` is added to the engine's, `bound_to` is a process with
    whose end the service ends (both for the supervisor only).
    """

    compose: Callable[[str, str], str]
    who: str
    model: str | None = None
    drafter: str | None = None
    python: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    bound_to: int | None = None


@dataclass(frozen=True)
class Places:
    """Where the steps of one install work."""

    connection: Connection
    manager: ServiceManager
    layout: Layout


async def install(connection: Connection, manager: ServiceManager, request: InstallRequest) -> AsyncIterator[Progress]:
    """Install step by step; each Progress is a step that is done.

    Raises:
        UsageError: a model or drafter folder that is none.
        InstallError: something the box lacks; exit 4, naming it.
    """
    at = Places(connection, manager, manager.layout)
    await _check_scope(at)
    await must_be_ours(manager)
    for folder in (request.model, request.drafter):
        if folder is not None:
            await _check_model_folder(connection, folder)
            _check_visible(at, folder)
    interpreter = await choose_interpreter(connection, request.python, tuple(requirements()))
    _check_visible(at, interpreter.path)
    await sweep_parts(connection, at.layout)
    yield Progress("python", f"{interpreter.path} (Python {interpreter.version}, torch {interpreter.torch})", False)
    files = release_files()
    name = release_name(version(), files, interpreter.identity)
    release = f"{at.layout.releases}/{name}"
    if await connection.exists(f"{release}/{COMPLETE}"):
        yield Progress("release", f"{name} is there already", False)
    else:
        await build_release(connection, at.layout, release, files, interpreter)
        yield Progress("release", f"{name}: {len(files)} files, a virtual environment over {interpreter.path}", True)
    async for step in _first_settings(at, request, release):
        yield step
    changed = await _write_unit(at, request)
    yield Progress("unit", f"{manager.unit} ({at.layout.scope})" + ("" if changed else " is as it should be"), changed)
    changed = await _swap_current(at, name)
    yield Progress("current", f"{at.layout.current} -> {name}" + ("" if changed else " already"), changed)


# --- before anything is written


async def _check_scope(at: Places) -> None:
    facts = at.connection.facts
    if at.layout.scope == "system" and facts.uid != 0:
        raise InstallError(
            f"{facts.user} is not root, and a system install writes to /etc and /opt",
            where=at.connection.target.name,
            mend="log in as root, or use --scope user",
        )
    if at.layout.scope == "user" and not await at.connection.exists(f"/var/lib/systemd/linger/{facts.user}"):
        raise InstallError(
            f"lingering is off for {facts.user}: a user unit would end with the last login",
            where=at.connection.target.name,
            mend=f"run there: loginctl enable-linger {facts.user}",
        )


async def _check_model_folder(connection: Connection, folder: str) -> None:
    if not folder.startswith("/"):
        raise UsageError("is not an absolute path on the box", where=folder)
    if not await connection.exists(f"{folder}/config.json"):
        raise UsageError("holds no config.json", where=folder, mend="name a model folder on the box")


def _check_visible(at: Places, path: str) -> None:
    if at.layout.scope == "system" and path.startswith(HIDDEN_FROM_UNIT):
        raise UsageError(
            "lies in a temporary folder, and a system unit has one of its own",
            where=path,
            mend="put it elsewhere, for example under /srv or /opt, or use --scope user",
        )


# --- settings


async def _first_settings(at: Places, request: InstallRequest, release: str) -> AsyncIterator[Progress]:
    """Generation 0, where there are no settings yet; an upgrade keeps those that are there."""
    connection, layout = at.connection, at.layout
    if await connection.exists(layout.settings):
        yield Progress("settings", f"{layout.settings} is kept; `ddtree restart --set` changes it", False)
        return
    model = request.model
    if model is None:
        model = await _fetch_bundled_model(at, request, release)
        yield Progress("model", model, True)
    drafter = request.drafter or ""
    if request.model is None and not drafter and await connection.exists(f"{release}/{SHIPPED_DRAFTER}/config.json"):
        drafter = f"{layout.current}/{SHIPPED_DRAFTER}"
    text = request.compose(model, drafter).encode()
    await make_folders(connection, layout.config, layout.generations, layout.state, layout.runs)
    await connection.upload(text, f"{layout.generations}/0000.toml")
    line = {
        "event": "installed",
        "generation": 0,
        "who": request.who,
        "file": f"{layout.generations}/0000.toml",
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    await _append(connection, json.dumps(line).encode() + b"\n", f"{layout.state}/audit.jsonl")
    await connection.upload(text, layout.settings)
    yield Progress("settings", f"{layout.settings}, generation 0", True)


async def _append(connection: Connection, line: bytes, path: str) -> None:
    """Add a line to a file that is never rewritten: an earlier installation's record may be in it."""
    done = await connection.run(["tee", "--append", "--", path], input=line)
    if done.exit_status != 0:
        raise InstallError(f"could not write {path}: {last_line(done.stderr)}", where=connection.target.name)
    await must(connection, ["chmod", "600", "--", path], f"close {path} to others")


async def _fetch_bundled_model(at: Places, request: InstallRequest, release: str) -> str:
    """The bundled model's folder on the box, fetched there if need be: the engine's own command prints it."""
    places = dict(request.environment)
    if at.layout.scope == "system":
        places["XDG_CACHE_HOME"] = CACHE_PARENT
    argv = ["env", *(f"{name}={value}" for name, value in places.items())]
    argv += [f"{release}/venv/bin/python", "-m", "engine", "fetch-model", "smollm2"]
    done = await at.connection.run(argv, timeout_s=FETCH_S)
    folder = last_line(done.stdout)
    if done.exit_status != 0 or not folder.startswith("/"):
        raise InstallError(
            f"the bundled model could not be fetched there: {last_line(done.stderr) or 'no reason given'}",
            where=at.connection.target.name,
            mend="name a model folder on the box with --model",
        )
    return folder


# --- unit and switch


async def _write_unit(at: Places, request: InstallRequest) -> bool:
    """The unit file or service.json; true when it was not there like that before."""
    layout = at.layout
    if layout.scope == "supervisor":
        await make_folders(at.connection, layout.state, posixpath.dirname(layout.supervised), layout.supervised)
        return await _write(
            at.connection,
            f"{layout.supervised}/service.json",
            service_json(layout, request.environment, request.bound_to),
        )
    changed = await _write(at.connection, layout.unit_file, unit_text(layout))
    if changed:
        await must(at.connection, [*systemctl(layout), "daemon-reload"], "reload the service manager")
    enabled = await at.connection.run([*systemctl(layout), "is-enabled", "--quiet", layout.unit])
    if enabled.exit_status != 0:
        await must(at.connection, [*systemctl(layout), "--quiet", "enable", layout.unit], "enable the unit")
        changed = True
    return changed


async def _write(connection: Connection, path: str, text: str) -> bool:
    try:
        if await connection.read(path) == text.encode():
            return False
    except NoSuchFile:
        await must(connection, ["mkdir", "-p", "--", posixpath.dirname(path)], f"make the folder of {path}")
    await connection.upload(text.encode(), path)
    return True


async def _swap_current(at: Places, name: str) -> bool:
    """Point `current` at the release by one rename, and clear away releases before the previous one."""
    connection, layout = at.connection, at.layout
    before = await connection.run(["readlink", "--", layout.current])
    previous = posixpath.basename(before.stdout.decode().strip())
    if previous == name:
        return False
    part = f"{layout.current}.part"
    await must(connection, ["ln", "-sfn", "--", f"releases/{name}", part], "make the link")
    await must(connection, ["mv", "-T", "--", part, layout.current], "swap the release")
    listed = await must(connection, ["ls", "-1", "--", layout.releases], "list the releases")
    old = [one for one in listed.decode().split() if one not in (name, previous)]
    if old:
        await must(
            connection, ["rm", "-rf", "--", *(f"{layout.releases}/{one}" for one in old)], "clear away old releases"
        )
    return True
