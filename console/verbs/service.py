"""Verbs that act on the service and its settings: start, stop, restart, rollback, history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from console.box.values import ServiceState
from console.deployment.change import ChangePlan, Choices, Difference, Generation, Outcome, Phase, Stray, UnderWay
from console.errors import ExitCode, UsageError
from console.verbs.on_host import confirm, on_host
from console.verbs.verb import Call
from console.verbs.words import Style, columns, printable

if TYPE_CHECKING:
    from console.host import Host

LONGEST_WAIT_S = 86_400
"""For the operator's word: what a day has not confirmed, nobody will."""
OUTCOME_EXITS = {
    "confirmed": ExitCode.DONE,
    "rejected": ExitCode.USAGE,
    "base_changed": ExitCode.BASE_CHANGED,
    "busy": ExitCode.BUSY,
    "rolled_back": ExitCode.ROLLED_BACK,
    "rollback_failed": ExitCode.ROLLBACK_FAILED,
    "unknown": ExitCode.OUTCOME_UNKNOWN,
}


async def start(call: Call) -> ExitCode:
    """Start the service, with a settings change first where --set asks for one."""
    return await _act(call, interrupts=False)


async def stop(call: Call) -> ExitCode:
    """Stop the service."""
    return await _act(call, interrupts=True)


async def restart(call: Call) -> ExitCode:
    """Restart the service, with a settings change where --set asks for one."""
    return await _act(call, interrupts=True)


async def rollback(call: Call) -> ExitCode:
    """Go back to the settings before the ones in force."""
    async with on_host(call) as host:
        host.permit("rollback")  # before it is looked for what there is to go back to
        plan = await host.plan_rollback()
        return await _apply(call, host, plan)


async def confirm_change(call: Call) -> ExitCode:
    """Keep the settings that wait for a word."""
    return await _say(call, "confirm")


async def revert_change(call: Call) -> ExitCode:
    """Take back the settings that wait for a word; exit 0 when the old ones serve again."""
    return await _say(call, "revert")


async def _say(call: Call, word: Literal["confirm", "revert"]) -> ExitCode:
    async with on_host(call) as host:
        async for item in host.say(word):
            if isinstance(item, Outcome):
                call.say(outcome_json(host.name, item), outcome_text(item, call.session.style))
                if word == "revert" and item.status == "rolled_back":
                    return ExitCode.DONE  # it is what was asked for
                if word == "revert" and item.status == "confirmed":
                    return ExitCode.FAILED  # too late
                return OUTCOME_EXITS[item.status]
    raise AssertionError("a change ends with its outcome")


async def history(call: Call) -> ExitCode:
    """Every settings generation on the host, newest first; with --diff, what is different between two of them."""
    async with on_host(call) as host:
        if pair := call.arguments.get("diff"):
            old, new = pair
            changed = await host.diff(old, new)
            call.say(diff_json(host.name, old, new, changed), diff_text(old, new, changed))
            return ExitCode.DONE
        generations = await host.history()
    for_json = {"host": call.text("host"), "generations": [generation_json(g) for g in generations]}
    call.say(for_json, history_text(generations))
    return ExitCode.DONE


async def _act(call: Call, *, interrupts: bool) -> ExitCode:
    changes = call.pairs("set")
    if changes and call.verb.name == "stop":
        raise UsageError("changes no settings", where="stop --set", mend="use restart --set")
    within = call.arguments.get("confirm-within")
    if within is not None and not changes:
        raise UsageError("needs a change", where="--confirm-within", mend="add --set NAME=VALUE")
    if within is not None and not 1 <= within <= LONGEST_WAIT_S:
        raise UsageError(f"{within} is outside 1 to {LONGEST_WAIT_S} seconds", where="--confirm-within")
    async with on_host(call) as host:
        if changes or call.flag("dry-run"):
            plan = await host.plan(changes)
            if call.flag("dry-run"):
                call.say(plan_json(plan), plan_text(plan, call.session.style))
                return ExitCode.DONE
            return await _apply(call, host, plan)
        question = f"{call.verb.name.capitalize()} {host.site.manager.unit} on {host.name}?"
        if interrupts and (change := await host.change_under_way()) is not None:
            call.urge(in_a_change_text(host.name, change, call.verb.name))
        if interrupts and not call.flag("yes") and call.session.ask is not None:
            call.tell(in_flight_text((await host.snapshot()).running))
        if interrupts and not await _agreed(call, host, question):
            return ExitCode.INTERRUPTED
        state = await host.service(call.verb.name)
    call.say({"host": host.name, "service": service_json(state)}, service_text(state, call.session.style))
    wanted = "stopped" if call.verb.name == "stop" else "serving"
    return ExitCode.DONE if state.state == wanted else ExitCode.FAILED


def in_a_change_text(host: str, change: UnderWay, verb: str) -> str:
    """What becomes of a `verb` that ends the engine while a settings change is made there, and what to say first."""
    settle = (
        f"ddtree confirm {host} or ddtree revert {host}"
        if change.waits
        else f"its end (ddtree history {host} tells it)"
    )
    state = "waits for a word" if change.waits else "is under way"
    return (
        f"a settings change by {change.who} {state}: after a {verb} now it goes back to the old settings and starts the "
        f"engine with them; first {settle}"
    )


async def _apply(call: Call, host: Host, plan: ChangePlan) -> ExitCode:
    style = call.session.style
    if not plan.differences:
        raise UsageError("changes nothing: these values are in force already", where=call.verb.name)
    call.tell(plan_text(plan, style))
    if not await _agreed(call, host, "Apply?"):
        return ExitCode.INTERRUPTED
    choices = await _choices(call, host, plan)
    async for item in host.apply(plan, choices):
        if isinstance(item, Outcome):
            call.say(outcome_json(host.name, item), outcome_text(item, style))
            return OUTCOME_EXITS[item.status]
        call.tell(phase_text(item))
        if item.name == "waiting":
            words = f"keep it: ddtree confirm {host.name}   take it back: ddtree revert {host.name}"
            call.urge(f"{item.text}: {words}" if call.session.as_json else words)
    raise AssertionError("an apply ends with its outcome")


async def _choices(call: Call, host: Host, plan: ChangePlan) -> Choices:
    """What only the operator can decide: which processes in the way may be ended, and what becomes of requests in flight.

    `--yes`, and nobody to ask, end no process (the box then refuses the change and names it) and wait for no request.
    """
    ask = None if call.flag("yes") else call.session.ask
    strays = await host.find_strays(plan)
    for stray in strays:
        call.tell(stray_text(stray, call.session.style))
    end: Sequence[Stray] = ()
    if strays and ask is not None and (await ask("End what is in the way? [y/N] ")).strip().lower() in ("y", "yes"):
        end = strays
    wait = False
    if plan.requests_in_flight and ask is not None:
        count = plan.requests_in_flight
        question = f"{count} request{'s' * (count != 1)} in flight: wait until they have ended? [y/N] "
        wait = (await ask(question)).strip().lower() in ("y", "yes")
    confirm_s: int | None = call.arguments.get("confirm-within")
    return Choices(on_in_flight="wait" if wait else "abort", confirm_s=confirm_s, end=end)


def stray_text(stray: Stray, style: Style) -> str:
    """`in the way  process 4321 (python -m engine …) holds port 8765 and 3.2 GB`."""
    port = f"port {stray.port} and " if stray.port is not None else ""
    gpu = f" and {stray.gpu_bytes / 1e9:.1f} GB of GPU memory" if stray.gpu_bytes else ""
    text = f"process {stray.pid} ({printable(stray.command)}) holds {port}{stray.memory_bytes / 1e9:.1f} GB{gpu}"
    return f"{style.doubtful('in the way')}  {text}"


async def _agreed(call: Call, host: Host, question: str) -> bool:
    host.permit(call.verb.name)  # no question about what would be refused
    return await confirm(call, question, type_name=host.name if host.target.production else None)


def service_json(state: ServiceState) -> dict[str, Any]:
    """The `service` part of a status object."""
    return {"state": state.state, "unit": state.unit, "since": state.since, "invocation": state.invocation}


def service_text(state: ServiceState, style: Style) -> str:
    """`serving  ddtree-engine.service (user)  since …`."""
    paint = {"serving": style.good, "failed": style.bad, "start-limit-hit": style.bad}.get(state.state, style.doubtful)
    words = [f"{paint(state.state)}  {state.unit} ({state.scope})"]
    if state.since:
        words.append(f"since {state.since}")
    if state.status_text:
        words.append(printable(state.status_text))
    return "  ".join(words)


def plan_json(plan: ChangePlan) -> dict[str, Any]:
    """What `--dry-run --json` prints: the plan without the file's whole text."""
    return {
        "host": plan.host,
        "base_sha": plan.base_sha,
        "differences": [asdict(difference) for difference in plan.differences],
        "capacity": list(plan.capacity),
        "warnings": list(plan.warnings),
        "restarts": plan.restarts,
        "requests_in_flight": plan.requests_in_flight,
    }


def plan_text(plan: ChangePlan, style: Style) -> str:
    """Diff, arithmetic, warnings, and what is interrupted."""
    lines = [differences_text(plan.differences) or "no setting changes"]
    lines += plan.capacity
    lines += [f"{style.doubtful('warning')} {warning}" for warning in plan.warnings]
    if plan.restarts:
        flight = plan.requests_in_flight
        ends = "" if flight is None else f"; {flight} request{'s' * (flight != 1)} in flight would end"
        lines.append(f"the service restarts{ends}")
    return "\n".join(lines)


def in_flight_text(running: int | None) -> str:
    """What a stop ends, in a sentence."""
    if running is None:
        return "whether requests are in flight is not known"
    if running == 0:
        return "no request is in flight"
    return f"{running} request{'s' * (running != 1)} in flight end{'s' * (running == 1)}"


def value_text(value: object) -> str:
    """A setting's value; an empty one in a word, else nothing would stand beside the arrow."""
    return printable(str(value)) or "(empty)"


def differences_text(differences: Sequence[Difference]) -> str:
    """One line a setting, old and new value aligned."""
    return columns([(d.name, value_text(d.old), "→", value_text(d.new)) for d in differences])


def phase_text(phase: Phase) -> str:
    """`  12.4 s  loading  2 of 4 shards`."""
    text = f"  {printable(phase.text)}" if phase.text else ""
    return f"{phase.elapsed_s:7.1f} s  {phase.name.replace('_', ' ')}{text}"


def outcome_json(host: str, outcome: Outcome) -> dict[str, Any]:
    """The object a settings change ends with."""
    return {
        "host": host,
        "status": outcome.status,
        "request_id": outcome.request_id,
        "reason": outcome.reason,
        "generation": outcome.generation,
        "settings": dict(outcome.settings),
        "phases": [{"name": one.name, "elapsed_s": one.elapsed_s, "text": one.text} for one in outcome.phases],
    }


def outcome_text(outcome: Outcome, style: Style) -> str:
    """`confirmed: generation 4`, or what went wrong in the engine's own words."""
    paint = style.good if outcome.status == "confirmed" else style.bad
    words = paint(outcome.status.replace("_", " "))
    if outcome.generation is not None:
        words += f": generation {outcome.generation}"
    return f"{words}: {printable(outcome.reason)}" if outcome.reason else words


def generation_json(generation: Generation) -> dict[str, Any]:
    """One entry of `ddtree history --json`."""
    return asdict(generation)


def diff_json(host: str, old: int, new: int, changed: Sequence[Difference]) -> dict[str, Any]:
    """What `ddtree history --diff A B --json` prints."""
    return {"host": host, "from": old, "to": new, "differences": [asdict(difference) for difference in changed]}


def diff_text(old: int, new: int, changed: Sequence[Difference]) -> str:
    """One line a setting under the two numbers, or that there is nothing to show."""
    if not changed:
        return f"generations {old} and {new} hold the same settings"
    return f"generation {old} → {new}\n{differences_text(changed)}"


def history_text(generations: Sequence[Generation]) -> str:
    """One line a generation, what it changed behind it."""
    rows = [
        (
            str(g.number),
            g.when,
            g.who,
            g.outcome,
            ", ".join(f"{d.name} {value_text(d.old)} → {value_text(d.new)}" for d in g.differences),
        )
        for g in generations
    ]
    return columns(rows, ("generation", "when", "who", "outcome", "changes")) if rows else "no settings yet"
