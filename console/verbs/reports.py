"""Verbs over stored runs: compare, export, pin."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from console.errors import ExitCode, OperatorError, UsageError
from console.private_file import write_private
from console.verbs.runs import open_store, printable_lines
from console.verbs.verb import Call


async def compare(call: Call) -> ExitCode:
    """Hold run B against run A; the exit status is the verdict's."""
    from console.analysis.run_verdict import exit_code_of  # numpy and scipy come in with it
    from console.experiments.compare import compare as compare_runs
    from console.experiments.compare import compared_text

    with open_store() as store:
        found = compare_runs(store.show(call.text("a")), store.show(call.text("b")))
    call.say(found.to_json(), printable_lines(compared_text(found)))
    return exit_code_of(found.verdict.klass)


async def export(call: Call) -> ExitCode:
    """Give a run in a format for elsewhere, on standard output or into a file."""
    from console.experiments.export import export as export_run

    with open_store() as store:
        stored = store.show(call.text("run"))
    text = export_run(stored, call.text("format"), call.text("table"))
    said = {"run_id": stored.record.id, "format": call.text("format")}
    path: Path | None = call.arguments["output"]
    if path is None:
        call.say({**said, "text": text}, text.rstrip("\n"))
        return ExitCode.DONE
    if path.is_dir():
        raise UsageError("is a folder", where=str(path), mend="name a file in it")
    try:
        await asyncio.to_thread(write_private, path, text)
    except OSError as error:
        raise OperatorError(f"cannot be written: {error.strerror}", where=str(path)) from error
    call.say({**said, "output": str(path), "bytes": len(text.encode())}, f"{stored.record.id} is in {path}")
    return ExitCode.DONE


async def pin(call: Call) -> ExitCode:
    """Make a run the golden one of its playbook and conditions, or take the pin off it."""
    with open_store() as store:
        if call.flag("remove"):
            stored = store.unpin(call.text("run"))
        else:
            stored = store.pin(call.text("run"), datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"))
    pinned = not call.flag("remove")
    words = "is the golden run of" if pinned else "is no longer the golden run of"
    call.say(
        {"run_id": stored.record.id, "playbook": stored.record.playbook, "host": stored.record.host, "pinned": pinned},
        f"{stored.record.id} {words} {stored.record.playbook} on {stored.record.host}",
    )
    return ExitCode.DONE
