"""The characters that the console draws with: one set for capable terminals, one in plain ASCII."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass


@dataclass(frozen=True)
class Glyphs:
    """Every non-text character on screen. `eighths` are bars of growing width, `levels` of growing height."""

    ascii: bool
    dot: str
    ring: str
    looked_up: str
    looked_up_kept: str
    yes: str
    no: str
    warn: str
    up: str
    down: str
    level: str
    pointer: str
    bar: str
    track: str
    eighths: str
    levels: str
    rule: str
    divider: str
    middle_dot: str
    ellipsis: str
    arrow: str
    times: str
    restart: str
    above: str
    below: str
    branch_first: str  # first of several children, on the parent's line
    branch_only: str
    branch_next: str
    branch_last: str
    branch_pass: str
    whisker: str
    whisker_low: str
    whisker_high: str


UNICODE = Glyphs(
    ascii=False,
    dot="●",
    ring="○",
    looked_up="◇",
    looked_up_kept="◆",
    yes="✓",
    no="✗",
    warn="▲",
    up="▴",
    down="▾",
    level="▪",
    pointer="▸",
    bar="█",
    track="░",
    eighths=" ▏▎▍▌▋▊▉█",
    levels=" ▁▂▃▄▅▆▇█",
    rule="─",
    divider="│",
    middle_dot="·",
    ellipsis="…",
    arrow="→",
    times="×",
    restart="⟳",
    above="≥",
    below="≤",
    branch_first="─┬─",
    branch_only="───",
    branch_next=" ├─",
    branch_last=" └─",
    branch_pass=" │ ",
    whisker="─",
    whisker_low="├",
    whisker_high="┤",
)

ASCII = Glyphs(
    ascii=True,
    dot="*",
    ring="o",
    looked_up="=",
    looked_up_kept="#",
    yes="ok",
    no="x",
    warn="!",
    up="^",
    down="v",
    level="=",
    pointer=">",
    bar="#",
    track=".",
    eighths=" #",
    levels=" .:-=+*%#",
    rule="-",
    divider="|",
    middle_dot="-",
    ellipsis="...",
    arrow="->",
    times="x",
    restart="R",
    above=">=",
    below="<=",
    branch_first="-+-",
    branch_only="---",
    branch_next=" +-",
    branch_last=" `-",
    branch_pass=" | ",
    whisker="-",
    whisker_low="|",
    whisker_high="|",
)


def glyphs_for(ascii_only: bool) -> Glyphs:
    """The set to draw with."""
    return ASCII if ascii_only else UNICODE


def shown(text: str, glyphs: Glyphs) -> str:
    """`text` from the box made safe to print: every control or invisible character is written out, none is sent.

    ESC and its kind would steer the operator's terminal, and a bidirectional override would reorder what is read.
    """
    if text.isprintable() and (not glyphs.ascii or text.isascii()):
        return text
    return "".join(_shown_character(character, glyphs) for character in text)


def _shown_character(character: str, glyphs: Glyphs) -> str:
    code = ord(character)
    if character == "\t":
        return "    "
    if code < 0x20 or code == 0x7F:
        if glyphs.ascii:
            return f"^{chr(code ^ 0x40)}"
        return "␡" if code == 0x7F else chr(0x2400 + code)
    if unicodedata.category(character) == "Zs":
        return " "
    if character.isprintable():
        return character if not glyphs.ascii or code < 0x80 else "?"
    return f"<U+{code:04X}>"
