"""Other settings for a while: every change goes through the settings transaction, and the old ones always come back.

The console hands over the transaction as it would make it for the settings in force (`restarts.json`). What may have to
be put back stands in `restore.json` before anything is touched; the runner restores from it however the script ended.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping

from kit_end import Stop
from kit_run import Run

APPLY_S = 2 * 1900.0  # a change that fails goes back by itself, and both starts may load a large model


class Service:
    """The service under other settings; use it as a context manager. Raises Stop(missing) where it may not be restarted."""

    def __init__(self, run: Run) -> None:
        path = os.environ.get("DDT_RESTARTS")
        if not path:
            message = "this playbook restarts the service, which only a run from the console may: ddtree run HOST …"
            raise Stop("missing", message, "capability_missing")
        self.run = run
        self.given: Mapping[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        self.base = str(self.given["request"]["text"])
        self.text = self.base
        self.expect: Dict[str, Any] = dict(self.given["request"]["new"]["expect"])
        self.starts = 0

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: Any) -> None:
        """The settings that were in force serve again. The run may have been told to stop: this is done all the same."""
        if self.text != self.base:
            self._apply(self.base, {})

    def check(self, changes: Mapping[str, Any]) -> None:
        """Raise Stop(missing) for a setting that this engine has not, or has only one value of: nothing is touched."""
        if self.given["request"].get("suffix", ".toml") != ".toml":
            raise Stop("missing", "settings of this engine can be changed from the console only", "capability_missing")
        for name, value in changes.items():
            if name not in self.given["tables"]:
                raise Stop("missing", f"the engine has no setting {name}", "capability_missing")
            if name in self.given["fixed"] and value != self.expect.get(name, value):
                raise Stop("missing", f"{name} cannot be changed on this engine", "capability_missing")

    def start_with(self, changes: Mapping[str, Any]) -> None:
        """Restart under the old settings with `changes`, and wait until it serves. Raises Stop(engine) if it will not."""
        self.run.check()
        self.check(changes)
        self._apply(edited(self.base, changes, self.given["tables"]), changes)
        self.run.info = self.run.engine.get("/server_info") or {}

    def _apply(self, text: str, changes: Mapping[str, Any]) -> None:
        request = json.loads(json.dumps(self.given["request"]))
        request["text"], request["base_sha"] = text, sha(self.text)
        request["new"]["expect"].update(changes)
        state, name = Path(self.given["state"]), f"{self.run.prompts.salt[:60]}-{self.starts}-{secrets.token_hex(2)}"
        self._promise(text)
        (state / "applies").mkdir(mode=0o700, parents=True, exist_ok=True)
        write(state / "applies" / f"{name}.request.json", request)
        self.starts += 1
        self.run.engine.close()
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("apply.py")), "--state", str(state), "run", name],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=APPLY_S, check=False, start_new_session=True,
        )  # fmt: skip
        report = json.loads((state / "applies" / f"{name}.json").read_text(encoding="utf-8"))
        if report["status"] != "confirmed":
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            why = report["reason"] or (said[-1] if said else f"status {done.returncode}")
            raise Stop("engine", f"the restart was {report['status'].replace('_', ' ')}: {why}", "restart_failed")
        self.text = text
        shown = ", ".join(f"{key} {value}" for key, value in changes.items()) or "the old settings"
        self.run.log(f"serving with {shown} after {time.monotonic() - began:.1f} s")

    def _promise(self, text: str) -> None:
        """What the runner needs to put the old settings back: only over a file that is ours, never over another change."""
        folder = os.environ.get("DDT_RUN_DIR")
        if folder:
            path = Path(folder) / "restore.json"
            ours: List[str] = json.loads(path.read_text(encoding="utf-8"))["ours"] if path.exists() else []
            write(path, {**self.given, "ours": sorted({*ours, sha(text)})})


def sha(text: str) -> str:
    """As the transaction names a settings file."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def write(path: Path, data: Mapping[str, Any]) -> None:
    """A private file, whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.touch(mode=0o600)
    part.write_text(json.dumps(data), encoding="utf-8")
    part.replace(path)


def edited(text: str, changes: Mapping[str, Any], tables: Mapping[str, str]) -> str:
    """A settings file with other values; its lines stay as they are but for those. `tables`: setting -> its table."""
    lines = text.splitlines()
    for name, value in changes.items():
        lines = _set(lines, tables[name], name, json.dumps(value))
    return "\n".join(lines) + "\n"


def _set(lines: List[str], table: str, name: str, value: str) -> List[str]:
    start = next((i for i, line in enumerate(lines) if line.split("#")[0].strip() == f"[{table}]"), None)
    if start is None:
        return [*lines, f"[{table}]", f"{name} = {value}"]
    end = next((i for i in range(start + 1, len(lines)) if lines[i].lstrip().startswith("[")), len(lines))
    for i in range(start + 1, end):
        key, equals, _ = lines[i].partition("=")
        if equals and key.strip() == name:
            return [*lines[:i], f"{name} = {value}", *lines[i + 1 :]]
    return [*lines[: start + 1], f"{name} = {value}", *lines[start + 1 :]]
