"""Verbs over runs of playbooks: run, attach, cancel, runs, show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from console.errors import ExitCode, OperatorError
from console.verbs.on_host import on_host
from console.verbs.playbooks import find_playbook
from console.verbs.verb import Call
from console.verbs.words import columns, lasted, printable

if TYPE_CHECKING:
    from console.experiments.store import Store
    from console.host import Host


async def run(call: Call) -> ExitCode:
    """Run a playbook and follow it to its verdict; with --detach leave it to itself."""
    playbook = find_playbook(call.text("playbook"))
    async with on_host(call) as host:
        if call.flag("detach"):
            event = await host.start_run(playbook, call.pairs("param"))
            call.say(event, f"{event['run_id']} has begun; ddtree attach {host.name} {event['run_id']} follows it")
            return ExitCode.DONE
        return await follow_run(call, host, host.run(playbook, call.pairs("param")))


async def attach(call: Call) -> ExitCode:
    """Follow a run, from its start, to its verdict."""
    async with on_host(call) as host:
        return await follow_run(call, host, host.attach(call.text("run")))


async def cancel(call: Call) -> ExitCode:
    """Stop a run."""
    async with on_host(call) as host:
        await host.cancel(call.text("run"))
    call.say(
        {"host": call.text("host"), "run_id": call.text("run"), "cancelled": True}, f"{call.text('run')} is cancelled"
    )
    return ExitCode.DONE


async def runs(call: Call) -> ExitCode:
    """Every run this console knows, newest first."""
    with open_store() as store:
        found = store.runs()
    rows = [
        (
            one.id,
            one.host,
            one.status,
            one.verdict_class or "",
            "golden" if one.pinned else "",
            printable(one.headline or ""),
        )
        for one in found
    ]
    text = columns(rows, ("run", "host", "status", "verdict", "", "")) if rows else "no runs yet"
    call.say({"runs": [one.to_json() for one in found]}, text)
    return ExitCode.DONE


async def show(call: Call) -> ExitCode:
    """One run with its verdict, and which conditions are other than in the run before it."""
    from console.experiments.conditions import change_lines, differing
    from console.experiments.report import text_report

    with open_store() as store:
        stored = store.show(call.text("run"))
        before = store.before(stored)
    changed = () if before is None else differing(before.conditions.hard, stored.conditions.hard)
    since = None if before is None else before.record.id
    text = "\n".join([text_report(stored).rstrip(), *change_lines(since or "", changed)])
    told = {"since": since, "differing": [difference.to_json() for difference in changed]}
    call.say({"run": asdict(stored.record), "result": stored.result, "changed": told}, printable_lines(text))
    return ExitCode.DONE


async def follow_run(call: Call, host: Host, events: AsyncIterator[dict[str, Any]]) -> ExitCode:
    """Say each event as it comes, and the verdict last; the exit status is the run's."""
    from console.experiments.report import text_report

    run_id: str | None = None
    try:
        async for event in events:
            run_id = event.get("run_id", run_id)
            if event["type"] != "result":
                words = event_words(event)
                if words is None and not call.session.as_json:
                    continue
                call.say(event, words or "")
                continue
            with open_store() as store:
                report = text_report(store.show(event["run_id"]))
            call.say(verdict_json(event), printable_lines(report))
            return _exit(event["exit"])
    except asyncio.CancelledError:
        if run_id is not None:
            call.tell(f"{run_id} goes on by itself; ddtree attach {host.name} {run_id} follows it")
        raise
    raise OperatorError(
        "the run's events ended without a result", where=run_id, mend=f"ddtree attach {host.name} {run_id}"
    )


def verdict_json(result: Mapping[str, Any]) -> dict[str, Any]:
    """The last object of a run: its verdict in one piece, with fit and levels; `class` is null where there is none."""
    verdict = result.get("verdict") or {"class": None, "headline": result.get("message")}
    rest = {key: value for key, value in result.items() if key not in ("type", "verdict")}
    return {"type": "verdict", **verdict, **rest}


def event_words(event: Mapping[str, Any]) -> str | None:
    """An event of a run for people; None for one that only machines need."""
    words = _WORDS.get(event["type"])
    return None if words is None else printable(words(event))


def _progress(event: Mapping[str, Any]) -> str:
    eta = event.get("eta_s")
    left = f", {lasted(eta)} to go" if isinstance(eta, int | float) else ""
    return f"{event.get('done')} of {event.get('total')}  {event.get('label', '')}{left}"


def _sample(event: Mapping[str, Any]) -> str:
    request = event.get("req")
    if not isinstance(request, Mapping):
        return "sample"
    parts = [
        f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}"
        for key in ("P", "N", "kind", "ttft_s", "decode_s", "commit", "step_ms")
        if (value := request.get(key)) is not None
    ]
    return "  ".join(parts)


_WORDS = {
    "run": lambda event: f"run {event['run_id']}: {event['playbook']} {event['version']} on {event['host']}",
    "progress": _progress,
    "sample": _sample,
    "log": lambda event: f"{event.get('level', 'info')}: {event.get('msg', event.get('raw', ''))}",
    "warn": lambda event: f"warning {event.get('code', '')}: {event.get('msg', '')}",
    "error": lambda event: f"error {event.get('code', '')}: {event.get('msg', '')}",
}


def printable_lines(text: str) -> str:
    """Several lines of text, the control codes in each of them shown."""
    return "\n".join(printable(line) for line in text.rstrip().splitlines())


def _exit(status: int) -> ExitCode:
    """A script's exit status as one of ours; those of a deadline or a signal are failures here."""
    return ExitCode(status) if status in ExitCode.__members__.values() else ExitCode.FAILED


def open_store() -> Store:
    """The store of this user's runs; a context manager."""
    from console.experiments.store import Store, default_store_folder

    return Store(default_store_folder())
