"""Pictures of the console on a host that runs, for the docs and for looking at: an SVG of exactly what an operator sees.

`python -m tests.tui.picture demo overview.svg --size 120x36 --wait 30 --keys 1,tab` opens the console on HOST without a
terminal, presses the keys, waits, and writes the picture. `rsvg-convert -o overview.png overview.svg` makes pixels of it.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from console.host import open_host
from console.tui.app import ConsoleApp, known_fleet

BETWEEN_KEYS_S = 1.0
CELL, LINE, BASELINE = 12.2, 24.4, 20.0
"""Width and height of a cell in Textual's pictures, and where in it text stands."""
FONTS = "'DejaVu Sans Mono', Menlo, Consolas, monospace"
_TEXT = re.compile(r'<text class="(\S+)" x="([\d.]+)" y="([\d.]+)" textLength="[\d.]+" ([^>]*)>(.*?)</text>')
_DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))  # (column, row) of each bit of a braille cell
_LEFT, _LOWER = "▏▎▍▌▋▊▉█", "▁▂▃▄▅▆▇"


async def take(host: str, path: Path, size: tuple[int, int], wait_s: float, keys: Sequence[str]) -> None:
    """Write the picture of `host`'s console after `keys` and `wait_s` seconds."""
    operations, fleet = await open_host(host), known_fleet(read_only=False)
    try:
        app = ConsoleApp(operations, fleet)
        async with app.run_test(size=size) as pilot:
            await asyncio.sleep(BETWEEN_KEYS_S * 3)
            for key in keys:
                await pilot.press(key)
                await asyncio.sleep(BETWEEN_KEYS_S)
            await asyncio.sleep(wait_s)
            path.write_text(self_contained(app.export_screenshot(title=f"ddtree {host}")), encoding="utf-8")
    finally:
        await fleet.close()
        await operations.close()


def self_contained(svg: str) -> str:
    """The picture with no font from elsewhere, each word at its own place, dots and bars as shapes: it looks the same
    wherever there is any fixed-width font."""
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: ?Fira Code, monospace", f"font-family: {FONTS}", svg)
    return _TEXT.sub(_pieces, svg)


def _pieces(found: re.Match[str]) -> str:
    style, x, y, rest = found[1], float(found[2]), float(found[3]), found[4]
    text = html.unescape(found[5]).replace("\xa0", " ")
    top = y - BASELINE
    cells = [cell for place, sign in enumerate(text) for cell in _shapes(sign, x + place * CELL, top)]
    path = "".join(f"M{left:.6g} {upper:.6g}h{w:.4g}v{h:.4g}h-{w:.4g}z" for left, upper, w, h in cells)
    shapes = f'<path class="{style}" d="{path}"/>' if cells else ""
    words = "".join(
        f'<text class="{style}" x="{x + word.start() * CELL:.6g}" y="{y:g}" textLength="{len(word[0]) * CELL:.5g}" '
        f"{rest}>{html.escape(word[0], quote=False)}</text>"
        for word in re.finditer(r"[^ ]+", "".join(" " if _drawn(sign) else sign for sign in text))
    )
    return shapes + words


def _drawn(sign: str) -> bool:
    return sign in _LEFT or sign in _LOWER or 0x2800 <= ord(sign) <= 0x28FF


def _shapes(sign: str, x: float, top: float) -> Iterator[tuple[float, float, float, float]]:
    """(left, top, width, height) of what a sign is made of; nothing for one that is text."""
    if not _drawn(sign):
        return
    if sign in _LEFT:
        yield x, top, CELL * (_LEFT.index(sign) + 1) / 8 + 0.2, LINE + 0.2
    elif sign in _LOWER:
        height = LINE * (_LOWER.index(sign) + 1) / 8
        yield x, top + LINE - height, CELL + 0.2, height + 0.2
    else:
        for bit, (column, row) in enumerate(_DOTS):
            if (ord(sign) - 0x2800) >> bit & 1:
                yield x + column * CELL / 2 + 1, top + row * LINE / 4 + 1, CELL / 2 - 1.6, LINE / 4 - 1.6


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("host")
    parser.add_argument("file", type=Path)
    parser.add_argument("--size", default="120x36", help="columns x rows")
    parser.add_argument("--wait", type=float, default=10.0, help="seconds after the last key")
    parser.add_argument("--keys", default="", help="keys to press first, as Textual names them, with commas between")
    given = parser.parse_args()
    columns, rows = (int(part) for part in given.size.split("x"))
    keys = given.keys.split(",") if given.keys else ()
    asyncio.run(take(given.host, given.file, (columns, rows), given.wait, keys))


if __name__ == "__main__":
    main()
