"""Opening the host that a verb names, and the question before something that interrupts service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from console.errors import UsageError
from console.verbs.verb import Call

if TYPE_CHECKING:
    from console.box.target import Scope
    from console.host import Host


@asynccontextmanager
async def on_host(call: Call, name: str | None = None, *, scope: Scope | None = None) -> AsyncIterator[Host]:
    """The host called `name`, or else the one of the verb's HOST argument, connected; closed afterwards.

    `scope` is the service manager to use, whatever the config file says; None leaves it to the config and the box.
    """
    from console.host import open_host  # brings in asyncssh, which the verbs without a host do without
    from console.terminal import TerminalPrompts  # as above

    session = call.session
    host = await open_host(
        name or call.text("host"),
        prompts=TerminalPrompts() if session.ask is not None else None,
        accept_host_key=session.accept_host_key,
        read_only=session.read_only,
        scope=scope,
    )
    try:
        yield host
    finally:
        await host.close()


async def confirm(call: Call, question: str, *, type_name: str | None = None) -> bool:
    """Whether the operator says yes; `--yes` says it beforehand. With `type_name`, yes is that name typed out.

    Raises UsageError where there is nobody to ask: nothing that interrupts service happens by default.
    """
    if call.flag("yes"):
        return True
    ask = call.session.ask
    if ask is None:
        raise UsageError("needs a yes, and there is nobody to ask", where=call.verb.name, mend="add --yes")
    if type_name is not None:
        return (await ask(f"{question} Type {type_name} to go on: ")).strip() == type_name
    return (await ask(f"{question} [y/N] ")).strip().lower() in ("y", "yes")
