"""The tables of the runs database (measurement.md 4.8) and the steps from each version to the next."""

from __future__ import annotations

import sqlite3

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE run (
        id TEXT PRIMARY KEY, playbook TEXT NOT NULL, pb_version TEXT, script_sha TEXT, params_json TEXT NOT NULL,
        host TEXT NOT NULL, unit TEXT, started TEXT NOT NULL, ended TEXT, status TEXT NOT NULL, exit INTEGER,
        verdict_class TEXT, verdict_json TEXT, summary_json TEXT, comparable_key TEXT, label TEXT, note TEXT
    ) STRICT;
    CREATE TABLE env (
        run_id TEXT NOT NULL REFERENCES run(id) ON DELETE CASCADE, phase TEXT NOT NULL, engine TEXT, engine_version TEXT,
        model TEXT, drafter TEXT, settings_json TEXT, settings_sha TEXT, gpu_name TEXT, gpu_n INTEGER, clocks_json TEXT,
        PRIMARY KEY (run_id, phase)
    ) STRICT;
    CREATE TABLE sample (
        run_id TEXT NOT NULL REFERENCES run(id) ON DELETE CASCADE, i INTEGER NOT NULL, arm TEXT, block INTEGER, level REAL,
        kind TEXT, P INTEGER, N INTEGER, n_usage INTEGER, ttft REAL, decode_s REAL, e2e_s REAL, steps INTEGER,
        "commit" REAL, step_ms REAL, cached INTEGER, chunks INTEGER, finish TEXT, out_sha TEXT, distinct2 REAL,
        counts INTEGER NOT NULL, src TEXT, PRIMARY KEY (run_id, i)
    ) STRICT;
    CREATE TABLE point (
        run_id TEXT NOT NULL REFERENCES run(id) ON DELETE CASCADE, series TEXT NOT NULL, i INTEGER NOT NULL, x REAL, y REAL,
        PRIMARY KEY (run_id, series, i)
    ) STRICT;
    CREATE TABLE fit (
        run_id TEXT PRIMARY KEY REFERENCES run(id) ON DELETE CASCADE, model TEXT, a REAL, b REAL, q REAL, fit_json TEXT NOT NULL
    ) STRICT;
    CREATE TABLE golden (
        playbook TEXT NOT NULL, comparable_key TEXT NOT NULL, run_id TEXT NOT NULL REFERENCES run(id) ON DELETE CASCADE,
        pinned_at TEXT NOT NULL, PRIMARY KEY (playbook, comparable_key)
    ) STRICT;
    CREATE INDEX run_by_time ON run(started);
    CREATE INDEX run_by_key ON run(playbook, comparable_key);
    """,
    """
    CREATE TABLE effect (
        run_id TEXT NOT NULL REFERENCES run(id) ON DELETE CASCADE, metric TEXT NOT NULL, est REAL NOT NULL, lo REAL, hi REAL,
        n INTEGER, p REAL, PRIMARY KEY (run_id, metric)
    ) STRICT;
    CREATE TABLE attribution (
        run_id TEXT NOT NULL REFERENCES run(id) ON DELETE CASCADE, part TEXT NOT NULL, log_ratio REAL NOT NULL, lo REAL, hi REAL,
        PRIMARY KEY (run_id, part)
    ) STRICT;
    ALTER TABLE sample ADD COLUMN clock_mhz REAL;
    ALTER TABLE sample ADD COLUMN throttle TEXT;
    CREATE INDEX golden_by_run ON golden(run_id);
    """,
    """
    ALTER TABLE env ADD COLUMN model_sha TEXT;
    ALTER TABLE env ADD COLUMN drafter_sha TEXT;
    """,
    """
    ALTER TABLE env ADD COLUMN release TEXT;
    ALTER TABLE env ADD COLUMN driver TEXT;
    """,
)


def migrate(database: sqlite3.Connection) -> bool:
    """Bring a database to the newest version, one step a transaction; whether there was anything to do.

    Then it lacks what this version indexes, and the runs are to be read anew: those of an older console, or those that
    lie beside a database that was moved away. Raises ValueError for a database from a newer console.
    """
    version = int(database.execute("PRAGMA user_version").fetchone()[0])
    if version > len(MIGRATIONS):
        raise ValueError(f"the runs database has version {version}, and this console knows {len(MIGRATIONS)}")
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        database.executescript(f"BEGIN; {script}; PRAGMA user_version = {number}; COMMIT;")
    return version < len(MIGRATIONS)
