"""The bottom line: help first, so that no width cuts it off, then the screens and the keys of this one."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.style import Style

from console.tui.keys import SCREENS, Key, ScreenName
from console.tui.tones import KEY, QUIET, STRONG

_GAP = "  "


def key_line(first: Key, keys: Sequence[Key], here: ScreenName, width: int, unread: int = 0) -> Content:
    """`? help`, the screens, then as many whole keys as fit; unread events stand with the key that shows them."""
    items = [_item(key, unread) for key in keys]
    wanted = sum(item.cell_length + len(_GAP) for item in items)
    start = Content.assemble(" ", _item(first, 0))
    keys_of_screens = f"{min(SCREENS.values())}-{max(SCREENS.values())}"
    for screens in (_screens(here), Content.assemble((keys_of_screens, KEY), (" screens", QUIET))):
        line = Content.assemble(start, _GAP, screens)
        if line.cell_length + wanted <= width:
            break
    for item in items:
        if line.cell_length + len(_GAP) + item.cell_length > width:
            break
        line = Content.assemble(line, _GAP, item)
    return line


def _item(key: Key, unread: int) -> Content:
    title = f"{key.title} {unread} unread" if unread and key.action == "app.show_events" else key.title
    return _clickable(Content.assemble((key.label, KEY), (f" {title}", QUIET)), key.action)


def _screens(here: ScreenName) -> Content:
    tabs = [
        _clickable(Content.assemble((key, KEY), (f" {name}", STRONG if name == here else QUIET)), f"app.go('{name}')")
        for name, key in SCREENS.items()
    ]
    return Content(" ").join(tabs)


def _clickable(content: Content, action: str) -> Content:
    return content.stylize(Style.from_meta({"@click": action}))
