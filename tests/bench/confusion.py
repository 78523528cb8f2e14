"""`make bench`, third part: what the night key calls each planted cause, over several seeds, as a confusion matrix.

Every seed measures and pins a golden run of its own, then plants one cause after the other. Lanes are whole set-ups (engine,
box, console) beside each other, each with its share of the seeds: a lane mostly sleeps, as its engine's steps are planned
times. With --out every verdict is a line of FOLDER/results.jsonl beside the events it was found in; --resume measures what
is missing there, --again judges what is there once more, by the analysis as it is now.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "console" / "experiments"))

from planted_causes import CAUSES, JUDGED, golden, loopback_bench, named, planted_engine, trial

ENOUGH = 0.95
RESULTS = "results.jsonl"
SOUND = CAUSES[0].name
UNBLAMED = ("healthy", "inconclusive")  # what may be said where nothing was planted
Record = dict[str, Any]


def main() -> int:
    """Print the matrix; the exit status says whether 95 % are right and nothing is blamed where nothing was planted."""
    options = _options()
    with tempfile.TemporaryDirectory() as spare:
        folder = options.out or Path(spare)
        folder.mkdir(parents=True, exist_ok=True)
        if options.lane is not None:
            _end_in_order()
            asyncio.run(_run_lane(folder, options))
            return 0
        kept = recorded(folder)
        if kept and not (options.resume or options.again):
            sys.stderr.write(
                f"{folder / RESULTS} holds verdicts already: go on with --resume, or name another folder\n"
            )
            return 2
        if options.again:
            found = [_judged_again(folder, one) for one in kept]
        else:
            _end_in_order()
            _run_lanes(folder, options)
            found = recorded(folder)
        sys.stdout.write(matrix(found) + "\n")
        return int(not holds(found))


def _end_in_order() -> None:
    """Told to stop, this process ends what it began on its way out."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.confusion", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2, help="runs of every cause (default: 2; the whole: 10)")
    parser.add_argument("--lanes", type=int, default=2, help="set-ups beside each other (default: 2)")
    parser.add_argument("--only", nargs="*", default=(), metavar="NAME", help="names of causes (default: all)")
    parser.add_argument("--pace", type=float, default=1.0, help="steps last so many times as long (default: 1)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep verdicts and events there")
    parser.add_argument("--resume", action="store_true", help="measure what is missing in FOLDER")
    parser.add_argument("--again", action="store_true", help="measure nothing, judge what is in FOLDER again")
    parser.add_argument("--lane", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = sorted(set(options.only) - {cause.name for cause in CAUSES})
    if unknown:
        parser.error(f"no cause is called {unknown[0]!r}; there are: {', '.join(cause.name for cause in CAUSES)}")
    return options


def recorded(folder: Path) -> list[Record]:
    """The verdicts kept in a folder; none where there is no file yet."""
    file = folder / RESULTS
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _run_lanes(folder: Path, options: argparse.Namespace) -> None:
    """Every lane to its end. Raises SystemExit where one fails."""
    again = [sys.executable, "-m", "tests.bench.confusion", *sys.argv[1:], "--out", str(folder)]
    lanes = [subprocess.Popen([*again, "--lane", str(number)]) for number in range(min(options.lanes, options.seeds))]
    try:
        ends = [lane.wait() for lane in lanes]
    finally:
        for lane in lanes:
            lane.terminate()  # no matter to one that has ended
    if any(ends):
        raise SystemExit(f"a lane broke off: what was found until then is in {folder / RESULTS}")


async def _run_lane(folder: Path, options: argparse.Namespace) -> None:
    """One set-up, and its seeds one after another."""
    done = {(one["seed"], one["cause"]) for one in recorded(folder)}
    place = Path(tempfile.mkdtemp(prefix=f"lane{options.lane}-", dir=folder))
    plant = place / "plant.json"
    plant.write_text(json.dumps({"pace": options.pace}))
    wanted = [cause for cause in CAUSES if not options.only or cause.name in options.only]
    with planted_engine(place, plant) as port:
        async with loopback_bench(place, port) as bench:
            for seed in range(1 + options.lane, options.seeds + 1, min(options.lanes, options.seeds)):
                causes = [cause for cause in wanted if (seed, cause.name) not in done]
                if causes:
                    pinned = await golden(bench, 1000 + seed)
                    _tell(f"seed {seed}, golden run: {pinned['verdict']['headline']}")
                for cause in causes:
                    began_s = time.monotonic()
                    found = await trial(bench, cause, plant, seed, port, options.pace)
                    events = (bench.store.runs_folder / found["run_id"] / "events.jsonl").relative_to(folder)
                    record = {
                        "seed": seed, "cause": cause.name, **found, "events": str(events), "pace": options.pace,
                        "lanes": options.lanes, "seconds": round(time.monotonic() - began_s, 1), "load": os.getloadavg()[0],
                    }  # fmt: skip
                    with (folder / RESULTS).open("a") as file:
                        file.write(json.dumps(record) + "\n")
                    _tell(_line(record))


def _tell(words: str) -> None:
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


def _line(record: Record) -> str:
    mark = "" if is_right(record) else "  <-- WRONG"
    where = f"{record['seconds']:5.1f} s  load {record['load']:.1f}  seed {record['seed']}"
    return f"{where}  {record['cause']}: {record['class']}{mark}\n         {record['headline']}"


def _judged_again(folder: Path, record: Record) -> Record:
    """A record with the verdict that today's analysis finds in the same events."""
    if record["status"] not in JUDGED:
        return record
    cause = next(one for one in CAUSES if one.name == record["cause"])
    events = [json.loads(line) for line in (folder / record["events"]).read_text().splitlines()]
    verdict = named(cause, events)
    again = {**record, "class": verdict["class"], "headline": verdict["headline"]}
    if not is_right(again) or again["class"] != record["class"]:
        _tell(f"was {record['class']}: {_line(again)}")
    return again


# --- the matrix


def is_right(record: Mapping[str, Any]) -> bool:
    """Whether the class is one that names the cause."""
    return any(cause.name == record["cause"] and record["class"] in cause.expected for cause in CAUSES)


def holds(found: Sequence[Mapping[str, Any]]) -> bool:
    """Whether enough is named rightly, and nothing is blamed where nothing was planted."""
    blamed = [one for one in found if one["cause"] == SOUND and one["class"] not in UNBLAMED]
    return bool(found) and not blamed and sum(map(is_right, found)) >= ENOUGH * len(found)


def matrix(found: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: a row a planted cause, how often it was named rightly, and what else it was called."""
    lines = ["| planted | right class | named rightly | named otherwise |", "|---|---|---|---|"]
    for cause in CAUSES:
        rows = [one for one in found if one["cause"] == cause.name]
        if rows:
            others = [one["class"] for one in rows if not is_right(one)]
            wrong = ", ".join(f"{klass} {others.count(klass)}" for klass in sorted(set(others))) or "-"
            lines.append(f"| {cause.name} | {cause.expected[0]} | {len(rows) - len(others)} of {len(rows)} | {wrong} |")
    right = sum(map(is_right, found))
    lines.append(f"| all | | {right} of {len(found)} ({100 * right / max(len(found), 1):.1f} %) | |")
    loads = sorted(one["load"] for one in found)
    if loads:
        hours = sum(one["seconds"] for one in found) / 3600
        beside = f"{found[0]['lanes']} lanes at pace {found[0]['pace']:g}"
        lines.append(
            f"\n{beside}, {os.cpu_count()} processors, load {loads[0]:.1f} to {loads[-1]:.1f} "
            f"(median {loads[len(loads) // 2]:.1f}), {hours:.1f} hours of runs."
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
