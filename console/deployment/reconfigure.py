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
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from console.box.connection import Connection
from console.box.errors import LinkError, NoSuchFile
from console.box.journal import journal_argv
from console.box.services import ServiceManager, Verb
from console.box.unit_file import STOP_TIMEOUT_S
from console.deployment.base import Deployment, ModelFacts
from console.deployment.bundled import BUNDLED, model_facts
from console.deployment.change import ChangePlan, Generation, Outcome, Phase
from console.deployment.settings import parse_changes
from console.deployment.settings_file import complete, differences, edit_toml, settings_file_sha, to_read_back
from console.errors import ExitCode, OperatorError, UsageError

AGENT = Path(__file__).parents[1] / "agent" / "apply.py"
POLL_S = 0.25
FIRST_SIGN_S = 30.0  # the box has taken up the request by then, or never will
CANARY_TOKENS = 8
JOURNAL_LINES = 200
VERBS: tuple[Verb, ...] = ("start", "stop", "reset-failed")


class ChangeError(OperatorError):
    """The settings cannot be read or changed."""

    exit_code = ExitCode.PRECONDITION


@dataclass(frozen=True)
class Limits:
    """How long the box gives each part of the gate, in seconds."""

    stop_s: float = STOP_TIMEOUT_S + 30.0
    start_s: float = 1800.0  # big models load for many minutes; the engine tells which phase it is in
    ready_s: float = 30.0
    soak_s: float = 2.0

    @property
    def whole_s(self) -> float:
        """Longer than any transaction can take, the way back included."""
        return 2 * (self.stop_s + self.start_s + self.ready_s + self.soak_s) + 600.0


@dataclass(frozen=True)
class Site:
    """One engine to reconfigure: the link, its service manager, and what kind of engine it is."""

    connection: Connection
    manager: ServiceManager
    deployment: Deployment = BUNDLED
    limits: Limits = field(default_factory=Limits)

    @property
    def applies(self) -> str:
        """The folder of requests and their reports on the box."""
        return f"{self.manager.layout.state}/applies"


# --- plan: nothing is touched


async def read_base(site: Site) -> str:
    """The settings file on the box. Raises ChangeError (exit 4) where nothing is installed."""
    try:
        return (await site.connection.read(site.manager.layout.settings)).decode()
    except NoSuchFile as error:
        raise ChangeError(
            f"no settings at {site.manager.layout.settings}",
            where=site.connection.target.name,
            mend=f"install the engine first: ddtree install {site.connection.target.name}",
        ) from error


async def plan(
    site: Site, changes: Mapping[str, Any], *, in_flight: int | None = None, memory_bytes: int | None = None
) -> ChangePlan:
    """What `changes` (leaf name -> text or value) would do. Raises UsageError for any that is wrong.

    `in_flight` is the number of requests a restart would end; `memory_bytes` what the engine may take its share of.
    Both are None where they are not known.
    """
    base = await read_base(site)
    new = edit_toml(base, parse_changes(changes, site.deployment.settings), site.deployment.settings)
    return await _plan(site, base, new, in_flight, memory_bytes)


async def plan_rollback(site: Site, *, in_flight: int | None = None, memory_bytes: int | None = None) -> ChangePlan:
    """Back to the settings that were in force before the present ones. Raises UsageError when there are none."""
    base = await read_base(site)
    held = [entry for entry in await _generations(site) if entry["outcome"] in ("installed", "confirmed")]
    while held and held[-1]["text"] == base:
        held.pop()
    if not held:
        raise UsageError("there are no earlier settings to go back to", where=site.connection.target.name)
    return await _plan(site, base, held[-1]["text"], in_flight, memory_bytes)


async def _plan(site: Site, base: str, new: str, in_flight: int | None, memory_bytes: int | None) -> ChangePlan:
    values = complete(new, site.deployment.settings)
    model, warnings = await _model_facts(site, values)
    site.deployment.check(values, model)
    capacity: tuple[str, ...] = ()
    if model is not None:
        fits = site.deployment.capacity(values, model, memory_bytes)
        capacity = fits.sentences()
        if not fits.fits and not values["context_length"]:
            warnings += (f"the pool holds {fits.tokens:,} of the model's {fits.context_length:,} tokens",)
        elif not fits.fits:
            warnings += (f"context_length {fits.context_length:,} is more than the {fits.tokens:,} tokens of the pool",)
    return ChangePlan(
        host=site.connection.target.name,
        base_sha=settings_file_sha(base),
        differences=differences(base, new, site.deployment.settings),
        text=new,
        capacity=capacity,
        warnings=warnings,
        requests_in_flight=in_flight,
    )


async def _model_facts(site: Site, values: Mapping[str, Any]) -> tuple[ModelFacts | None, tuple[str, ...]]:
    """What the model's and the drafter's config.json on the box say, and a warning for one that cannot be read."""
    try:
        target = json.loads(await site.connection.read(f"{values['path']}/config.json"))
        drafter = None
        if values["drafter"]:
            drafter = json.loads(await site.connection.read(f"{values['drafter']}/config.json"))
    except NoSuchFile as error:
        return None, (f"{error}; the engine will refuse it",)
    return model_facts(target, drafter), ()


# --- apply


async def apply(
    site: Site, plan: ChangePlan, *, who: str | None = None, request_id: str | None = None
) -> AsyncIterator[Phase | Outcome]:
    """Stage the plan and follow it to its end; the last item is the Outcome.

    `request_id` makes it idempotent: the same id again only reports. Raises LinkError only before the box has the
    request; afterwards a link that stays down gives an Outcome "unknown".
    """
    request_id = request_id or new_request_id()
    if not await site.connection.exists(f"{site.applies}/{request_id}.json"):
        await _hand_over(site, plan, who or operator(), request_id)
    async for item in follow(site, request_id):
        yield item


async def follow(site: Site, request_id: str) -> AsyncIterator[Phase | Outcome]:
    """Phases of a request that the box has, from its first one, and at last its Outcome."""
    began = time.monotonic()
    told = 0
    seen = False
    while True:
        try:
            report = json.loads(await site.connection.read(f"{site.applies}/{request_id}.json"))
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
            seen = True
            phases = tuple(Phase(one["name"], one["elapsed_s"], one["text"]) for one in report["phases"])
            for phase in phases[told:]:
                yield phase
            told = len(phases)
            if report["status"] != "running":
                yield _outcome(request_id, report, phases)
                return
        if seen and time.monotonic() - began > site.limits.whole_s:
            yield Outcome("unknown", request_id, "the box still works on it, ask again")
            return
        await asyncio.sleep(POLL_S)


def _outcome(request_id: str, report: Mapping[str, Any], phases: tuple[Phase, ...]) -> Outcome:
    return Outcome(report["status"], request_id, report["reason"], report["generation"], report["settings"], phases)


async def _hand_over(site: Site, plan: ChangePlan, who: str, request_id: str) -> None:
    """Put the request and the program that does it on the box, and start it as a job of its own."""
    connection, layout = site.connection, site.manager.layout
    base = await read_base(site)
    program = AGENT.read_bytes()
    agent = f"{layout.state}/agents/apply-{hashlib.sha256(program).hexdigest()[:12]}.py"
    await connection.run(["mkdir", "-p", "-m", "700", "--", f"{layout.state}/agents", site.applies])
    if not await connection.exists(agent):
        await connection.upload(program, agent, mode=0o700)
    request = _request(site, plan, base, who)
    await connection.upload(json.dumps(request, indent=2).encode(), f"{site.applies}/{request_id}.request.json")
    job = [layout.python, agent, "--state", layout.state, "run", request_id]
    started = await connection.run(site.manager.detached_argv(f"ddtree-apply-{request_id}", job))
    if started.exit_status != 0:
        said = started.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ChangeError(
            f"the change could not be started there: {said[-1] if said else started.exit_status}", where=plan.host
        )


def _request(site: Site, plan: ChangePlan, base: str, who: str) -> dict[str, Any]:
    """All that agent/apply.py needs: it knows no scopes, no units and no settings, only argument lists and values."""
    manager, facts = site.manager, site.connection.facts
    journal = journal_argv(
        manager.journal_source(), systemd_version=facts.systemd_version, uid=facts.uid, lines=JOURNAL_LINES
    )
    return {
        "who": who,
        "in_flight": plan.requests_in_flight,
        "settings": manager.layout.settings,
        "generations": manager.layout.generations,
        "base_sha": plan.base_sha,
        "text": plan.text,
        "commands": {
            **{verb: manager.verb_argv(verb) for verb in VERBS},
            "state": manager.state_argv(),
            "journal": journal,
        },
        "identifier": site.deployment.identifier,
        "new": _endpoint(site, plan.text),
        "old": _endpoint(site, base),
        "limits": {
            "stop_s": site.limits.stop_s,
            "start_s": site.limits.start_s,
            "ready_s": site.limits.ready_s,
            "soak_s": site.limits.soak_s,
        },
    }


def _endpoint(site: Site, text: str) -> dict[str, Any]:
    """How to reach the engine that this file makes, and what must be found there."""
    values = complete(text, site.deployment.settings)
    endpoint = site.deployment.endpoint(values)
    context = int(values["context_length"]) or CANARY_TOKENS + 1
    return {
        "host": endpoint.host,
        "port": endpoint.port,
        "api_key_file": endpoint.api_key_file,
        "expect": to_read_back(text, site.deployment.settings),
        "canary_tokens": max(1, min(CANARY_TOKENS, context - 1)),
    }


# --- history


async def history(site: Site) -> tuple[Generation, ...]:
    """Every settings generation on the box, newest first, each with what it changed from the one in force before it."""
    found: list[Generation] = []
    in_force: str | None = None
    for entry in await _generations(site):
        changed = differences(in_force, entry["text"], site.deployment.settings) if in_force is not None else ()
        found.append(
            Generation(
                number=entry["number"],
                sha=entry["sha"],
                when=entry["when"],
                who=entry["who"],
                outcome=entry["outcome"],
                request_id=entry["request_id"],
                differences=changed,
            )
        )
        if entry["outcome"] in ("installed", "confirmed"):
            in_force = entry["text"]
    return tuple(reversed(found))


async def _generations(site: Site) -> list[dict[str, Any]]:
    """agent/apply.py's history, oldest first, with each file's text."""
    layout = site.manager.layout
    await read_base(site)
    asked = await site.connection.run(
        [layout.python, "-", "--state", layout.state, "history"], input=AGENT.read_bytes()
    )
    if asked.exit_status != 0:
        said = asked.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ChangeError(
            f"the history cannot be read: {said[-1] if said else asked.exit_status}", where=site.connection.target.name
        )
    generations: list[dict[str, Any]] = json.loads(asked.stdout)
    return generations


def new_request_id() -> str:
    """`20261129T182900-3f2a91c0`: sorts by time, and no two operators make the same."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"


def operator() -> str:
    """Who asks, for the audit: user and machine."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
