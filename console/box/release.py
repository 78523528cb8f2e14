"""What a release holds: the source of the box's side and the agent programs, named after their contents.

Their files are read, never imported: the console knows nothing of torch.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import Path

from console.errors import ExitCode, OperatorError

DISTRIBUTION = "ddtree-console"
PACKAGES = ("engine", "kernels", "playbooks")
AGENTS = ("apply.py", "runner.py", "supervise.py", "survey.py")
COMPLETE = "release.json"  # written last: a release without it was interrupted and counts for nothing
SHIPPED_DRAFTER = "app/engine/drafters/smollm2-135m-instruct"


class ReleaseError(OperatorError):
    """There is nothing to put on the box."""

    exit_code = ExitCode.PRECONDITION


def version() -> str:
    """The version of the console, which is the version of the engine it installs."""
    return importlib.metadata.version(DISTRIBUTION)


def release_files() -> dict[str, bytes]:
    """Relative path -> contents: `app/<package>/…` and `agent/<program>`. Raises ReleaseError for a package not found."""
    files: dict[str, bytes] = {}
    for package in PACKAGES:
        folder = _folder_of(package)
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(folder)
            if path.is_file() and "__pycache__" not in inside.parts and path.suffix != ".pyc":
                files[f"app/{package}/{inside.as_posix()}"] = path.read_bytes()
    # The engine tells its version as any distribution does, through this.
    files[f"app/ddtree_console-{version()}.dist-info/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {version()}\n".encode()
    )
    agents = Path(__file__).parents[1] / "agent"
    files.update({f"agent/{name}": (agents / name).read_bytes() for name in AGENTS if (agents / name).exists()})
    return files


def _folder_of(package: str) -> Path:
    """One distribution holds all packages, so they stand beside the console's own."""
    folder = Path(__file__).parents[2] / package
    if not folder.is_dir():
        raise ReleaseError(f"there is no {package} package beside the console", mend=f"pip install {DISTRIBUTION}")
    return folder


def release_name(version: str, files: Mapping[str, bytes], interpreter: str) -> str:
    """`<version>-<sha12>`, over every file and the interpreter the release is bound to: equal name, equal release."""
    digest = hashlib.sha256(interpreter.encode())
    for path in sorted(files):
        digest.update(f"\0{path}\0{len(files[path])}\0".encode())
        digest.update(files[path])
    return f"{version}-{digest.hexdigest()[:12]}"


def requirements() -> dict[str, str]:
    """What the engine needs: distribution name -> requirement as pip takes it (`torch` -> `torch>=2.11`)."""
    found: dict[str, str] = {}
    for line in importlib.metadata.requires(DISTRIBUTION) or []:
        requirement, _, marker = line.partition(";")
        if re.search(r"extra\s*==\s*['\"]engine['\"]", marker):
            name = re.match(r"[A-Za-z0-9._-]+", requirement)
            assert name is not None, line
            found[name[0]] = requirement.strip()
    return found


def unmet(needed: Mapping[str, str], installed: Mapping[str, str | None]) -> dict[str, str]:
    """Those of `needed` that are missing or older than their `>=`; versions are compared number by number."""
    out: dict[str, str] = {}
    for name, requirement in needed.items():
        least = re.search(r">=\s*([0-9.]+)", requirement)
        have = installed.get(name)
        if have is None or (least is not None and _numbers(have) < _numbers(least[1])):
            out[name] = requirement
    return out


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[+a-zA-Z]", text)[0]))
