"""Fetch one wheel by pip into the user's cache, once, and never trust a byte that does not match its pinned hash."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.errors import EngineError


@dataclass(frozen=True)
class PinnedWheel:
    """A wheel on the package index: exact version, file name, size in bytes and SHA-256 in hex."""

    package: str
    version: str
    file_name: str
    size_bytes: int
    sha256: str


class DownloadError(EngineError):
    """The index could not be reached or did not give the pinned file: nothing the user typed was wrong."""


def cache_root() -> Path:
    """The product's cache folder: ${XDG_CACHE_HOME:-~/.cache}/ddtree; a path that is not absolute is passed over."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "ddtree"


@contextmanager
def scratch_in(folder: Path) -> Iterator[Path]:
    """A fresh folder inside `folder` for things to be renamed into place when they are whole.

    One process at a time per folder, others wait; what a killed one left behind is swept away first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".ddtree-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in folder.glob(".ddtree-part-*"):
            shutil.rmtree(leftover)
        with tempfile.TemporaryDirectory(prefix=".ddtree-part-", dir=folder) as scratch:
            yield Path(scratch)


def fetch_wheel(wheel: PinnedWheel, folder: Path, say: Callable[[str], None]) -> Path:
    """The wheel's path under `folder`, downloaded unless a good copy is there already; `say` hears what takes time.

    A download goes to a scratch folder and is renamed when its hash is right, so an interrupted one leaves nothing that could be
    taken for the file. Raises DownloadError where the index cannot be reached or the hash differs.
    """
    kept = folder / wheel.file_name
    with scratch_in(folder) as scratch:
        if kept.exists():
            if sha256_of(kept) == wheel.sha256:
                return kept
            say(f"{kept}: damaged copy, fetching it again")
        fresh = _pip_download(wheel, scratch, say)
        found = sha256_of(fresh)
        if found != wheel.sha256:
            raise DownloadError(
                f"{wheel.file_name} has sha256 {found[:16]}…, expected {wheel.sha256[:16]}…",
                where=f"package index, {wheel.package}=={wheel.version}",
                mend="the index serves another file than the one this release was tested with; check its configuration",
            )
        fresh.replace(kept)
    return kept


def _pip_download(wheel: PinnedWheel, scratch: Path, say: Callable[[str], None]) -> Path:
    requirement = f"{wheel.package}=={wheel.version}"
    on_terminal = sys.stderr.isatty()
    argv = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    argv += ["--disable-pip-version-check", "--no-input", "--retries=2", "--dest", str(scratch)]
    argv += [f"--progress-bar={'on' if on_terminal else 'off'}", requirement]
    say(f"downloading {requirement} ({wheel.size_bytes / 1e6:.0f} MB, once)")
    # On a terminal pip draws its own bar on the stdout it is given; its complaints are kept apart to make one line of them.
    finished = subprocess.run(
        argv,
        stdout=sys.stderr if on_terminal else subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={
            **os.environ,
            "PIP_RESUME_RETRIES": "5",
        },  # a broken connection goes on where it broke; pip before 25.1 ignores it
        text=True,
        check=False,
    )
    fresh = scratch / wheel.file_name
    if finished.returncode != 0 or not fresh.exists():
        complaints = [line for line in finished.stderr.splitlines() if line.startswith("ERROR:")]
        reason = complaints[-1].removeprefix("ERROR: ") if complaints else finished.stderr.strip()[-200:]
        raise DownloadError(
            f"cannot download {requirement} ({reason or 'pip gave no reason'})",
            where="package index",
            mend=f"connect this machine to a package index, or put {wheel.file_name} into {scratch.parent}",
        )
    return fresh


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
