"""Verbs about the engine's being on the box at all: install, uninstall, doctor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from console.errors import ExitCode
from console.verbs.on_host import confirm, on_host
from console.verbs.verb import Call
from console.verbs.words import Style, printable

if TYPE_CHECKING:
    from console.box.doctor import Check
    from console.box.steps import Progress
    from console.box.target import Scope


async def install(call: Call) -> ExitCode:
    """Put a release, its unit and first settings on the host; a second time changes nothing."""
    from console.box.install import InstallRequest
    from console.deployment.bundled import first_settings_with
    from console.deployment.reconfigure import operator

    request = InstallRequest(
        compose=first_settings_with(call.pairs("set")),
        who=operator(),
        model=call.arguments["model"],
        drafter=call.arguments["drafter"],
        python=call.arguments["python"],
    )
    changed = False
    async with on_host(call, scope=cast("Scope | None", call.arguments["scope"])) as host:
        async for step in host.install(request):
            _say_step(call, step)
            changed |= step.changed
        scope, unit = host.site.manager.layout.scope, host.target.unit
    done = f"installed; next: ddtree start {host.name}" if changed else "nothing to change: this release is in place"
    call.say({"step": "done", "changed": changed, "host": host.name, "scope": scope, "unit": unit}, done)
    return ExitCode.DONE


async def uninstall(call: Call) -> ExitCode:
    """Stop the engine and remove what an install put on the host."""
    changed = False
    async with on_host(call, scope=cast("Scope | None", call.arguments["scope"])) as host:
        host.permit("uninstall")
        snapshot = await host.snapshot()
        cost = f"{snapshot.running} requests are running. " if snapshot.running else ""
        question = f"Stop {host.target.unit} on {host.name} and remove its releases, settings, history and runs? {cost}"
        if not await confirm(call, question.rstrip(), type_name=host.name if host.target.production else None):
            return ExitCode.INTERRUPTED
        async for step in host.uninstall():
            _say_step(call, step)
            changed |= step.changed
    call.say({"step": "done", "changed": changed, "host": host.name}, "uninstalled" if changed else "nothing was there")
    return ExitCode.DONE


async def doctor(call: Call) -> ExitCode:
    """Every finding on the host, with its mend; exit 3 when one of them stops the engine from working."""
    async with on_host(call, scope=cast("Scope | None", call.arguments["scope"])) as host:
        checks = await host.examine()
    counts = Counter(check.verdict for check in checks)
    for_json = {
        "host": host.name,
        "checks": [check.to_json() for check in checks],
        "pass": counts["pass"],
        "warn": counts["warn"],
        "fail": counts["fail"],
    }
    call.say(for_json, doctor_text(checks, call.session.style))
    return ExitCode.CHECK_SAYS_NO if counts["fail"] else ExitCode.DONE


def doctor_text(checks: Sequence[Check], style: Style) -> str:
    """Groups with their findings; under each finding that is not well, what to do about it."""
    paint = {"pass": style.good, "warn": style.doubtful, "fail": style.bad}
    wide = max((len(check.name) for check in checks), default=0)
    lines: list[str] = []
    for group in dict.fromkeys(check.group for check in checks):
        lines.append(style.strong(group))
        for check in (check for check in checks if check.group == group):
            lines.append(f"  {paint[check.verdict](check.verdict)}  {check.name:<{wide}}  {printable(check.text)}")
            if check.mend:
                lines.append(f"        {'':<{wide}}  mend: {printable(check.mend)}")
    counts = Counter(check.verdict for check in checks)
    lines.append(f"{counts['pass']} pass, {counts['warn']} warn, {counts['fail']} fail")
    return "\n".join(lines)


def _say_step(call: Call, step: Progress) -> None:
    call.say(step.to_json(), f"{step.step}: {step.text}")
