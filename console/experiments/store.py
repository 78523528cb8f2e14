"""Every run this console has seen: event files as the truth, and a SQLite index over them that can be made anew.

`runs/<run_id>/` holds run.json (what was asked for), script.py, events.jsonl (the very lines of the box, so that its
size is the byte offset to go on from), and result.json once the run is over.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from console.errors import OperatorError, UsageError
from console.experiments.conditions import Conditions, conditions_of
from console.experiments.events import EventReader, read_events
from console.experiments.rows import attribution_rows, effect_rows, env_rows, fit_row, point_rows, sample_rows
from console.experiments.script.nearest import did_you_mean
from console.experiments.tables import migrate
from console.folders import user_folder
from console.private_file import write_private


@dataclass(frozen=True)
class RunRecord:
    """What is known of a run before its first event."""

    id: str
    playbook: str
    version: str
    script_sha: str
    params: Mapping[str, Any]  # secrets left out
    host: str
    unit: str
    started: str  # ISO 8601, UTC, of the console's clock
    python: str = "python3"
    note: str | None = None


@dataclass(frozen=True)
class RunSummary:
    """One line of the list of runs. `status` is `running` until a result is known."""

    id: str
    playbook: str
    host: str
    started: str
    ended: str | None
    status: str
    exit: int | None
    verdict_class: str | None
    headline: str | None
    comparable_key: str | None
    pinned: bool = False

    def to_json(self) -> dict[str, Any]:
        """One object of `ddtree runs --json`."""
        return asdict(self)


@dataclass(frozen=True)
class StoredRun:
    """A run with everything kept of it. `result` is None while it is not over, or was never followed to its end."""

    record: RunRecord
    events: tuple[dict[str, Any], ...]
    result: dict[str, Any] | None

    @property
    def conditions(self) -> Conditions:
        """What has to be equal for another run to be comparable with this one."""
        return conditions_of(self.record.playbook, self.record.version, self.record.host, self.events)


class StoreError(OperatorError):
    """The store on this machine cannot be used."""


class Store:
    """The store below one folder; use it as a context manager, or close it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._database, outdated = self._open()
        if outdated:
            self._index_all()

    @property
    def runs_folder(self) -> Path:
        return self.folder / "runs"

    @property
    def database_file(self) -> Path:
        return self.folder / "runs.db"

    def _open(self) -> tuple[sqlite3.Connection, bool]:
        """The database, and whether it is new or came from an older console."""
        os.close(os.open(self.database_file, os.O_CREAT | os.O_RDWR, 0o600))
        database = sqlite3.connect(self.database_file, timeout=10.0)
        try:
            database.row_factory = sqlite3.Row
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA foreign_keys = ON")
            outdated = migrate(database)
        except (sqlite3.DatabaseError, ValueError) as error:
            database.close()
            sound = isinstance(error, sqlite3.OperationalError)  # its disk, its rights or another console
            mend = mend_of(error) if sound else "move it away: it is made anew"
            raise StoreError(str(error), where=str(self.database_file), mend=mend) from error
        return database, outdated

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Writing

    def begin(self, record: RunRecord, script: bytes) -> None:
        """Keep what was asked for, before the first event."""
        folder = self._folder(record.id)
        folder.mkdir(mode=0o700, exist_ok=True)
        write_private(folder / "run.json", json.dumps(asdict(record), indent=1))
        write_private(folder / "script.py", script.decode("utf-8"))
        with self._changing() as database:
            _put_run(database, record)

    def append(self, run_id: str, lines: bytes) -> None:
        """Whole event lines, as they came."""
        if lines:
            descriptor = os.open(self._folder(run_id) / "events.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                file.write(lines)

    def finish(self, run_id: str, result: Mapping[str, Any]) -> None:
        """Keep a run's result event, and index what its events hold."""
        write_private(self._folder(run_id) / "result.json", json.dumps(dict(result), indent=1))
        self._index(run_id)

    def _index(self, run_id: str) -> None:
        stored = self._load(run_id)
        with self._changing() as database:
            _put_run(database, stored.record)
            _put_events(database, run_id, stored.events)
            if stored.result is not None:
                _put_result(database, stored, stored.result)

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._database:
                yield self._database
        except sqlite3.Error as error:
            raise StoreError(str(error), where=str(self.database_file), mend=mend_of(error)) from error

    # Reading

    def resume(self, run_id: str) -> tuple[list[dict[str, Any]], EventReader]:
        """The events kept of a run, and a reader that goes on from where they end; both empty for a run not seen yet."""
        path = self._folder(run_id) / "events.jsonl"
        return read_events(path.read_bytes() if path.exists() else b"")

    def has(self, run_id: str) -> bool:
        """Whether this console knows the run."""
        return (self._folder(run_id) / "run.json").exists()

    def runs(self, *, playbook: str | None = None, host: str | None = None) -> tuple[RunSummary, ...]:
        """Every run, newest first, those of one playbook or host if asked."""
        rows = self._database.execute(
            "SELECT id, playbook, host, started, ended, status, exit, verdict_class, verdict_json, comparable_key,"
            " EXISTS (SELECT 1 FROM golden WHERE golden.run_id = run.id) AS pinned FROM run"
            " WHERE (?1 IS NULL OR playbook = ?1) AND (?2 IS NULL OR host = ?2) ORDER BY started DESC, id DESC",
            (playbook, host),
        )
        return tuple(_summary(row) for row in rows)

    def show(self, name: str) -> StoredRun:
        """The run with that id, with the only id that begins so, or the newest for `last`. Raises UsageError."""
        ids = [summary.id for summary in self.runs()]
        if name == "last" and ids:
            return self._load(ids[0])
        matching = [run_id for run_id in ids if run_id == name] or [run_id for run_id in ids if run_id.startswith(name)]
        if len(matching) != 1:
            what = f"{len(matching)} runs begin so" if matching else f"no such run{did_you_mean(name, ids)}"
            raise UsageError(what, where=name, mend="ddtree runs lists them")
        return self._load(matching[0])

    def before(self, run: StoredRun) -> StoredRun | None:
        """The run of the same playbook on the same host that ended with a verdict before this one began."""
        row = self._database.execute(
            "SELECT id FROM run WHERE playbook = ? AND host = ? AND started < ? AND verdict_class IS NOT NULL"
            " ORDER BY started DESC, id DESC LIMIT 1",
            (run.record.playbook, run.record.host, run.record.started),
        ).fetchone()
        return None if row is None else self._load(row["id"])

    def _load(self, run_id: str) -> StoredRun:
        folder = self._folder(run_id)
        record = RunRecord(**json.loads((folder / "run.json").read_text(encoding="utf-8")))
        result_file = folder / "result.json"
        result = json.loads(result_file.read_text(encoding="utf-8")) if result_file.exists() else None
        events, _ = self.resume(run_id)
        return StoredRun(record, tuple(events), result)

    def rebuild(self) -> int:
        """Make the database anew from the event files; returns the number of runs."""
        self.close()
        for name in (self.database_file, *(Path(f"{self.database_file}{tail}") for tail in ("-wal", "-shm"))):
            name.unlink(missing_ok=True)
        self._database, _ = self._open()
        return self._index_all()

    def _index_all(self) -> int:
        ids = [path.parent.name for path in sorted(self.runs_folder.glob("*/run.json"))]
        for run_id in ids:
            self._index(run_id)
        for path in sorted(self.runs_folder.glob("*/pinned.json"), key=_pinned_at):
            self._index_pin(path.parent.name, _pinned_at(path))
        return len(ids)

    # Golden runs

    def pin(self, run_id: str, when: str) -> StoredRun:
        """Make a run the golden one of its playbook and conditions; the one before steps down. Raises UsageError.

        Only a run that came to a verdict and is not void can be what others are measured by.
        """
        stored = self.show(run_id)
        verdict = (stored.result or {}).get("verdict")
        if not verdict or str(verdict["class"]).startswith("void") or not any(_measured(stored.events)):
            said = verdict["class"] if verdict else (stored.result or {}).get("status", "still running")
            raise UsageError(
                f"nothing can be measured by it: {said}", where=stored.record.id, mend="pin a run that measured"
            )
        write_private(self._folder(stored.record.id) / "pinned.json", json.dumps({"pinned_at": when}))
        self._index_pin(stored.record.id, when)
        return stored

    def unpin(self, run_id: str) -> StoredRun:
        """Take the pin off a run. Raises UsageError where it has none."""
        stored = self.show(run_id)
        pin = self._folder(stored.record.id) / "pinned.json"
        if not pin.exists():
            raise UsageError("is not pinned", where=stored.record.id)
        pin.unlink()
        with self._changing() as database:
            database.execute("DELETE FROM golden WHERE run_id = ?", (stored.record.id,))
        return stored

    def golden(self, playbook: str, host: str) -> StoredRun | None:
        """The golden run of a playbook on a host, the newest pinned where its conditions have changed over time."""
        row = self._database.execute(
            "SELECT run.id FROM golden JOIN run ON run.id = golden.run_id WHERE golden.playbook = ? AND run.host = ?"
            " ORDER BY golden.pinned_at DESC LIMIT 1",
            (playbook, host),
        ).fetchone()
        return None if row is None else self._load(row["id"])

    def _index_pin(self, run_id: str, when: str) -> None:
        stored = self._load(run_id)
        with self._changing() as database:
            before = database.execute(
                "SELECT run_id FROM golden WHERE playbook = ? AND comparable_key = ?",
                (stored.record.playbook, stored.conditions.key),
            ).fetchone()
            if before is not None and before["run_id"] != run_id:
                (self._folder(before["run_id"]) / "pinned.json").unlink(missing_ok=True)
            database.execute(
                "INSERT OR REPLACE INTO golden VALUES (?, ?, ?, ?)",
                (stored.record.playbook, stored.conditions.key, run_id, when),
            )

    def delete(self, run_id: str) -> None:
        """Forget a run altogether."""
        shutil.rmtree(self._folder(run_id), ignore_errors=True)
        with self._changing() as database:
            database.execute("DELETE FROM run WHERE id = ?", (run_id,))

    def _folder(self, run_id: str) -> Path:
        if not run_id or "/" in run_id or run_id.startswith("."):
            raise UsageError("no run has such a name", where=repr(run_id))
        return self.runs_folder / run_id


def _put_run(database: sqlite3.Connection, record: RunRecord) -> None:
    database.execute(
        "INSERT INTO run (id, playbook, pb_version, script_sha, params_json, host, unit, started, status, note)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'running', ?) ON CONFLICT (id) DO NOTHING",
        (
            record.id, record.playbook, record.version, record.script_sha, json.dumps(dict(record.params)), record.host,
            record.unit, record.started, record.note,
        ),
    )  # fmt: skip


def _put_events(database: sqlite3.Connection, run_id: str, events: Iterable[Mapping[str, Any]]) -> None:
    kept = list(events)
    for table, rows in (("env", env_rows(kept)), ("sample", sample_rows(kept)), ("point", point_rows(kept))):
        _replace_rows(database, table, run_id, rows)


def _replace_rows(database: sqlite3.Connection, table: str, run_id: str, rows: Iterable[Mapping[str, Any]]) -> None:
    database.execute(f"DELETE FROM {table} WHERE run_id = ?", (run_id,))
    for row in rows:
        names = ", ".join(f'"{name}"' for name in row)
        marks = ", ".join("?" for _ in row)
        database.execute(f"INSERT INTO {table} (run_id, {names}) VALUES (?, {marks})", (run_id, *row.values()))


def _put_result(database: sqlite3.Connection, stored: StoredRun, result: Mapping[str, Any]) -> None:
    verdict = result.get("verdict")
    database.execute(
        "UPDATE run SET ended = ?, status = ?, exit = ?, verdict_class = ?, verdict_json = ?, summary_json = ?,"
        " comparable_key = ? WHERE id = ?",
        (
            result.get("ended"),
            result["status"],
            result["exit"],
            verdict["class"] if verdict else None,
            json.dumps(verdict) if verdict else None,
            json.dumps(result.get("summary")),
            stored.conditions.key,
            stored.record.id,
        ),
    )
    database.execute("DELETE FROM fit WHERE run_id = ?", (stored.record.id,))
    if result.get("fit"):
        row = fit_row(result["fit"])
        database.execute("INSERT INTO fit VALUES (?, ?, ?, ?, ?, ?)", (stored.record.id, *row))
    for table, rows in (("effect", effect_rows(verdict or {})), ("attribution", attribution_rows(verdict or {}))):
        _replace_rows(database, table, stored.record.id, rows)


def _summary(row: sqlite3.Row) -> RunSummary:
    verdict = json.loads(row["verdict_json"]) if row["verdict_json"] else {}
    names = ("id", "playbook", "host", "started", "ended", "status", "exit", "verdict_class", "comparable_key")
    return RunSummary(
        **{name: row[name] for name in names}, headline=verdict.get("headline"), pinned=bool(row["pinned"])
    )


def _pinned_at(path: Path) -> str:
    return str(json.loads(path.read_text(encoding="utf-8"))["pinned_at"])


def _measured(events: Iterable[Mapping[str, Any]]) -> Iterator[bool]:
    return (True for event in events if event.get("type") == "sample" and event.get("counts", True))


def mend_of(error: Exception) -> str | None:
    """What would help where the database is sound, and its disk, its rights or another console are in the way."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF  # the low byte is the kind
    return {
        sqlite3.SQLITE_FULL: "make room on its disk",
        sqlite3.SQLITE_READONLY: "make it writable, or name another place with XDG_STATE_HOME",
        sqlite3.SQLITE_CANTOPEN: "make it readable and its folder writable, or name another place with XDG_STATE_HOME",
        sqlite3.SQLITE_BUSY: "another console is writing there; try again",
    }.get(code)


def default_store_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """`${XDG_STATE_HOME:-~/.local/state}/ddtree`."""
    return user_folder("XDG_STATE_HOME", ".local/state", environ)
