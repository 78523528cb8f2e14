#!/usr/bin/env python3
"""What this machine has for the engine, as one JSON object on standard output. Standard library only; changes nothing.

    survey.py [--python PATH] [--packages a,b,c] [--import-torch] [--disk FOLDER] [--port N]

"interpreters": each Python of 3.11 or newer found here (or only PATH), with the folders it imports from beyond its
standard library, the versions of the packages asked for, and, with --import-torch, whether torch really imports.
Also: linger, the journal, free disk, GPUs, who holds the port, and memory.
"""

from __future__ import annotations

import argparse
import grp
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

OLDEST = (3, 11)
AT_HOME = (  # after those on PATH: where people keep the environment that has torch
    ".venv/bin/python",
    "venv/bin/python",
    "*/.venv/bin/python",
    "miniconda3/bin/python",
    "miniforge3/bin/python",
    "anaconda3/bin/python",
    "mini*3/envs/*/bin/python",
    "anaconda3/envs/*/bin/python",
    ".pyenv/versions/*/bin/python",
)
IN_ROOT = ("opt/conda/bin/python", "opt/*/bin/python", "opt/*/.venv/bin/python", "usr/local/bin/python3")
PROBE = """
import importlib.metadata, json, os, site, sys, sysconfig
names, import_torch = json.loads(sys.argv[1])
own = {os.path.realpath(sysconfig.get_path(key)) for key in ("stdlib", "platstdlib")}
own |= {os.path.join(folder, "lib-dynload") for folder in own} | {os.getcwd()}
folders = [path for path in sys.path if os.path.isdir(path) and os.path.realpath(path) not in own]
versions = {}
for name in names:
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        versions[name] = None
found = {"version": list(sys.version_info[:3]), "prefix": sys.prefix, "folders": folders, "packages": versions}
try:
    import pip
    found["pip"] = True
except ImportError:
    found["pip"] = False
if import_torch and versions.get("torch"):
    try:
        import torch
        found["torch"] = {"version": torch.__version__, "cuda": torch.version.cuda, "gpus": torch.cuda.device_count()}
    except Exception as error:
        found["torch"] = {"error": f"{type(error).__name__}: {error}"}
print(json.dumps(found))
"""


def probe(path: str, packages: list[str], import_torch: bool) -> dict[str, Any]:
    """One interpreter, asked in a process of its own."""
    argv = [path, "-c", PROBE, json.dumps([packages, import_torch])]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=environment, cwd="/")
        return {"path": path, **json.loads(done.stdout.splitlines()[-1])}
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return {"path": path, "error": f"{type(error).__name__}: {error}"}


def candidates() -> list[str]:
    """Interpreters worth asking, most likely first, each real file once."""
    active = [f"{os.environ['VIRTUAL_ENV']}/bin/python"] if "VIRTUAL_ENV" in os.environ else []
    names = ("python3", "python", *(f"python3.{minor}" for minor in range(16, 10, -1)))
    on_path = [shutil.which(name) for name in names]
    placed = [str(path) for place in AT_HOME for path in sorted(Path.home().glob(place))]
    placed += [str(path) for place in IN_ROOT for path in sorted(Path("/").glob(place))]
    return list(dict.fromkeys(path for path in (*active, *on_path, *placed) if path and os.access(path, os.X_OK)))


def interpreters(args: argparse.Namespace) -> list[dict[str, Any]]:
    packages = [name for name in args.packages.split(",") if name]
    paths = [args.python] if args.python else candidates()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda path: probe(path, packages, args.import_torch), paths))
    if args.python:
        return found
    by_prefix: dict[str, dict[str, Any]] = {}
    for one in found:
        if "error" not in one and tuple(one["version"]) >= OLDEST:
            by_prefix.setdefault(one["prefix"], one)
    return list(by_prefix.values())


def journal(user: str) -> dict[str, Any]:
    """Whether this user can read the system's journal, and whether it outlives a reboot."""
    groups = {grp.getgrgid(number).gr_name for number in os.getgroups()}
    return {
        "persistent": Path("/var/log/journal").is_dir(),
        "groups": sorted(groups & {"systemd-journal", "adm", "wheel"}),
        "readable": user == "root" or bool(groups & {"systemd-journal", "adm", "wheel"}),
    }


def gpus() -> list[dict[str, str]]:
    """What nvidia-smi says of each GPU; none without it."""
    keys = [
        "index",
        "name",
        "driver_version",
        "memory.total",
        "memory.used",
        "clocks.sm",
        "clocks.max.sm",
        "persistence_mode",
    ]
    if shutil.which("nvidia-smi") is None:
        return []
    argv = ["nvidia-smi", f"--query-gpu={','.join(keys)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    rows = [line.split(", ") for line in done.stdout.splitlines()]
    found = [dict(zip(keys, row, strict=True)) for row in rows if len(row) == len(keys)]
    for gpu in found:
        gpu["throttle"] = throttle(gpu["index"])
    return found


def throttle(index: str) -> str:
    """What holds a GPU's clocks down, in words; "" for nothing, or where the driver is too old or too new to say so."""
    reasons = ("sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
    query = ",".join(f"clocks_throttle_reasons.{reason}" for reason in reasons)
    argv = ["nvidia-smi", f"--id={index}", f"--query-gpu={query}", "--format=csv,noheader"]
    shown = subprocess.run(argv, capture_output=True, text=True, timeout=30).stdout.strip().split(", ")
    active = [reason.replace("_", " ") for reason, state in zip(reasons, shown, strict=False) if state == "Active"]
    return ", ".join(active)


def gpu_processes() -> list[dict[str, Any]]:
    """Processes that hold GPU memory, with what they hold together."""
    if shutil.which("nvidia-smi") is None:
        return []
    argv = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    held: dict[int, int] = {}
    for line in subprocess.run(argv, capture_output=True, text=True, timeout=30).stdout.splitlines():
        pid, _, mebibytes = line.partition(", ")
        if pid.strip().isdigit() and mebibytes.strip().isdigit():
            held[int(pid)] = held.get(int(pid), 0) + int(mebibytes) * 2**20
    return [
        {"pid": pid, "gpu_bytes": size, "command": command_of(pid), "unit_pid": parent_of(pid)}
        for pid, size in sorted(held.items())
    ]


def command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "(ended, or not seen from here)"
    return shown([word.decode("utf-8", "replace") for word in words if word])


SECRET = re.compile(r"key|token(?!izer|s\b)|secret|passw", re.IGNORECASE)


def shown(words: list[str]) -> str:
    """A command line for people's eyes: what may be a secret is not in it."""
    out: list[str] = []
    for word in words:
        name, equals, _ = word.partition("=")
        if out and SECRET.search(words[len(out) - 1]) and words[len(out) - 1].startswith("-") and "=" not in out[-1]:
            out.append("***")
        elif equals and SECRET.search(name):
            out.append(f"{name}=***")
        else:
            out.append(word)
    return " ".join(out)


def parent_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def port_owner(port: int) -> dict[str, Any] | None:
    """Who listens on a TCP port; pid and command are None for a process of somebody else. None: nobody listens."""
    inodes = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if table.exists():
            for line in table.read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return None
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()) in inodes:
                return {"pid": int(link.parts[2]), "command": command_of(int(link.parts[2]))}
        except OSError:
            continue  # not ours to see, or it has ended
    return {"pid": None, "command": None}


def engines(on_gpu: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Engines of ours that run on this machine, by command line, whoever started them, and what they hold."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        if b"--check-config" in words:
            continue  # a settings change has its file read: it serves nobody and ends by itself
        if any(words[at : at + 3] == [b"-m", b"engine", b"serve"] for at in range(len(words))):
            pid = int(path.parts[2])
            held = {one["pid"]: one["gpu_bytes"] for one in on_gpu}.get(pid, 0)
            found.append(
                {"pid": pid, "command": command_of(pid), "memory_bytes": resident_bytes(pid), "gpu_bytes": held}
            )
    return found


def memory() -> dict[str, int]:
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return {
        key: int(lines[name].split()[0]) * 1024 for key, name in (("total", "MemTotal"), ("available", "MemAvailable"))
    }


def free_bytes(folder: str) -> int:
    path = Path(folder).expanduser()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="ask this interpreter only, whatever its version")
    parser.add_argument("--packages", default="torch", help="distribution names, comma-separated")
    parser.add_argument("--import-torch", action="store_true")
    parser.add_argument("--disk", default="~", help="the folder whose disk is measured")
    parser.add_argument("--port", type=int, help="a TCP port to find the owner of")
    args = parser.parse_args()
    user = pwd.getpwuid(os.getuid()).pw_name
    on_gpu = gpu_processes()
    found = {
        "user": user,
        "survey_python": sys.executable,
        "interpreters": interpreters(args),
        "linger": Path(f"/var/lib/systemd/linger/{user}").exists(),
        "journal": journal(user),
        "disk_free_bytes": free_bytes(args.disk),
        "gpus": gpus(),
        "memory": memory(),
        "engines": engines(on_gpu),
        "gpu_processes": on_gpu,
        "port": {"number": args.port, "owner": port_owner(args.port)} if args.port else None,
        "cache": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
