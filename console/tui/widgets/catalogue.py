"""The catalogue of playbooks: what each answers, what it costs, what it does to the service, and what is wrong with it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from textual.content import Content

from console.experiments.params import Param
from console.experiments.playbook import Playbook
from console.tui.glyphs import Glyphs, shown
from console.tui.tones import BAD, GOOD, KEY, PLAIN, QUIET, STRONG, WARN, Piece, within
from console.tui.widgets.fields import shortened
from console.tui.words import duration

_EFFECTS = {
    "load": "puts load on the engine",
    "restarts_service": "restarts the service",
    "edits_unit": "edits the unit",
    "flushes_cache": "flushes the prefix cache",
    "writes_gpu_clock": "sets GPU clocks",
}


def title_width(playbooks: Sequence[Playbook]) -> int:
    """Columns of the titles, so that what stands beside them is aligned."""
    return max((len(playbook.title or playbook.id) for playbook in playbooks), default=0)


def draw_item(playbook: Playbook, width: int, glyphs: Glyphs, *, titles: int, here: bool = False) -> list[Content]:
    """One line, with the summary where it fits; for a broken script the place, and its source line below.

    `titles` is the width of the column of titles.
    """
    mark = glyphs.pointer if here else " "
    title = shown(playbook.title or playbook.id, glyphs)
    parts: list[Piece] = [
        (f" {mark} ", KEY),
        (f"{playbook.key or '-':<2}", KEY),
        (f"{title:<{titles}}  ", STRONG if here else PLAIN),
    ]
    if not playbook.valid:
        fault = playbook.faults[0]
        parts.append((f"{glyphs.no} {shown(str(fault), glyphs)}", BAD))
        return [Content.assemble(*parts), Content.styled(f"      {shown(fault.source.strip(), glyphs)}", QUIET)]
    parts.append((f"{glyphs.yes} ", GOOD))
    parts.append((f"{estimate_words(playbook):<6}", QUIET))
    effect = [Content.styled(f"{glyphs.restart} restarts", WARN)] if "restarts_service" in playbook.effects else []
    summary = Content.styled(shown(playbook.summary, glyphs), QUIET)
    return [within([Content.assemble(*parts), *effect, summary], width)]


def draw_details(playbook: Playbook, width: int, glyphs: Glyphs) -> list[Content]:
    """Everything the header says, or every fault with its source line and a caret under the place."""
    lines = [
        Content.assemble(
            (f" {shown(playbook.title or playbook.id, glyphs)}", STRONG), (f"   {playbook.version}", QUIET)
        ),
        *_wrapped(playbook.summary, width, glyphs, PLAIN),
        Content.styled(f" {shown(playbook.path.name, glyphs)}", QUIET),
    ]
    if not playbook.valid:
        lines.append(Content(""))
        for fault in playbook.faults:
            lines.append(Content.styled(f" {glyphs.no} {shown(str(fault), glyphs)}", BAD))
            lines.append(Content.styled(f"   {shown(fault.source, glyphs)}", PLAIN))
            lines.append(Content.styled(f"   {fault.caret}", BAD))
        lines.append(Content.styled(" Nothing of it is uploaded before this is mended.", QUIET))
        return lines
    lines += [Content(""), _fact("takes about", estimate_words(playbook))]
    effects = [_EFFECTS.get(effect, effect) for effect in playbook.effects] or ["none but load on the engine"]
    lines.append(_fact("effects", ", ".join(effects)))
    if playbook.exclusive:
        lines.append(_fact("needs", "an otherwise idle engine"))
    if playbook.verdicts:
        said = textwrap.wrap(", ".join(playbook.verdicts).replace("_", " "), max(20, width - 14))
        lines += [_fact("can say" if index == 0 else "", line) for index, line in enumerate(said)]
    if playbook.params:
        lines += [Content(""), Content.styled(" parameters", QUIET)]
        lines += _params(playbook.params, width, glyphs)
    return lines


def _params(params: Sequence[Param], width: int, glyphs: Glyphs) -> list[Content]:
    """Name, default and help of each, in columns; a long help goes on below itself."""
    texts = [param_text(param, param.default) or "(empty)" for param in params]
    names, values = max(len(param.name) for param in params), min(24, max(len(text) for text in texts))
    indent = 3 + names + 2 + values + 2
    lines = []
    for param, text in zip(params, texts, strict=True):
        first, *others = textwrap.wrap(shown(param.help, glyphs), max(20, width - indent - 1)) or [""]
        head = f"   {param.name:<{names}}  {shortened(text, values, glyphs):<{values}}  "
        lines.append(Content.assemble((head, PLAIN), (first, QUIET)))
        lines += [Content.styled(" " * indent + line, QUIET) for line in others]
    return lines


def estimate_words(playbook: Playbook, values: Mapping[str, Any] | None = None) -> str:
    """How long a run should take with these values, or the defaults."""
    defaults = {param.name: param.default for param in playbook.params}
    seconds = playbook.estimate_s(values if values is not None else defaults)
    return "-" if seconds is None else duration(seconds)


def effect_sentences(playbook: Playbook, effects: Sequence[str]) -> Sequence[str]:
    """What a run does to the box, for the question before it."""
    return [f"{playbook.title} {_EFFECTS.get(effect, effect)}." for effect in effects]


def param_text(param: Param, value: Any) -> str:
    """A parameter's value as it is typed: lists with commas, truth in words; a secret is never shown."""
    if value is None:
        return ""
    if param.type == "secret":
        return "(not shown)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(f"{part:g}" if isinstance(part, float) else str(part) for part in value)
    return str(value)


def _fact(name: str, text: str) -> Content:
    return Content.assemble((f" {name:<12}", QUIET), (text, PLAIN))


def _wrapped(text: str, width: int, glyphs: Glyphs, tone: str) -> list[Content]:
    return [Content.styled(f" {line}", tone) for line in textwrap.wrap(shown(text, glyphs), max(20, width - 2))]
