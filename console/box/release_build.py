"""Make a release on the box: its files, a virtual environment over an interpreter that has torch, what that one lacks."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping

from console.box.connection import Connection
from console.box.interpreter import Interpreter
from console.box.layout import Layout
from console.box.release import COMPLETE, requirements, unmet
from console.box.steps import InstallError, last_line, make_folders, must

PIP_S = 900.0


async def build_release(
    connection: Connection, layout: Layout, release: str, files: Mapping[str, bytes], interpreter: Interpreter
) -> None:
    """Build in the folder `release`; the marker COMPLETE comes last, so that a torn release is made anew.

    The virtual environment reaches torch and all else of the interpreter through a .pth, behind the release's own code.
    Raises InstallError for what the box lacks.
    """
    await must(connection, ["rm", "-rf", "--", release], "clear away an interrupted install")
    await make_folders(connection, layout.share, layout.releases)
    programs = frozenset(name for name in files if name.startswith("agent/"))
    await connection.upload_tree(files, release, executable=programs)
    venv = f"{release}/venv"
    make = [interpreter.path, "-m", "venv", "--without-pip", venv]
    await must(connection, make, "make a virtual environment", mend="on Debian: apt install python3-venv")
    folders = "".join(f"{folder}\n" for folder in (f"{release}/app", *interpreter.folders))
    await connection.upload(folders.encode(), f"{venv}/lib/python{interpreter.minor}/site-packages/ddtree.pth")
    missing = unmet(requirements(), interpreter.packages)
    if missing:
        await _add_packages(connection, interpreter, f"{venv}/bin/python", missing)
    if layout.scope == "system":  # the engine cannot write there, and would compile itself at every start
        compile_all = [f"{venv}/bin/python", "-m", "compileall", "-q", f"{release}/app"]
        await must(connection, compile_all, "compile the source")
    card = {"release": posixpath.basename(release), "python": interpreter.path, "added": sorted(missing.values())}
    await connection.upload(json.dumps(card, indent=2).encode() + b"\n", f"{release}/{COMPLETE}")


async def _add_packages(
    connection: Connection, interpreter: Interpreter, python: str, missing: Mapping[str, str]
) -> None:
    lacks = f"{interpreter.path} lacks {', '.join(sorted(missing.values()))}"
    where, mend = (
        connection.target.name,
        f"install them there: {interpreter.path} -m pip install {' '.join(sorted(missing))}",
    )
    if not interpreter.has_pip:
        raise InstallError(f"{lacks}, and pip to fetch them", where=where, mend=mend)
    quietly = ["--quiet", "--no-input", "--disable-pip-version-check", "--retries", "1", "--timeout", "15"]
    argv = [interpreter.path, "-m", "pip", "--python", python, "install", *quietly, *sorted(missing.values())]
    done = await connection.run(argv, timeout_s=PIP_S)
    if done.exit_status != 0:
        said = last_line(done.stderr) or "no reason given"
        raise InstallError(f"{lacks}, and pip could not fetch them: {said}", where=where, mend=mend)
