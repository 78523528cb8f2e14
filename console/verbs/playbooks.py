"""Verbs over playbook files and their runs: playbooks, check, run, attach, cancel."""

from __future__ import annotations

from pathlib import Path

from console.command_line import nearest
from console.errors import ExitCode, UsageError
from console.experiments.playbook import Playbook, catalogue, read_playbook
from console.verbs.verb import Call
from console.verbs.words import Style, columns, lasted


async def playbooks(call: Call) -> ExitCode:
    """The catalogue: built-in scripts and the operator's own, each with its validity."""
    found = catalogue()
    call.say({"playbooks": [playbook.to_json() for playbook in found]}, catalogue_text(found, call.session.style))
    return ExitCode.DONE


def catalogue_text(found: tuple[Playbook, ...], style: Style) -> str:
    """One line a playbook, and under it what is wrong with it."""
    rows = []
    for playbook in found:
        defaults = {param.name: param.default for param in playbook.params if not param.required}
        estimate = playbook.estimate_s(defaults)
        rows.append(
            (
                playbook.key or "-",
                playbook.id,
                "valid" if playbook.valid else "not valid",
                "" if estimate is None else f"about {lasted(estimate)}",
                _restarts(playbook),
                playbook.title,
            )
        )
    lines = columns(rows).splitlines()
    out = []
    for playbook, line in zip(found, lines, strict=True):
        out.append(line if playbook.valid else style.bad(line))
        out += [f"     {fault}" for fault in playbook.faults]
    return "\n".join(out) if out else "no playbooks"


def _restarts(playbook: Playbook) -> str:
    if not playbook.restarts():
        return ""
    where = f" on {' and '.join(playbook.restarts_on)}" if playbook.restarts_on else ""
    return f"restarts the service{where}"


async def check(call: Call) -> ExitCode:
    """Header, syntax and honesty of script files; exit 2 when one of them may not be uploaded."""
    judged = [read_playbook(path) for path in call.paths("file")]
    for playbook in judged:
        call.say(check_json(playbook), check_text(playbook, call.session.style))
    bad = [playbook for playbook in judged if not playbook.valid]
    if bad and not call.session.as_json:  # the object said it already
        raise UsageError(str(bad[0].faults[0]), where=str(bad[0].path))
    return ExitCode.USAGE if bad else ExitCode.DONE


def check_json(playbook: Playbook) -> dict[str, object]:
    """One file's verdict."""
    return {
        "file": str(playbook.path),
        "id": playbook.id,
        "valid": playbook.valid,
        "faults": [fault.to_json() for fault in playbook.faults],
        "warnings": [fault.to_json() for fault in playbook.warnings],
    }


def check_text(playbook: Playbook, style: Style) -> str:
    """Each fault with the line of the script it stands in, and a caret under the place."""
    lines = [f"{playbook.path}: {style.good('valid') if playbook.valid else style.bad('not valid')}"]
    for word, faults in ((style.bad("fault"), playbook.faults), (style.doubtful("warning"), playbook.warnings)):
        for fault in faults:
            lines.append(f"{word} {fault}")
            if fault.source.strip():
                lines += [f"  {fault.source}", f"  {fault.caret}"]
    return "\n".join(lines)


def find_playbook(name: str) -> Playbook:
    """The playbook called `name` in the catalogue, or the script file of that path. Raises UsageError, nearest named."""
    if name.endswith(".py") or "/" in name:
        return read_playbook(Path(name))
    known: dict[str, Playbook] = {}
    for playbook in catalogue():
        known.setdefault(playbook.id, playbook)  # a built-in one is not taken over by a file of its name
    if name in known:
        return known[name]
    near = nearest(name, known)
    raise UsageError(
        "no such playbook", where=name, mend=f"did you mean {near}?" if near else f"known: {', '.join(known)}"
    )
