"""Other settings for a while: every change goes through the settings transaction, and the old ones always come back.

The console hands over the transaction as it would make it for the settings in force, and the whole settings file of every
start that the playbook's plan announces, edited and checked by the console (`restarts.json`). What may have to be put back
stands in `restore.json` before anything is touched; the runner restores from it however the script ended.
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
from typing import Any, Dict, List, Mapping, Optional

from kit_end import Stop
from kit_probe import probe
from kit_run import Run

APPLY_S = 2 * 1900.0  # a change that fails goes back by itself, and both starts may load a large model


class Service:
    """The service under other settings; use it as a context manager. Raises Stop(missing) where it may not be restarted.

    `values` are the settings in force, by leaf name, as the console reads them from their file.
    """

    def __init__(self, run: Run) -> None:
        path = os.environ.get("DDT_RESTARTS")
        if not path:
            message = "this playbook restarts the service, which only a run from the console may: ddtree run HOST …"
            raise Stop("missing", message, "capability_missing")
        self.run = run
        self.given: Mapping[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        request = self.given["request"]
        self.base: Mapping[str, Any] = {"changes": {}, "text": str(request["text"]), "new": request["new"]}
        self.now: Mapping[str, Any] = self.base
        self.values: Mapping[str, Any] = self.given["values"]
        self.starts = 0

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: Any) -> None:
        """The settings that were in force serve again. The run may have been told to stop: this is done all the same."""
        if self.now["text"] != self.base["text"]:
            self._apply(self.base)

    def check(self, changes: Mapping[str, Any]) -> None:
        """Raise Stop(missing) for settings that the console refused beforehand, and why: nothing is touched."""
        self._start(changes)

    def refusal(self, changes: Mapping[str, Any]) -> Optional[str]:
        """Why the console refused these settings beforehand; None where it did not."""
        try:
            self._start(changes)
        except Stop as stop:
            return str(stop)
        return None

    def start_with(self, changes: Mapping[str, Any]) -> None:
        """Restart under the old settings with `changes`, one of those in the plan; none: the old ones. Waits until it serves.
        Raises Stop(engine) if it will not."""
        self.run.check()
        self._apply(self._start(changes))
        self.run.info = probe(self.run.engine)[0]

    def _start(self, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        found = next((one for one in (self.base, *self.given["starts"]) if one["changes"] == changes), None)
        if found is None:
            raise Stop("missing", f"no start with {_words(changes)} was planned", "capability_missing")
        if "refused" in found:
            raise Stop("missing", str(found["refused"]), "capability_missing")
        return found

    def _apply(self, start: Mapping[str, Any]) -> None:
        request: Dict[str, Any] = {**self.given["request"], "text": start["text"], "new": start["new"]}
        request.update(base_sha=sha(self.now["text"]), old=self.now["new"])
        state, name = Path(self.given["state"]), f"{self.run.prompts.salt[:60]}-{self.starts}-{secrets.token_hex(2)}"
        self._promise(start["text"])
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
        self.now = start
        self.run.log(f"serving with {_words(start['changes'])} after {time.monotonic() - began:.1f} s")

    def _promise(self, text: str) -> None:
        """What the runner needs to put the old settings back: only over a file that is ours, never over another change."""
        folder = os.environ.get("DDT_RUN_DIR")
        if folder:
            path = Path(folder) / "restore.json"
            ours: List[str] = json.loads(path.read_text(encoding="utf-8"))["ours"] if path.exists() else []
            owed = {name: self.given[name] for name in ("state", "request")}
            write(path, {**owed, "ours": sorted({*ours, sha(text)})})


def sha(text: str) -> str:
    """As the transaction names a settings file."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def write(path: Path, data: Mapping[str, Any]) -> None:
    """A private file, whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.touch(mode=0o600)
    part.write_text(json.dumps(data), encoding="utf-8")
    part.replace(path)


def _words(changes: Mapping[str, Any]) -> str:
    """Changes for people: `page_size 64`; a setting without a value is off."""
    shown = (f"{name} {'off' if value == '' else value}" for name, value in changes.items())
    return ", ".join(shown) or "the old settings"
