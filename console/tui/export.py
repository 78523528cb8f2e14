"""Write log records to a file of JSON lines that can be read back: cursors kept, marks noted."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from console.box.values import Record
from console.errors import OperatorError
from console.folders import user_folder


def export_records(host: str, records: Sequence[Record], marked: Collection[str], wall_s: float) -> Path:
    """Write `records` and say where; the name tells host and time. `marked` holds cursors. Mode 0600: logs are private."""
    folder = user_folder("XDG_STATE_HOME", ".local/state") / "logs"
    stamp = datetime.fromtimestamp(wall_s).strftime("%Y%m%d-%H%M%S")
    path = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', host)}-{stamp}.jsonl"
    lines = "".join(
        json.dumps({**asdict(record), "marked": record.cursor in marked}, ensure_ascii=False) + "\n"
        for record in records
    )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        path.write_text(lines, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise OperatorError(error.strerror or str(error), where=str(path), mend="make room or rights there") from error
    return path
