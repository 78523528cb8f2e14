"""Pictures of the console on a host that runs, for the docs and for looking at: an SVG of exactly what an operator sees.

`python -m tests.tui.picture demo overview.svg --size 120x36 --wait 30 --keys 1,tab` opens the console on HOST without a
terminal, presses the keys, waits, and writes the picture. `rsvg-convert -o overview.png overview.svg` makes pixels of it.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import re
from collections.abc import Sequence
from pathlib import Path

from console.host import open_host
from console.tui.app import ConsoleApp, known_fleet

BETWEEN_KEYS_S = 1.0
CELL = 12.2
"""Width of a column in Textual's pictures."""
FONTS = "'DejaVu Sans Mono', Menlo, Consolas, monospace"


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
    """The picture without fonts from elsewhere, each word at its own place: any fixed-width font shows it aligned."""
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: ?Fira Code, monospace", f"font-family: {FONTS}", svg)
    return re.sub(
        r'<text class="(\S+)" x="([\d.]+)" (y="[\d.]+") textLength="[\d.]+" ([^>]*)>(.*?)</text>', _words, svg
    )


def _words(found: re.Match[str]) -> str:
    """One text element as one a word: not every program keeps the blanks between them as wide as they are."""
    style, x, y, rest, text = found[1], float(found[2]), found[3], found[4], html.unescape(found[5])
    return "".join(
        f'<text class="{style}" x="{x + word.start() * CELL:g}" {y} textLength="{len(word[0]) * CELL:g}" {rest}>'
        f"{html.escape(word[0], quote=False)}</text>"
        for word in re.finditer(r"[^ \xa0]+", text)
    )


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
    asyncio.run(take(given.host, given.file, (columns, rows), given.wait, given.keys.split(",") if given.keys else ()))


if __name__ == "__main__":
    main()
