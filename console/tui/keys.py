"""The keys of the console's screens that are no verbs of the command line: they move, look and choose, here alone.

Verbs that do something to the box come from `console.actions`; both together feed footer, help and palette.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from textual.binding import Binding

from console.actions import VERBS

ScreenName = Literal["hosts", "overview", "service", "log", "playbooks", "runs", "doctor"]
SCREENS: dict[ScreenName, str] = {
    "hosts": "0",
    "overview": "1",
    "service": "2",
    "log": "3",
    "playbooks": "4",
    "runs": "5",
    "doctor": "6",
}
"""Every screen with its key."""


@dataclass(frozen=True)
class Key:
    """A key, the Textual action behind it, and what it says of itself. `changes` marks what a read-only console refuses."""

    key: str
    action: str
    title: str
    help: str
    changes: bool = False
    footer: bool = True

    @property
    def label(self) -> str:
        """The key as it is written: `ctrl+s`, `?`, `space`."""
        return _LABELS.get(self.key, self.key)


_LABELS = {"question_mark": "?", "slash": "/", "apostrophe": "'", "minus": "-", "plus": "+"}

HELP = Key("question_mark", "app.show_help", "help", "Every key of this screen, and what it does.")


def _verb(name: str, action: str) -> Key:
    """The key of a verb that the command line has too: its title, key and help are the table's."""
    verb = VERBS[name]
    assert verb.key is not None, f"{name} has no key"
    return Key(verb.key, action, name, verb.help, verb.changes_box)


EVERYWHERE: tuple[Key, ...] = (
    Key("0", "app.go('hosts')", "hosts", "Every host there is a name for: state, figures, alarms.", footer=False),
    Key(
        "1", "app.go('overview')", "overview", "Rate, commit length and step time live; alarms; the box.", footer=False
    ),
    Key("2", "app.go('service')", "service", "Settings, start and stop, what was changed and when.", footer=False),
    Key("3", "app.go('log')", "log", "The engine's journal: follow, pause, filter, search.", footer=False),
    Key("4", "app.go('playbooks')", "playbooks", "Experiments: run one, watch it, read its verdict.", footer=False),
    Key(
        "5",
        "app.go('runs')",
        "runs",
        "Every run of every host: read it, pin it, hold two against each other.",
        footer=False,
    ),
    Key(
        "6",
        "app.go('doctor')",
        "doctor",
        "What would stop the engine from working here, each with its mend.",
        footer=False,
    ),
    Key("p", "app.pick_playbook", "run", "Run a playbook: press p, then its letter, on any screen.", changes=True),
    Key("z", "zoom", "zoom", "The focused pane fills the screen; again or escape brings the others back."),
    Key("e", "app.show_events", "events", "What happened since the start; failures stay unread until seen here."),
    Key("R", "app.reconnect", "reconnect", "Try the link again at once.", footer=False),
    Key("ctrl+p", "app.command_palette", "palette", "Every verb by name."),
    Key("ctrl+q", "app.quit", "quit", "Leave the console; the engine and any run go on."),
)

HOSTS: tuple[Key, ...] = (
    Key("enter", "visit", "open", "Open the console on the host under the cursor; the one left is still followed."),
)

OVERVIEW: tuple[Key, ...] = (
    Key("tab", "app.focus_next", "pane", "Focus the next pane, to zoom it or to open it."),
    Key("enter", "open", "log", "Open Log at its newest line."),
)

SERVICE: tuple[Key, ...] = (
    Key("enter", "edit", "edit", "Change the setting under the cursor; enter takes the value, escape leaves it."),
    Key("u", "undo", "undo", "Give the setting under the cursor back its old value."),
    Key("ctrl+s", "apply", "apply", "Ask, then put the changed settings in force and watch every phase.", changes=True),
    _verb("start", "service('start')"),
    _verb("stop", "service('stop')"),
    _verb("restart", "service('restart')"),
    _verb("confirm", "say('confirm')"),
    _verb("revert", "say('revert')"),
    Key("h", "history", "history", "Go between the settings and the list of what was changed."),
    Key("b", "back", "back to it", "Fill the form with the settings of the generation under the cursor."),
)

LOG: tuple[Key, ...] = (
    Key("space", "pause", "pause/follow", "Hold on to what is on screen, or go to the newest line and stay with it."),
    Key("slash", "filter", "filter", "Show only lines that match a pattern; with ! before it, only those that do not."),
    Key("f", "find", "find", "Search for a pattern; n and N go on from match to match."),
    Key("n", "find_next(1)", "next", "The next match below.", footer=False),
    Key("N", "find_next(-1)", "previous", "The next match above.", footer=False),
    Key("l", "level", "level", "The least grave level that is shown: all, info, notice, warning, error."),
    Key("m", "mark", "mark", "Mark the line under the cursor, or take the mark away.", footer=False),
    Key("apostrophe", "next_mark", "next mark", "Go to the next marked line.", footer=False),
    Key("t", "jump", "time", "Go to a time of day, such as 12:04 or 12:04:30.", footer=False),
    Key("enter", "whole", "whole line", "The whole record under the cursor with its fields."),
    Key("y", "copy", "copy", "Copy the line under the cursor to the clipboard (OSC 52).", footer=False),
    Key("x", "export", "export", "Write the lines shown, with cursors and marks, to a file of JSON lines."),
)

PLAYBOOKS: tuple[Key, ...] = (
    Key("enter", "run", "run", "Run the playbook under the cursor; so does its own letter.", changes=True),
    Key("X", "cancel", "cancel", "Ask, then stop the run in progress.", changes=True),
    Key("escape", "leave", "list", "Back to the list; the run goes on."),
    Key("a", "apply", "apply", "Take the settings that the verdict proposes to the Service form.", changes=True),
)

RUNS: tuple[Key, ...] = (
    Key("enter", "open", "read", "The whole run: verdict, levels, curves. Again, or escape: back to the list."),
    Key("slash", "filter", "filter", "Show only runs in whose line every word typed is found."),
    Key("space", "mark", "mark", "Mark the run under the cursor; two marked ones can be compared."),
    Key("c", "compare", "compare", "Hold the later of two marked runs against the earlier."),
    Key("g", "pin", "golden", "Make the run the one others of its kind are measured by, or no longer.", footer=False),
    Key("x", "export", "export", "Write the run to a file: Markdown, HTML, CSV or JSON."),
    Key("a", "take_up", "follow/apply", "Follow a run that goes on; take what a verdict proposes to the Service form."),
)

DOCTOR: tuple[Key, ...] = (
    Key("a", "again", "look again", "Look at the box again; nothing is touched."),
    Key(
        "f", "mend", "mend", "Show the commands that mend what is safe to mend, and run them after a yes.", changes=True
    ),
)

KEYS: dict[ScreenName, tuple[Key, ...]] = {
    "hosts": HOSTS,
    "overview": OVERVIEW,
    "service": SERVICE,
    "log": LOG,
    "playbooks": PLAYBOOKS,
    "runs": RUNS,
    "doctor": DOCTOR,
}


_BY_HAND = ("enter", "tab", "escape", "n", "N", "m", "apostrophe")
"""Keys that mean something only where the cursor stands; the palette leaves them out."""
_TEXTUALS = ("app.command_palette", "app.quit")
"""Actions that the palette has by itself."""


def palette_entries() -> list[tuple[str, str, ScreenName | None, str]]:
    """(title, help, screen it needs, Textual action) of everything that may be asked for by name."""
    entries: list[tuple[str, str, ScreenName | None, str]] = []
    for which, keys in KEYS.items():
        entries += [(_titled(key, which), key.help, which, key.action) for key in keys if key.key not in _BY_HAND]
    everywhere = (key for key in (HELP, *EVERYWHERE) if key.action not in _TEXTUALS)
    return entries + [(key.title.capitalize(), key.help, None, key.action) for key in everywhere]


def _titled(key: Key, which: ScreenName) -> str:
    verb = VERBS.get(key.title)
    return verb.title if verb is not None else f"{which.capitalize()}: {key.title}"


def bindings(keys: tuple[Key, ...]) -> list[Binding]:
    """The keys as Textual bindings, remappable by the action's name."""
    return [Binding(key.key, key.action, key.title, id=key.action, tooltip=key.help) for key in keys]
