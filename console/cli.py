"""The `ddtree` command: the verbs of `console/actions.py` on the command line, and the way into the console.

Standard output carries data and nothing else; an error is one line on standard error (with --json also an object on
standard output). Textual is loaded only when a screen is wanted.
"""

from __future__ import annotations

import asyncio
import errno
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from console.actions import SESSION, VERBS
from console.command_line import Request, read_command_line
from console.config import DEMO_NAME, host_names, places
from console.errors import ExitCode, OperatorError, UsageError
from console.help_text import of_verb, overview
from console.own_log import keep_own_log
from console.private_file import write_private
from console.streams import open_the_closed, put, put_beside, silence
from console.terminal import TerminalPrompts, ask, can_ask
from console.verbs.verb import Call, Session
from console.verbs.words import Style

TROUBLE_WITH_FILES = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
        *(errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EIO, errno.EEXIST),
    }
)
"""What a disk or a folder refuses, whatever we do with it."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line (`sys.argv` if none is given) and return its exit status. Never a traceback."""
    words = sys.argv[1:] if words is None else list(words)
    as_json = "--json" in words
    open_the_closed()
    keep_own_log(places().state / "console.log")
    try:
        return asyncio.run(_command(words))
    except OperatorError as error:
        return _failed(error, as_json)
    except KeyboardInterrupt:
        return _failed(OperatorError("interrupted", exit_code=ExitCode.INTERRUPTED), as_json)
    except BrokenPipeError:
        silence(sys.stdout)  # whoever read our output has had enough of it
        return ExitCode.DONE
    except Exception as error:  # noqa: BLE001 the last edge: an operator is shown a line and where the rest is
        return _failed(_trouble_here(error) or _unexpected(error), as_json)


async def _command(words: Sequence[str]) -> int:
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # text from a box may hold anything
    request = read_command_line(words, VERBS, SESSION, lambda word: word in host_names())
    session = _session(request.session)
    if request.help:
        put(of_verb(request.verb, SESSION, session.style) if request.verb else overview(VERBS, SESSION, session.style))
        return ExitCode.DONE
    if request.session["version"]:
        session.say({"version": version("ddtree-console")}, f"ddtree {version('ddtree-console')}")
        return ExitCode.DONE
    if request.verb is None:
        return await _console_wanted(request, session)
    return await request.verb.run(Call(request.verb, request.arguments, session))


def _session(options: Mapping[str, Any]) -> Session:
    as_json = bool(options["json"])
    plain = bool(options["plain"]) or os.environ.get("TERM") == "dumb"
    colour = sys.stdout.isatty() and not plain and not os.environ.get("NO_COLOR")
    return Session(
        say=_say_json if as_json else _say_words,
        style=Style(colour),
        open_console=open_console,
        ask=ask if can_ask() and not as_json else None,
        as_json=as_json,
        read_only=bool(options["read-only"]),
        plain=plain,
        accept_host_key=options["accept-host-key"],
        say_beside=_say_beside,
    )


def _say_beside(words: str) -> None:
    put_beside(f"ddtree: {words}")


def _say_json(data: Mapping[str, Any], words: str) -> None:
    try:
        line = json.dumps(data, ensure_ascii=False, allow_nan=False)
    except ValueError:
        line = json.dumps(_finite(data), ensure_ascii=False)
    put(line)


def _say_words(data: Mapping[str, Any], words: str) -> None:
    put(words)


def _finite(value: Any) -> Any:
    """`value` with null in place of what JSON has no number for."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


async def _console_wanted(request: Request, session: Session) -> ExitCode:
    host = request.host or _last_host()
    if session.as_json:
        raise UsageError("--json needs a verb", mend="ddtree --help lists them")
    if not session.plain and not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise UsageError(
            "the console needs a terminal, and this is none",
            mend="name a verb (ddtree --help lists them), or add --plain for one line an event",
        )
    if host is None and session.ask is not None:
        return await _welcome(session)
    return await open_console(host, session)


async def _welcome(session: Session) -> ExitCode:
    """Nobody has opened a host yet: say what there is, and open what is chosen."""
    from console.welcome import demo_runs, offers, read_answer, welcome_text

    assert session.ask is not None
    found = offers()
    print(welcome_text(found, demo_runs=demo_runs()), file=sys.stderr)
    while True:
        try:
            choice = read_answer(await session.ask("Open (empty leaves): "), found)
        except ValueError as error:
            print(f"ddtree: {error}", file=sys.stderr)
            continue
        if choice is None:
            return ExitCode.DONE
        if choice.verb is None:
            return await open_console(choice.host, session)
        request = read_command_line(
            [choice.verb, *([choice.host] if choice.host else [])], VERBS, SESSION, lambda _: True
        )
        assert request.verb is not None
        return await request.verb.run(Call(request.verb, request.arguments, session))


async def open_console(host: str | None, session: Session) -> ExitCode:
    """The full screen on `host`, or with --plain one line an event; remembers the host for the next time."""
    from console.host import open_host  # brings in asyncssh

    if host is None:
        names = ", ".join(host_names()) or "none yet"
        raise UsageError(
            f"names no host, and there is no last one (known: {names})", mend="ddtree demo shows it all here"
        )
    opened = await open_host(
        host,
        prompts=TerminalPrompts() if session.ask is not None else None,
        accept_host_key=session.accept_host_key,
        read_only=session.read_only,
    )
    try:
        _remember(host)
        if session.plain:
            from console.plain import watch_plainly

            return await watch_plainly(opened, session)
        from console.tui.app import run_console

        return await run_console(opened, read_only=opened.read_only)
    finally:
        await opened.close()


def _remember(host: str) -> None:
    try:
        write_private(_last_host_file(), host + "\n")
    except OSError as error:  # a full disk here is no reason not to look at a box
        _say_beside(f"{_last_host_file()}: {error.strerror or error}; {host} is not remembered for the next time")


def _last_host_file() -> Path:
    return places().state / "last_host"


def _last_host() -> str | None:
    """The host that was opened last; a demo counts only while it runs."""
    try:
        name = _last_host_file().read_text(encoding="utf-8").strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None
    return name if name != DEMO_NAME or name in host_names() else None


def _failed(error: OperatorError, as_json: bool) -> int:
    line = " ".join(str(error).split())
    put_beside(f"ddtree: {line}")
    if as_json:
        with suppress(OperatorError):  # standard output fails us too: it has been said on the other one
            try:
                _say_json(error.to_json(), line)
            except BrokenPipeError:
                silence(sys.stdout)
    return int(error.exit_code)


def _trouble_here(error: Exception) -> OperatorError | None:
    """What is wrong with a file or disk of this machine, if that is all; it is no fault of ours and has no traceback."""
    if not isinstance(error, OSError) or error.errno not in TROUBLE_WITH_FILES:
        return None
    what, own = error.strerror or str(error), str(places().state)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OperatorError(what, where=error.filename, mend=f"make room on the disk of this machine that holds {own}")
    if error.filename is None:
        return None
    mend = f"this console keeps its files in {own}; XDG_STATE_HOME names another place"
    return OperatorError(what, where=error.filename, mend=mend if str(error.filename).startswith(own) else None)


def _unexpected(error: Exception) -> OperatorError:
    """A fault of ours: the traceback goes to a file, its name to the operator."""
    what = f"unexpected {type(error).__name__}: {error}"
    path = places().state / "faults" / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    except OSError as trouble:
        return OperatorError(what, mend=f"its traceback could not be kept ({trouble})")
    return OperatorError(what, mend=f"its traceback is in {path}")


if __name__ == "__main__":
    sys.exit(main())
