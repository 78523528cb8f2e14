"""`ddtree demo`: a box without a box, with the console on it, or headless with a playbook's verdict at the end."""

from __future__ import annotations

import asyncio
import signal

from console.config import DEMO_NAME, places
from console.demo_file import read_demo
from console.errors import ExitCode, UsageError
from console.telemetry.parse import AUTO, reader_for
from console.telemetry.rates import Rates, rates_over
from console.telemetry.reader import bare
from console.telemetry.sample import Sample
from console.verbs.on_host import on_host
from console.verbs.playbooks import find_playbook
from console.verbs.runs import follow_run
from console.verbs.samples import sample_line
from console.verbs.verb import Call


async def demo(call: Call) -> ExitCode:
    """Start the demo's box, then open the console on it; with --headless or --run do without a screen.

    Where a demo runs already the console opens on that one; what needs a demo of its own is refused.
    """
    from console.demo import DemoRequest, demo_box  # brings in asyncssh

    name = call.arguments["run"]
    if call.pairs("param") and name is None:
        raise UsageError("--param goes with --run", where="demo")
    playbook = None if name is None else find_playbook(name)
    if not (call.flag("headless") or playbook or call.session.as_json):
        running = read_demo(places().demo)
        if running is not None:
            call.tell(
                f"a demo runs already, as process {running.pid}: the console opens on it, and leaving ends nothing"
            )
            return await call.session.open_console(DEMO_NAME, call.session)
        async with demo_box(on_progress=call.tell):
            return await call.session.open_console(DEMO_NAME, call.session)
    speaking = True

    def progress(text: str) -> None:
        if speaking:
            call.say({"type": "progress", "text": text}, text)

    async with demo_box(DemoRequest(prompts=playbook is None), on_progress=progress):
        if playbook is None:
            rates = await _serve(call)
            call.say({"type": "summary", **_summary_json(rates)}, _summary_text(rates))
            code = ExitCode.DONE
        else:
            async with on_host(call, DEMO_NAME) as host:
                code = await follow_run(call, host, host.run(playbook, call.pairs("param")))
            # The demo shows what there is to see. Whether this machine holds still enough for a conclusion is no fault of
            # it; the verdict says so, and its own exit status stands in it.
            code = ExitCode.DONE if code == ExitCode.INCONCLUSIVE else code
        speaking = False  # verdict or summary come last
    return code


async def _serve(call: Call) -> Rates | None:
    """Say every decode window until interrupted; what they come to together."""
    call.say({"type": "serving", "host": DEMO_NAME}, "serving: HOST demo works with every verb; ctrl+c ends it")
    windows: list[Sample] = []
    following = asyncio.create_task(_follow(call, windows))
    interrupted = asyncio.create_task(_interrupt())
    done, _ = await asyncio.wait([following, interrupted], return_when=asyncio.FIRST_COMPLETED)
    for task in (following, interrupted):
        task.cancel()
    if following in done:
        following.result()
    return rates_over(windows)


async def _follow(call: Call, windows: list[Sample]) -> None:
    reader = reader_for(AUTO)
    async with on_host(call, DEMO_NAME) as host:
        async for batch in host.records(since=None, follow=True):
            for record in batch:
                for sample in reader.read(bare(record.message), record.time).samples:
                    windows.append(sample)
                    call.say({"type": "sample", **sample.to_json()}, sample_line(sample))


async def _interrupt() -> None:
    """Return when the operator, or whoever started this, wants it to end: here that is no failure."""
    wanted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, wanted.set)
    try:
        await wanted.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _summary_json(rates: Rates | None) -> dict[str, object]:
    if rates is None:
        return {"windows": 0}
    return {
        "windows": rates.windows,
        "tokens": rates.tokens,
        "steps": rates.steps,
        "commit_length": rates.commit_length,
        "step_ms": rates.step_ms,
        "tok_s": rates.tok_s,
        "stages_ms": rates.stages_ms,
        "hist": list(rates.hist),
    }


def _summary_text(rates: Rates | None) -> str:
    if rates is None:
        return "no decode window was seen"
    return (
        f"{rates.tokens} tokens in {rates.steps} steps: {rates.tok_s:.1f} tok/s   "
        f"commit length {rates.commit_length:.2f}   step {rates.step_ms:.1f} ms"
    )
