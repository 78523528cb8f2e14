"""A form as a value: typed fields, what the operator has changed in them, and how each is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from textual.content import Content

from console.tui.glyphs import Glyphs, shown
from console.tui.tones import ACCENT, BAD, PLAIN, QUIET, STRONG, WARN

Check = Callable[[str, str], str | None]
"""(field name, text) -> what is wrong with it, or None."""


@dataclass(frozen=True)
class Field:
    """One field. All values are text, as in the file; `choices` are walked through instead of typed."""

    name: str
    group: str
    value: str  # what it is now
    default: str
    help: str
    allowed: str  # the range in words
    choices: tuple[str, ...] = ()
    secret: bool = False


@dataclass(frozen=True)
class Form:
    """Fields in order, with the texts that differ from `Field.value`, and what is wrong with them."""

    fields: tuple[Field, ...] = ()
    edits: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    in_force: Mapping[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """The field's text as the form stands."""
        return self.edits.get(name, next(one.value for one in self.fields if one.name == name))

    def edited(self, name: str, text: str, check: Check) -> Form:
        """This form with `text` in a field; the old value again is no edit."""
        old = next(one.value for one in self.fields if one.name == name)
        edits = {key: value for key, value in self.edits.items() if key != name}
        faults = {key: value for key, value in self.faults.items() if key != name}
        if text != old:
            edits[name] = text
            fault = check(name, text)
            if fault is not None:
                faults[name] = fault
        return replace(self, edits=edits, faults=faults)

    def turned(self, name: str, step: int, check: Check) -> Form:
        """This form with the field's next (or previous) choice."""
        choices = next(one.choices for one in self.fields if one.name == name)
        if not choices:
            return self
        now = self.text(name)
        place = (choices.index(now) + step) % len(choices) if now in choices else 0
        return self.edited(name, choices[place], check)

    def rows(self) -> list[Field | str]:
        """Fields, and before each group its name."""
        out: list[Field | str] = []
        for one in self.fields:
            if one.group and (not out or _group_of(out[-1]) != one.group):
                out.append(one.group)
            out.append(one)
        return out


def _group_of(row: Field | str) -> str:
    return row if isinstance(row, str) else row.group


def draw_field(form: Form, one: Field, width: int, glyphs: Glyphs, *, here: bool) -> list[Content]:
    """`▸ page_size   16 → 64      in force 16   default 16`, with what is wrong on a line of its own."""
    name_width = max(len(other.name) for other in form.fields) + 2
    new = form.edits.get(one.name)
    mark = glyphs.pointer if here else " "
    room = max(8, width - name_width - 4)  # for what stands in the field
    value = shortened(_value(one, one.value), room if new is None else room // 2 - 2, glyphs)
    parts: list[tuple[str, str]] = [(f" {mark} ", ACCENT), (one.name.ljust(name_width), STRONG if here else PLAIN)]
    if new is None:
        parts.append((_boxed(one, value, here), PLAIN))
    else:
        parts += [
            (f"{value} {glyphs.arrow} ", QUIET),
            (_boxed(one, shortened(_value(one, new), room // 2 - 2, glyphs), here), f"bold {WARN}"),
        ]
    used = sum(len(text) for text, _ in parts)
    column = name_width + 34
    notes = _notes(form, one, width - max(used + 2, column))
    if notes:
        parts.append((" " * max(2, column - used) + notes, QUIET))
    lines = [Content.assemble(*((shown(text, glyphs), tone) for text, tone in parts))]
    fault = form.faults.get(one.name)
    if fault is not None:
        lines.append(Content.styled(f"     {glyphs.no} {shown(fault, glyphs)}", BAD))
    return lines


def shortened(text: str, room: int, glyphs: Glyphs) -> str:
    """`text` in `room` columns: of a path its end is kept, of anything else its beginning."""
    if len(text) <= room:
        return text
    kept = max(1, room - len(glyphs.ellipsis))
    return glyphs.ellipsis + text[-kept:] if "/" in text else text[:kept] + glyphs.ellipsis


def _boxed(one: Field, value: str, here: bool) -> str:
    return f"< {value} >" if here and one.choices else value


def _value(one: Field, text: str) -> str:
    if one.secret and text:
        return "set, not shown"
    return text if text else "(empty)"


def _notes(form: Form, one: Field, room: int) -> str:
    force = form.in_force.get(one.name)
    notes = []
    if force is not None and force != one.value:
        notes.append(f"in force {force}")
    if one.default != one.value:
        notes.append(f"default {one.default or '(empty)'}")
    text = "   ".join(notes)
    return text if len(text) <= room else notes[0] if notes and len(notes[0]) <= room else ""
