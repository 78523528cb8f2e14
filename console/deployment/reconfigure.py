"""The settings transaction, seen from here: read the base, plan, stage a request, hand it to agent/apply.py, follow it.

The box decides and can finish alone. A lost link changes nothing: the outcome is read on return, and a request is done
once however often it is asked for.
"""

from __future__ import annotations

import asyncio
import getpass
import hashlib
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

from console.box.errors import LinkError, NoSuchFile
from console.box.journal import journal_argv
from console.box.services import Verb
from console.deployment.base import ModelFacts
from console.deployment.bundled import model_facts
from console.deployment.change import ChangePlan, Choices, Outcome, Phase, Stray, UnderWay
from console.deployment.generations import HELD, differences, read_generations, tried_fractions
from console.deployment.memory_window import memory_window
from console.deployment.settings import parse_changes
from console.deployment.settings_file import settings_file_sha
from console.deployment.site import AGENT, Site, failed, read_base
from console.errors import UsageError

POLL_S = 0.25
FIRST_SIGN_S = 30.0  # the box has taken up the request by then, or never will
SILENT_S = 15.0  # after so long without a word it is seen to that somebody works on the request at all
CANARY_TOKENS = 8
JOURNAL_LINES = 200
VERBS: tuple[Verb, ...] = ("start", "stop", "reset-failed")


# --- plan: nothing is touched


async def plan(
    site: Site, changes: Mapping[str, Any], *, in_flight: int | None = None, memory_bytes: int | None = None
) -> ChangePlan:
    """What `changes` (leaf name -> text or value) would do. Raises UsageError for any that is wrong.

    `in_flight` is the number of requests a restart would end; `memory_bytes` what the engine may take its share of.
    Both are None where they are not known.
    """
    base = await read_base(site)
    new = site.deployment.edit(base, parse_changes(changes, site.deployment.settings))
    return await _plan(site, base, new, in_flight, memory_bytes)


async def plan_rollback(site: Site, *, in_flight: int | None = None, memory_bytes: int | None = None) -> ChangePlan:
    """Back to the settings that were in force before the present ones. Raises UsageError when there are none."""
    base = await read_base(site)
    held = [entry for entry in await read_generations(site) if entry["outcome"] in HELD]
    while held and held[-1]["text"] == base:
        held.pop()
    if not held:
        raise UsageError("there are no earlier settings to go back to", where=site.connection.target.name)
    return await _plan(site, base, held[-1]["text"], in_flight, memory_bytes)


async def _plan(site: Site, base: str, new: str, in_flight: int | None, memory_bytes: int | None) -> ChangePlan:
    values = site.deployment.values(new)
    model, warnings = await _model_facts(site, values)
    warnings += site.deployment.inspect(new, model)
    capacity: tuple[str, ...] = ()
    fits = site.deployment.capacity(values, model, memory_bytes) if model is not None else None
    if fits is not None:
        capacity = fits.sentences()
        if not fits.fits and not values["context_length"]:
            warnings += (f"the pool holds {fits.tokens:,} of the model's {fits.context_length:,} tokens",)
        elif not fits.fits:
            warnings += (f"context_length {fits.context_length:,} is more than the {fits.tokens:,} tokens of the pool",)
    changed = differences(site.deployment, base, new)
    if any(difference.name == "memory_fraction" for difference in changed):
        told = memory_window(
            tried_fractions(site.deployment, await read_generations(site)), float(values["memory_fraction"])
        )
        warnings += (told,) if told is not None else ()
    return ChangePlan(
        host=site.connection.target.name,
        base_sha=settings_file_sha(base),
        differences=changed,
        text=new,
        capacity=capacity,
        warnings=warnings,
        requests_in_flight=in_flight,
        values=values,
        table=site.deployment.settings,
    )


async def _model_facts(site: Site, values: Mapping[str, Any]) -> tuple[ModelFacts | None, tuple[str, ...]]:
    """What the model's and the drafter's config.json on the box say, and a warning for one that cannot be read."""
    path, drafter_path = str(values["path"]), str(values["drafter"])
    if not path.startswith("/") and site.settings_file:
        return None, (f"{path} is no folder on the box: what fits cannot be told",)
    try:
        target = json.loads(await site.files.read(f"{path}/config.json"))
        drafter = None
        if drafter_path.startswith("/") or (drafter_path and not site.settings_file):
            drafter = json.loads(await site.files.read(f"{drafter_path}/config.json"))
    except NoSuchFile as error:
        return None, (f"{error}; the engine will refuse it",)
    except ValueError:
        return None, (f"config.json of {path} or its drafter is no JSON; the engine will refuse it",)
    try:
        facts = model_facts(target, drafter)
    except UsageError as error:
        if not site.settings_file:
            raise
        return None, (f"{error}: what fits cannot be told",)  # another engine may know more models than we do
    return replace(facts, weight_bytes=await _weight_bytes(site, path)), ()


async def _weight_bytes(site: Site, folder: str) -> int | None:
    """Bytes of all shards together, by the index that the folder holds; None without one."""
    if not site.settings_file:
        return None  # the bundled engine's rule leaves the weights out
    try:
        index = json.loads(await site.files.read(f"{folder}/model.safetensors.index.json"))
    except (NoSuchFile, ValueError):
        return None
    total = index.get("metadata", {}).get("total_size")
    return total if isinstance(total, int) else None


# --- apply


async def find_strays(site: Site, plan: ChangePlan) -> tuple[Stray, ...]:
    """Processes on the box that would stop this change: to be shown, and ended only on consent (`apply(end=…)`)."""
    request_id = new_request_id()
    agent = await _put_agent(site)
    file = f"{site.applies}/{request_id}.request.json"
    request = _request(site, plan, await read_base(site), operator(), Choices())
    await site.files.upload(json.dumps(request).encode(), file)
    asked = await site.files.run([site.python, agent, "--state", site.state, "strays", request_id])
    await site.files.run(["rm", "-f", "--", file])
    if asked.exit_status != 0:
        raise failed("the processes there cannot be told", asked.stderr, asked.exit_status, plan.host)
    return tuple(Stray(**one) for one in json.loads(asked.stdout))


async def apply(
    site: Site,
    plan: ChangePlan,
    *,
    who: str | None = None,
    request_id: str | None = None,
    choices: Choices | None = None,
) -> AsyncIterator[Phase | Outcome]:
    """Stage the plan and follow it to its end; the last item is the Outcome.

    `request_id` makes it idempotent: the same id again only reports. Raises LinkError only before the box has the
    request; afterwards a link that stays down gives an Outcome "unknown".
    """
    request_id = request_id or new_request_id()
    if not await site.files.exists(f"{site.applies}/{request_id}.json"):
        await _hand_over(site, plan, who or operator(), request_id, choices or Choices())
    async for item in follow(site, request_id):
        yield item


async def say(site: Site, request_id: str, word: Literal["confirm", "revert"]) -> bool:
    """The operator's word on a change that waits for one. False: too late, the box had decided; `follow` tells how."""
    asked = await site.files.run([site.python, "-", "--state", site.state, word, request_id], input=AGENT.read_bytes())
    if asked.exit_status not in (0, 3):
        raise failed(f"{word} did not reach the change", asked.stderr, asked.exit_status, site.connection.target.name)
    return asked.exit_status == 0


async def change_under_way(site: Site) -> UnderWay | None:
    """The change that the box works on now, whoever asked for it; None where there is none."""
    try:
        report = json.loads(await site.files.read(f"{site.state}/apply.json"))
    except NoSuchFile:
        return None
    if report["status"] != "running":
        return None
    return UnderWay(report["request_id"], report["who"], report["phases"][-1]["name"] == "waiting")


async def waiting_change(site: Site) -> str:
    """The request id of the change that waits for the operator's word. Raises UsageError where none does."""
    now = await change_under_way(site)
    if now is None or not now.waits:
        raise UsageError(
            "no change waits for a word",
            where=site.connection.target.name,
            mend="ddtree history tells how the last one ended",
        )
    return now.request_id


async def follow(site: Site, request_id: str, *, only_look: bool = False) -> AsyncIterator[Phase | Outcome]:
    """Phases of a request that the box has, from its first one, and at last its Outcome.

    A request that nobody there works on any more is taken up again, so that it comes to an end, unless `only_look`.
    """
    began = heard = time.monotonic()
    told = 0
    last: dict[str, Any] | None = None
    while True:
        try:
            report = json.loads(await site.files.read(f"{site.applies}/{request_id}.json"))
        except NoSuchFile:
            if time.monotonic() - began > FIRST_SIGN_S:
                yield Outcome("unknown", request_id, "the box did not take up the request")
                return
        except LinkError:
            try:
                await asyncio.wait_for(site.connection.link.wait_up(), site.limits.whole_s)
                continue
            except (LinkError, TimeoutError):
                yield Outcome("unknown", request_id, "the link was lost; the box goes on alone, ask again")
                return
        else:
            heard = time.monotonic() if report != last else heard
            last = report
            phases = tuple(Phase(one["name"], one["elapsed_s"], one["text"]) for one in report["phases"])
            for phase in phases[told:]:
                yield replace(phase, left_s=report.get("left_s")) if phase.name == "waiting" else phase
            told = len(phases)
            if report["status"] != "running":
                yield _outcome(request_id, report, phases)
                return
            if time.monotonic() - heard > SILENT_S and not only_look:
                heard = time.monotonic()
                await _see_to_it(site, request_id)
        waits = last is not None and last["phases"][-1]["name"] == "waiting"  # for as long as the operator gave it
        if last is not None and not waits and time.monotonic() - began > site.limits.whole_s:
            yield Outcome("unknown", request_id, "the box still works on it, ask again")
            return
        await asyncio.sleep(POLL_S)


def _outcome(request_id: str, report: Mapping[str, Any], phases: tuple[Phase, ...]) -> Outcome:
    return Outcome(report["status"], request_id, report["reason"], report["generation"], report["settings"], phases)


async def _hand_over(site: Site, plan: ChangePlan, who: str, request_id: str, choices: Choices) -> None:
    """Put the request and the program that does it on the box, and start it as a job of its own."""
    base = await read_base(site)
    agent = await _put_agent(site)
    request = _request(site, plan, base, who, choices)
    await site.files.upload(json.dumps(request, indent=2).encode(), f"{site.applies}/{request_id}.request.json")
    job = [site.python, agent, "--state", site.state, "run", request_id]
    started = await site.connection.run(site.manager.detached_argv(f"ddtree-apply-{request_id}", job))
    if started.exit_status != 0:
        raise failed("the change could not be started there", started.stderr, started.exit_status, plan.host)


async def _put_agent(site: Site) -> str:
    """The program of this console's release on the box, by the hash in its name."""
    files, program = site.files, AGENT.read_bytes()
    agent = f"{site.state}/agents/apply-{hashlib.sha256(program).hexdigest()[:12]}.py"
    made = await files.run(["mkdir", "-p", "-m", "700", "--", f"{site.state}/agents", site.applies])
    if made.exit_status != 0:
        raise failed(f"{site.state} cannot be made", made.stderr, made.exit_status, site.connection.target.name)
    if not await files.exists(agent):
        await files.upload(program, agent, mode=0o700)
    return agent


async def _see_to_it(site: Site, request_id: str) -> None:
    """Start the request's job once more. While the first one lives this changes nothing (its name is taken, or the lock);
    a change whose program was killed, or cut short by a reboot, is taken back by it."""
    job = [site.python, await _put_agent(site), "--state", site.state, "run", request_id]
    await site.connection.run(site.manager.detached_argv(f"ddtree-apply-{request_id}", job))


def _request(site: Site, plan: ChangePlan, base: str, who: str, choices: Choices) -> dict[str, Any]:
    """All that agent/apply.py needs: it knows no scopes, no units and no settings, only argument lists and values."""
    manager, facts = site.manager, site.connection.facts
    journal = journal_argv(
        manager.journal_source(), systemd_version=facts.systemd_version, uid=facts.uid, lines=JOURNAL_LINES
    )
    return {
        "who": who,
        "what": _what(plan),
        "unit": manager.unit,
        "in_flight": plan.requests_in_flight,
        "on_in_flight": choices.on_in_flight,
        "confirm_s": choices.confirm_s,
        "end": [asdict(stray) for stray in choices.end],
        "settings": site.settings,
        "generations": site.generations,
        "suffix": site.deployment.suffix,
        "base_sha": plan.base_sha,
        "text": plan.text,
        "commands": {
            **{verb: manager.verb_argv(verb) for verb in VERBS},
            "state": manager.state_argv(),
            "journal": journal,
            "check": site.deployment.check_argv(site.python) if site.limits.dry_run else [],
        },
        "identifier": site.deployment.identifier,
        "new": _endpoint(site, plan.text),
        "old": _endpoint(site, base),
        "limits": {
            "stop_s": site.limits.stop_s,
            "start_s": site.limits.start_s,
            # An engine that does not tell its manager when it is ready gets the time to load here.
            "ready_s": site.limits.start_s if site.settings_file else site.limits.ready_s,
            "soak_s": site.limits.soak_s,
            "drain_s": site.limits.drain_s,
            "whole_s": site.limits.whole_s,
        },
    }


def _what(plan: ChangePlan) -> str:
    """The change in words, for whoever finds the box busy; the value of a secret is not in them."""
    secret = {setting.name for setting in plan.table if setting.secret}
    return ", ".join(
        one.name if one.name in secret else f"{one.name} {one.old} to {one.new}" for one in plan.differences
    )


async def restart_kit(site: Site, who: str, planned: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """What a playbook on the box needs to change settings by the transaction, and to put them back.

    `{"state", "request": the one that would bring up the settings in force, "values": these, "starts": […]}`. `planned` are
    the changes it is going to make (leaf name -> value), one entry a start: each comes back in "starts" as `{"changes",
    "text": the whole file it makes, "new": how to reach and check that engine}`, or as `{"changes", "refused": why}`.
    """
    base = await read_base(site)
    now = ChangePlan(host=site.connection.target.name, base_sha=settings_file_sha(base), differences=(), text=base)
    return {
        "state": site.state,
        "request": {**_request(site, now, base, who, Choices()), "what": "settings that a playbook tries"},
        "values": site.deployment.values(base),
        "starts": [await _planned_start(site, base, changes) for changes in planned],
    }


async def _planned_start(site: Site, base: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    try:
        text = site.deployment.edit(base, parse_changes(changes, site.deployment.settings))
        await _plan(site, base, text, None, None)
    except UsageError as refusal:
        return {"changes": dict(changes), "refused": str(refusal)}
    return {"changes": dict(changes), "text": text, "new": _endpoint(site, text)}


def _endpoint(site: Site, text: str) -> dict[str, Any]:
    """How to reach the engine that this file makes, and what must be found there."""
    values = site.deployment.values(text)
    endpoint = site.deployment.endpoint(text)
    context = int(values["context_length"]) or CANARY_TOKENS + 1
    return {
        "host": endpoint.host,
        "port": endpoint.port,
        "api_key_file": endpoint.api_key_file,
        "api_key": endpoint.api_key,
        "expect": site.deployment.read_back(text),
        "canary_tokens": max(1, min(CANARY_TOKENS, context - 1)),
        **site.deployment.gate(),
    }


def new_request_id() -> str:
    """`20261129T182900-3f2a91c0`: sorts by time, and no two operators make the same."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"


def operator() -> str:
    """Who asks, for the audit: user and machine."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
