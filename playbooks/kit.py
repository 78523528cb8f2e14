"""The little that playbooks share: parameters, events, one engine connection, prompts of exact length, a clean end.

One file, standard library alone, Python 3.9 or newer, since it is uploaded beside each script and must run on any box.
A playbook gives two functions, `plan(params)` and `measure(run)`, and hands over to `main`. On the box the console's
runner starts it with the environment below; by hand it takes `--param name=value`, `--base-url`, `--describe`,
`--selftest` and `--help`.

Environment: DDT_BASE_URL, DDT_PARAMS (a JSON file), DDT_RUN_ID, DDT_RUN_DIR (holds `cancel` once the run is to stop),
DDT_DEADLINE (epoch seconds), DDT_SEED, DDT_MODEL, DDT_API_KEY_FILE, DDT_IDLE_WAIT_S (how long requests of others may
take to end before the engine counts as busy; none by hand). Events go to standard output, one JSON object a line; exit
statuses are those of EXIT below.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, Mapping

from kit_ab import blocks
from kit_canned import CannedEngine
from kit_end import EXIT, Stop
from kit_engine import Completion
from kit_params import check_params, read_header, typed
from kit_prompts import KINDS
from kit_relay import Relay, streams
from kit_restart import Service
from kit_rounds import LADDER, WARM_TOKENS, long_prompt, room_for, rounds, shuffled
from kit_run import Run, ratios
from kit_session import Measure, Plan, Session

__all__ = [
    "EXIT",
    "KINDS",
    "LADDER",
    "WARM_TOKENS",
    "Completion",
    "Relay",
    "Run",
    "Service",
    "Stop",
    "blocks",
    "long_prompt",
    "main",
    "ratios",
    "room_for",
    "rounds",
    "shuffled",
    "streams",
]  # fmt: skip


def main(script: str, plan: Plan, measure: Measure) -> int:
    """Run a playbook from its command line and environment; returns the exit status."""
    path = Path(script).resolve()
    header = read_header(path)
    arguments = _arguments(header)
    if arguments.describe:
        return _describe(header, arguments, plan)
    if arguments.selftest:
        with CannedEngine() as canned:
            return Session(header, plan, measure, canned.base_url).run(_given(header, arguments))
    base_url = arguments.base_url or os.environ.get("DDT_BASE_URL", "http://127.0.0.1:8765")
    return Session(header, plan, measure, base_url).run(_given(header, arguments))


def _arguments(header: Mapping[str, Any]) -> argparse.Namespace:
    rows = []
    for name, spec in header.get("params", {}).items():
        bounds = "".join(f", {edge} {spec[edge]}" for edge in ("min", "max") if edge in spec)
        choices = f", one of {' '.join(spec['choices'])}" if "choices" in spec else ""
        rows.append(
            f"  {name} ({spec['type']}, default {spec.get('default')}{bounds}{choices})\n      {spec.get('help', '')}"
        )
    parser = argparse.ArgumentParser(
        prog=f"{header['id']}.py",
        description=f"{header['title']}: {header['summary']}.",
        epilog="parameters:\n"
        + "\n".join(rows)
        + "\n\nexit: "
        + ", ".join(f"{code} {word}" for word, code in EXIT.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--param", action="append", default=[], metavar="NAME=VALUE", help="set a parameter")
    parser.add_argument("--base-url", metavar="URL", help="the engine (default DDT_BASE_URL, or http://127.0.0.1:8765)")
    parser.add_argument("--describe", action="store_true", help="print the plan as JSON and run nothing")
    parser.add_argument("--selftest", action="store_true", help="run against a canned engine inside this process")
    return parser.parse_args()


def _given(header: Mapping[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if os.environ.get("DDT_PARAMS"):
        path = Path(os.environ["DDT_PARAMS"])
        given = json.loads(path.read_text(encoding="utf-8"))
        hidden = path.with_name("secrets.json")  # apart from the rest, and gone after the run
        given.update(json.loads(hidden.read_text(encoding="utf-8")) if hidden.exists() else {})
    for pair in arguments.param:
        name, _, text = pair.partition("=")
        spec = header.get("params", {}).get(name, {"type": "str"})
        given[name] = typed(spec, text)
    return given


def _describe(header: Mapping[str, Any], arguments: argparse.Namespace, plan: Plan) -> int:
    try:
        params = check_params(header.get("params", {}), _given(header, arguments))
    except Stop as stop:
        sys.stderr.write(f"{header['id']}: {stop}\n")
        return EXIT[stop.status]
    about = {
        name: header.get(name) for name in ("id", "title", "version", "kind", "engines", "needs", "wants", "effects")
    }
    described = {**about, "max_seconds": header["max_seconds"], "params": params, "plan": dict(plan(params))}
    sys.stdout.write(json.dumps(described, indent=2) + "\n")
    return 0
