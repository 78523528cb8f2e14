"""doctor, install and uninstall as commands, on a demo box with the tiny model."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from console.config import places
from console.demo import DemoRequest, demo_box
from tests.console.conftest import Ddtree

TINY = Path(__file__).parents[1] / "data" / "tiny-ddtree"
REQUEST = DemoRequest(
    model=str(TINY / "target"), drafter=str(TINY / "drafter"), settings={"context_length": 512}, prompts=False
)


async def test_the_engine_is_examined_installed_again_and_taken_off_from_the_command_line(
    ddtree: Ddtree, tmp_path: Path
) -> None:
    where = places({"HOME": str(tmp_path / "home")})
    async with demo_box(REQUEST, where=where):
        found = await asyncio.to_thread(ddtree, "doctor", "demo", "--json")
        assert found.returncode == 0, found.stderr
        report = json.loads(found.stdout)
        named = {(check["group"], check["name"]): check for check in report["checks"]}
        assert named["service", "state"]["text"] == "serving"
        assert named["drafter", "fit"]["verdict"] == "pass"
        assert report["fail"] == 0
        assert report["pass"] + report["warn"] == len(report["checks"])
        assert [check for check in report["checks"] if (check["verdict"] == "pass") == bool(check["mend"])] == []

        for words, said in (
            (("--set", "page_sise=8"), "page_size"),
            (("--model", "models/target"), "is not an absolute path on the box"),
            (("--model", "/nowhere/at/all"), "holds no config.json"),
        ):
            refused = await asyncio.to_thread(ddtree, "install", "demo", *words, "--python", sys.executable)
            assert refused.returncode == 2
            assert said in refused.stderr and refused.stderr.count("\n") == 1

        again = await asyncio.to_thread(ddtree, "install", "demo", "--json", "--python", sys.executable)
        assert again.returncode == 0, again.stderr
        steps = {step["step"]: step for step in map(json.loads, again.stdout.splitlines())}
        assert not steps["settings"]["changed"]  # what is in force is kept

        nobody = await asyncio.to_thread(ddtree, "uninstall", "demo")
        assert nobody.returncode == 2
        assert nobody.stderr == "ddtree: uninstall: needs a yes, and there is nobody to ask; add --yes\n"
        refused = await asyncio.to_thread(ddtree, "uninstall", "demo", "--yes", "--read-only")
        assert refused.returncode == 2 and "read-only" in refused.stderr
        home = where.state / "demo" / "home"
        assert (home / ".config/ddtree/engine.toml").exists()

        gone = await asyncio.to_thread(ddtree, "uninstall", "demo", "--yes", "--json")
        assert gone.returncode == 0, gone.stderr
        assert [json.loads(line)["step"] for line in gone.stdout.splitlines()] == ["stop", "files", "done"]
        assert not list(home.rglob("*"))
        audit = (where.state / "audit.jsonl").read_text()
        assert [json.loads(line)["verb"] for line in audit.splitlines()] == ["install"] * 3 + ["uninstall"]


@pytest.mark.parametrize("scope", ["root", ""])
def test_a_scope_that_is_none_is_named(ddtree: Ddtree, scope: str) -> None:
    done = ddtree("install", "demo", "--scope", scope)
    assert done.returncode == 2
    assert "user" in done.stderr and "supervisor" in done.stderr
