"""`make bench`, the console's half: parsing, following, reconnecting, `ddtree status`, and a settings change.

The box is the tests' real machine (sshd, systemd, journald in namespaces), reached over loopback; without root only the
parsers are timed. Figures are of the machine this runs on: run it when nothing else does.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "box"))

from box_machine import Box, boot, why_not
from fake_service import install_the_fake
from link_proxy import LinkProxy, eventually

from console.box.connection import connect
from console.box.journal import JournalSource, follow, parse_record
from console.box.services import ServiceManager
from console.box.uninstall import uninstall
from console.deployment.change import Outcome
from console.deployment.reconfigure import apply, plan
from console.deployment.site import Limits, Site
from console.telemetry.parse import Line, parse, reader_for

LINES = {
    "bundled": "decode seq=812 req=r17 ctx=3451 steps=40 tokens=130 wall_ms=3650.2 draft_ms=164.0 build_ms=12.1 "
    "verify_ms=3420.8 walk_ms=3.0 commit_ms=20.5 host_ms=29.8 nodes=2600 hist=9,8,7,6,4,3,2,1 running=1 queued=0 "
    "kv_used=231 kv_total=4096 page=16 budget=64 graph=1",
    "sglang": "[2026-06-25 09:35:19] Decode batch, #running-req: 1, #token: 104, token usage: 0.00, accept len: 4.35, "
    "accept rate: 0.22, cuda graph: True, gen throughput (token/s): 148.64, #queue-req: 0",
    "vllm": "(APIServer pid=22) INFO 09-09 11:51:35 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 5.44, "
    "Accepted throughput: 66.60 tokens/s, Drafted throughput: 225.00 tokens/s, Accepted: 666 tokens, Drafted: 2250 tokens, "
    "Per-position acceptance rate: 0.853, 0.713, 0.600, Avg Draft acceptance rate: 29.6%",
    "llamacpp": "draft acceptance = 0.55161 (  171 accepted /   310 generated), mean acceptance length =  2.64, "
    "acceptance rate per position = (0.741, 0.529, 0.374)",
}
PARSED = 50_000
LINES_A_SECOND, SECONDS = 5_000, 4
RECONNECTS, STATUSES, APPLIES = 5, 5, 3
PORT = 18871
REFUSES = 901  # fake_engine.REFUSES
LIMITS = Limits(stop_s=20, start_s=20, ready_s=5, soak_s=0.1, dry_run=False)
# Prints numbered lines with the time in them, so many a second in bursts of fifty.
WRITER = """
import sys, time
rate, seconds = int(sys.argv[1]), int(sys.argv[2])
start = time.time()
for n in range(rate * seconds // 50):
    time.sleep(max(0.0, start + n * 50 / rate - time.time()))
    print("\\n".join(f"n={n * 50 + i} t={time.time():.6f}" for i in range(50)), flush=True)
print("over", flush=True)
time.sleep(60)
"""


def say(figure: str, value: str) -> None:
    """One line of the table."""
    sys.stdout.write(f"{figure:52}{value}\n")
    sys.stdout.flush()


def main() -> int:
    """Measure and print."""
    parsing()
    reason = why_not()
    if reason is not None:
        sys.stdout.write(f"the rest needs the tests' real machine: {reason}\n")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        box = boot(Path(folder))
        try:
            asyncio.run(on_the_box(box, Path(folder)))
        finally:
            box.stop()
    return 0


def parsing() -> None:
    """Records a second of one core, by processor time. Nothing is kept, as where a log is followed."""
    for engine, text in LINES.items():
        lines = [Line(text)] * PARSED
        say(f"parse, {engine}", f"{rate(parse(lines, reader_for(engine))):10,.0f} records/s")
    record = {"__CURSOR": "s=1;i=2", "__REALTIME_TIMESTAMP": "1764000000000000", "_BOOT_ID": "b", "PRIORITY": "6"}
    line = json.dumps({**record, "SYSLOG_IDENTIFIER": "ddtree-engine", "MESSAGE": LINES["bundled"]}).encode()
    say("journal JSON to Record", f"{rate(map(parse_record, [line] * PARSED)):10,.0f} records/s")


def rate(work: Iterable[object]) -> float:
    """Items of PARSED a second of processor time."""
    began = time.process_time()
    for _ in work:
        pass
    return PARSED / (time.process_time() - began)


async def on_the_box(box: Box, folder: Path) -> None:
    """Everything that needs sshd, systemd and journald."""
    unlimited = b"[Journal]\nRateLimitIntervalSec=0\n"
    box.run(["mkdir", "-p", "/etc/systemd/journald.conf.d"])
    box.run(["tee", "/etc/systemd/journald.conf.d/bench.conf"], input=unlimited)
    box.run(["systemctl", "restart", "systemd-journald"])
    await following(box)
    await reconnecting(box, folder)
    async with await connect(box.target("ops")) as ops:
        manager = await install_the_fake(box, ops, PORT)
        site = Site(ops, manager, limits=LIMITS)
        await statuses(box, folder)
        await applies(site, manager)
        async for _ in uninstall(ops, manager):
            pass


async def following(box: Box) -> None:
    """How late a line arrives, while 5,000 a second are written; and whether each came once, in order."""
    lags: list[float] = []
    numbers: list[int] = []
    async with await connect(box.target("ops")) as ops:
        argv = ["systemd-run", "--user", "--quiet", "--unit=writer", "-p", "SyslogIdentifier=writer"]
        await ops.run([*argv, str(box.python), "-S", "-c", WRITER, str(LINES_A_SECOND), str(SECONDS)])
        async for batch in follow(ops, JournalSource("user", "writer.service", "writer")):
            now = time.time()
            for record in batch:
                if record.message.startswith("n="):
                    number, _, at = record.message.removeprefix("n=").partition(" t=")
                    numbers.append(int(number))
                    lags.append(now - float(at))
            if batch[-1].message == "over":
                break
        await ops.run(["systemctl", "--user", "stop", "writer"])
    whole = "each once and in order" if numbers == list(range(LINES_A_SECOND * SECONDS)) else "NOT EACH ONCE IN ORDER"
    say(f"follow lag at {LINES_A_SECOND:,} lines/s", f"{in_ms(lags)}; {len(numbers):,} lines, {whole}")


async def reconnecting(box: Box, folder: Path) -> None:
    """From the moment the network is back until a command has run; the wait for the next try included."""
    times: list[float] = []
    proxy = LinkProxy(box.port)
    await proxy.open()
    known_hosts = folder / "known_hosts_proxy"
    known_hosts.write_text(box.known_hosts.read_text().replace(f":{box.port} ", f":{proxy.port} "))
    for _ in range(RECONNECTS):
        async with await connect(box.target("ops", port=proxy.port, own_known_hosts=known_hosts)) as ops:
            await proxy.cut()
            await eventually(lambda ops=ops: ops.state.name in ("RETRY", "LOST", "CONNECTING"))
            await proxy.open()
            began = time.monotonic()
            await ops.link.wait_up()
            assert (await ops.run(["true"])).exit_status == 0
            times.append(time.monotonic() - began)
    await proxy.cut()
    say("reconnect after a cut", in_ms(times))


async def statuses(box: Box, folder: Path) -> None:
    """`ddtree status` as a process of its own, from its start to its end."""
    config = folder / "config" / "ddtree"
    config.mkdir(parents=True)
    hosts = f'[box]\naddress = "127.0.0.1"\nport = {box.port}\nuser = "ops"\nkey = "{box.key}"\n'
    (config / "hosts.toml").write_text(hosts)
    (config / "known_hosts").write_text(box.known_hosts.read_text())
    environment = {**os.environ, "XDG_CONFIG_HOME": str(folder / "config"), "XDG_STATE_HOME": str(folder / "state")}
    times: list[float] = []
    for _ in range(STATUSES):
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "console.cli", "status", "box", "--json", env=environment, stdout=subprocess.PIPE
        )
        out, _ = await process.communicate()
        times.append(time.monotonic() - began)
        assert process.returncode == 0 and json.loads(out)["service"]["state"] == "serving", out
    say("ddtree status over loopback", in_ms(times))


async def applies(site: Site, manager: ServiceManager) -> None:
    """A settings change from plan to outcome, and from the engine's refusal to the old settings serving again."""
    times: list[float] = []
    for page_size in [64, 16] * APPLIES:
        began = time.monotonic()
        outcome = await end_of(site, {"page_size": str(page_size)})
        times.append(time.monotonic() - began)
        assert outcome.status == "confirmed", outcome
    say(f"settings change, {LIMITS.soak_s:g} s of soak included", in_ms(times))
    back: list[float] = []
    for _ in range(APPLIES):
        outcome = await end_of(site, {"tree_budget": str(REFUSES)})
        assert outcome.status == "rolled_back", outcome
        at = {phase.name: phase.elapsed_s for phase in outcome.phases}
        back.append(at["probe"] - at["rolling_back"])
    say("refused at load, until the old settings serve again", in_ms(back))
    assert (await manager.state()).state == "serving"


async def end_of(site: Site, changes: dict[str, str]) -> Outcome:
    """The outcome of one change."""
    *_, outcome = [item async for item in apply(site, await plan(site, changes))]
    assert isinstance(outcome, Outcome)
    return outcome


def in_ms(seconds: Iterable[float]) -> str:
    """Median, 95th percentile and maximum."""
    found: Sequence[float] = sorted(seconds)
    middle, high = found[len(found) // 2], found[min(len(found) - 1, int(0.95 * len(found)))]
    return f"median {1000 * middle:8,.1f} ms   p95 {1000 * high:8,.1f} ms   most {1000 * found[-1]:8,.1f} ms"


if __name__ == "__main__":
    raise SystemExit(main())
