"""Pictures of the console on a host that runs, for the docs and for looking at: an SVG of exactly what an operator sees.

`python -m tests.tui.picture demo overview.svg --size 120x36 --wait 30 --keys 1,tab` opens the console on HOST without a
terminal, presses the keys, waits, and writes the picture. `rsvg-convert -o overview.png overview.svg` makes pixels of it.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

from console.host import open_host
from console.tui.app import ConsoleApp

BETWEEN_KEYS_S = 1.0
FONTS = "'DejaVu Sans Mono', Menlo, Consolas, monospace"


async def take(host: str, path: Path, size: tuple[int, int], wait_s: float, keys: Sequence[str]) -> None:
    """Write the picture of `host`'s console after `keys` and `wait_s` seconds."""
    operations = await open_host(host)
    try:
        app = ConsoleApp(operations)
        async with app.run_test(size=size) as pilot:
            await asyncio.sleep(BETWEEN_KEYS_S * 3)
            for key in keys:
                await pilot.press(key)
                await asyncio.sleep(BETWEEN_KEYS_S)
            await asyncio.sleep(wait_s)
            path.write_text(self_contained(app.export_screenshot(title=f"ddtree {host}")), encoding="utf-8")
    finally:
        await operations.close()


def self_contained(svg: str) -> str:
    """The picture without fonts from elsewhere: the reader's own fixed-width one stands in."""
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"font-family: ?Fira Code, monospace", f"font-family: {FONTS}", svg)


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
