"""Which Python of the box the engine shall use: the one named, else the first whose torch really imports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from console.box.connection import Connection
from console.box.errors import BoxError
from console.errors import ExitCode, UsageError

OLDEST = (3, 11)
SURVEY = Path(__file__).parents[1] / "agent" / "survey.py"
SURVEY_S = 180.0  # importing torch from a cold disk takes its time


class NoInterpreter(BoxError):
    """The box has no Python that could run the engine."""

    exit_code = ExitCode.PRECONDITION


@dataclass(frozen=True)
class Interpreter:
    """One Python on the box. `folders` is what it imports from beyond its standard library, in its own order."""

    path: str
    version: str
    torch: str
    folders: tuple[str, ...]
    packages: Mapping[str, str | None]
    has_pip: bool

    @property
    def minor(self) -> str:
        """`3.11`, as folders are named after it."""
        return ".".join(self.version.split(".")[:2])

    @property
    def identity(self) -> str:
        """What a release made over it depends on."""
        return "\0".join([self.path, self.version, *self.folders])


async def survey(connection: Connection, *arguments: str) -> dict[str, Any]:
    """What agent/survey.py finds on the box; it is sent through standard input, and nothing is left there."""
    done = await connection.run(["python3", "-", *arguments], input=SURVEY.read_bytes(), timeout_s=SURVEY_S)
    try:
        found: dict[str, Any] = json.loads(done.stdout.decode().strip().splitlines()[-1])
    except (ValueError, IndexError) as error:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise NoInterpreter(
            f"python3 did not run there: {said[-1] if said else 'no output'}",
            where=connection.target.name,
            mend="install python3",
        ) from error
    return found


async def choose_interpreter(connection: Connection, path: str | None, packages: Sequence[str]) -> Interpreter:
    """The interpreter at `path`, or the first found whose torch imports.

    Raises UsageError for a `path` that is none, NoInterpreter (exit 4) where none will do, naming those looked at.
    """
    names = ["--packages", ",".join(packages)]
    if path is not None:
        if not path.startswith("/"):
            raise UsageError("is not an absolute path on the box", where=path)
        return _named((await survey(connection, *names, "--python", path))["interpreters"][0])
    found = (await survey(connection, *names, "--import-torch"))["interpreters"]
    for one in found:
        if "version" in one.get("torch", {}):
            return _interpreter(one)
    looked = [f"{one['path']} ({one.get('torch', {}).get('error', 'no torch')})" for one in found]
    raise NoInterpreter(
        f"no Python {OLDEST[0]}.{OLDEST[1]} or newer with torch found; looked at {', '.join(looked) or 'none'}",
        where=connection.target.name,
        mend="install torch for one of them, or name one with --python",
    )


def _named(one: Mapping[str, Any]) -> Interpreter:
    """An interpreter the operator named: its torch is found by name only, the engine's start will import it."""
    if "error" in one:
        raise UsageError(f"is no Python: {one['error']}", where=str(one["path"]))
    if tuple(one["version"]) < OLDEST:
        shown = ".".join(map(str, one["version"]))
        raise UsageError(f"is Python {shown}; the engine needs {OLDEST[0]}.{OLDEST[1]}", where=str(one["path"]))
    if one["packages"].get("torch") is None:
        raise NoInterpreter(
            "has no torch", where=str(one["path"]), mend="install it there, or name another with --python"
        )
    return _interpreter(one)


def _interpreter(one: Mapping[str, Any]) -> Interpreter:
    return Interpreter(
        path=one["path"],
        version=".".join(map(str, one["version"])),
        torch=one["packages"]["torch"],
        folders=tuple(one["folders"]),
        packages=one["packages"],
        has_pip=one["pip"],
    )
