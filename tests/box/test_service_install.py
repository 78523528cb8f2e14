"""Install, serve, reconfigure and uninstall on a real machine: sshd, systemd and journald, with the real engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from box_machine import Box, free_port

from console.box.check import Check
from console.box.connection import Connection
from console.box.doctor import examine
from console.box.install import InstallRequest, install
from console.box.journal import read_journal
from console.box.layout import layout_for
from console.box.release import release_files
from console.box.services import ServiceManager, manager_for, pick_manager
from console.box.steps import InstallError, Progress
from console.box.target import DEFAULT_UNIT, Scope
from console.box.uninstall import uninstall
from console.box.values import ServiceState
from console.deployment.bundled import BUNDLED, first_settings_with
from console.deployment.change import Outcome
from console.deployment.generations import history
from console.deployment.reconfigure import apply, plan
from console.deployment.site import Limits, Site
from console.errors import ExitCode, UsageError
from console.telemetry.sample import Sample

pytestmark = pytest.mark.box

TINY = Path("tests/data/tiny-ddtree")
ROOMS = ["/opt/ddtree", "/etc/ddtree", "/var/lib/ddtree", "/var/cache/ddtree", "/etc/systemd/system", "/home/ops"]


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """A release without the drafter it ships for the bundled model, which is most of it and serves none of these models."""
    return {name: data for name, data in release_files().items() if not name.startswith("app/engine/drafters/")}


@pytest.fixture(autouse=True)
def one_release(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkout may be edited while the tests run; what is installed twice is the same twice."""
    monkeypatch.setattr("console.box.install.release_files", lambda: files)


def request_for(box: Box, port: int, **more: object) -> InstallRequest:
    settings = {"context_length": 512, "port": port, "interval_s": 0.05}
    asked = {
        "model": str(box.checkout / TINY / "target"),
        "drafter": str(box.checkout / TINY / "drafter"),
        "python": str(box.python),
        **more,
    }
    return InstallRequest(compose=first_settings_with(settings), who="ana@laptop", **asked)  # type: ignore[arg-type]


async def installed(connection: Connection, manager: ServiceManager, request: InstallRequest) -> dict[str, Progress]:
    return {step.step: step async for step in install(connection, manager, request)}


def files_in(box: Box) -> list[str]:
    """Every path, with mode and owner, where an installation might leave something."""
    shown = box.run(["find", *ROOMS, "-not", "-type", "d", "-printf", "%p %m %u\n"], check=False).stdout
    folders = box.run(["find", *ROOMS, "-type", "d", "-printf", "%p %m %u\n"], check=False).stdout
    return sorted((shown + folders).decode().splitlines())


def serving(now: ServiceState) -> bool:
    assert now.state not in ("failed", "start-limit-hit", "restarting"), now
    return now.state == "serving"


async def ask(connection: Connection, port: int, path: str, body: dict[str, object] | None = None) -> dict[str, object]:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        url = f"http://127.0.0.1:{await connection.forward(port)}{path}"
        answer = await (client.get(url) if body is None else client.post(url, json=body))
        found: dict[str, object] = answer.raise_for_status().json()
        return found


async def samples(connection: Connection, manager: ServiceManager, wanted: Callable[[Sample], bool]) -> list[Sample]:
    """The journal's records as Samples; read again until one is as wanted."""
    for _ in range(100):
        reader = BUNDLED.reader()
        records = await read_journal(connection, manager.journal_source())
        found = [sample for record in records for sample in reader.read(record.message, None).samples]
        if any(wanted(sample) for sample in found):
            return found
    raise AssertionError("the journal does not show it")


async def checks(connection: Connection, manager: ServiceManager) -> dict[tuple[str, str], Check]:
    return {(check.group, check.name): check for check in await examine(connection, manager)}


def the_unit_is_sandboxed(box: Box) -> None:
    shown = box.run(["systemd-analyze", "security", "--no-pager", DEFAULT_UNIT]).stdout.decode()
    found = re.search(r"Overall exposure level for .*: ([0-9.]+)", shown)
    assert found is not None and float(found[1]) <= 4.0, shown
    checked = box.run(["systemd-analyze", "verify", f"/etc/systemd/system/{DEFAULT_UNIT}"], check=False)
    assert DEFAULT_UNIT not in checked.stderr.decode()


async def the_whole_life(box: Box, connection: Connection, scope: Scope) -> None:
    """From an empty box to an empty box. Each start of the real engine costs seconds, so that one life tells it all."""
    before, port = files_in(box), free_port()
    manager = await pick_manager(connection, None, DEFAULT_UNIT)
    assert manager.scope == scope
    assert (await manager.state()).state == "not-installed"
    if scope == "user":
        found = await checks(connection, manager)
        assert found["service", "linger"].verdict == found["journal", "access"].verdict == "pass"
        assert found["service", "state"].text == "the engine is not installed"

    first = await installed(connection, manager, request_for(box, port))
    assert [step for step, progress in first.items() if progress.changed] == ["release", "settings", "unit", "current"]
    laid_down = files_in(box)
    second = await installed(connection, manager, request_for(box, port))
    assert [step for step, progress in second.items() if progress.changed] == []
    assert files_in(box) == laid_down
    ours = [line.rsplit(" ", 2) for line in laid_down if line not in before]
    open_to_others = {path for path, mode, _ in ours if int(mode, 8) & 0o077 and mode != "777"}  # 777: symbolic links
    made_by_python = {path for path in open_to_others if re.search(r"/releases/[^/]+/(venv|app/.*__pycache__)", path)}
    shared = {f"/home/ops/{name}" for name in (".config", ".local", ".local/share", ".local/state")}
    units = {path for path in open_to_others if "/systemd/" in path or path.endswith("/systemd")}
    assert open_to_others - made_by_python - shared - units == set()
    if scope == "system":
        the_unit_is_sandboxed(box)
    else:
        found = await checks(connection, manager)
        assert found["python", "torch"].verdict == found["drafter", "fit"].verdict == "pass"
        assert found["service", "state"].text == "stopped"
        assert [check for check in found.values() if check.verdict == "fail"] == []

    await manager.start()
    state = await manager.wait(serving, 60)
    assert state.invocation is not None and state.main_pid is not None
    assert state.status_text == f"serving target on 127.0.0.1:{port}"
    assert (await pick_manager(connection, None, DEFAULT_UNIT)).scope == scope

    body = {"prompt": [1, 2, 3], "max_tokens": 64, "temperature": 0, "ignore_eos": True}
    answer = await ask(connection, port, "/v1/completions", body)
    assert isinstance(answer["usage"], dict) and answer["usage"]["completion_tokens"] == 64
    seen = await samples(connection, manager, lambda sample: sample.kind == "request")
    decode = [sample for sample in seen if sample.kind == "decode"]
    whole = next(sample for sample in seen if sample.kind == "request")
    assert (
        sum(sample.tokens or 0 for sample in decode) == 63
    )  # the first token comes from prefill and belongs to no step
    assert whole.commit_length is not None and whole.commit_length == 63 / sum(sample.steps or 0 for sample in decode)
    assert whole.commit_length > 1.0

    # The engine's own check of the file is one more start of Python with torch: one of the two lives has it.
    site = Site(connection, manager, limits=Limits(soak_s=0.5, dry_run=scope == "user"))
    *_, outcome = [item async for item in apply(site, await plan(site, {"context_length": "300", "page_size": "7"}))]
    assert isinstance(outcome, Outcome) and outcome.status == "confirmed", outcome
    info = await ask(connection, port, "/server_info")
    now = await manager.state()
    assert now.invocation not in (None, state.invocation)
    assert info["invocation"] == now.invocation
    assert isinstance(info["settings"], dict)
    assert (info["settings"]["context_length"], info["settings"]["page_size"]) == (300, 7)
    seen = await samples(connection, manager, lambda s: s.kind == "ready" and s.extra.get("page_size") == 7)
    # The fake engine of other tests wrote under the same name; its lines tell no settings.
    ready = [sample.extra for sample in seen if sample.kind == "ready" and "context_length" in sample.extra]
    assert [(line["context_length"], line["page_size"]) for line in ready] == [(512, 16), (300, 7)]
    assert [generation.outcome for generation in await history(site)] == ["confirmed", "installed"]

    gone = [step async for step in uninstall(connection, manager)]
    assert [step.step for step in gone] == ["stop", "unit", "files"]
    assert files_in(box) == before
    assert (await manager.state()).state == "not-installed"
    assert box.run(["pgrep", "-f", "engine serve"], check=False).returncode == 1


async def test_a_user_unit_lives_from_install_to_uninstall(box: Box, ops: Connection) -> None:
    await the_whole_life(box, ops, "user")


async def test_a_system_unit_lives_from_install_to_uninstall(box: Box, root: Connection) -> None:
    await the_whole_life(box, root, "system")


async def test_an_interrupted_install_leaves_the_old_release_and_is_taken_up_again(
    box: Box, ops: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_in(box)
    manager = manager_for(ops, layout_for("user", ops.home, DEFAULT_UNIT))
    releases, current = manager.layout.releases, manager.layout.current
    await installed(ops, manager, request_for(box, free_port()))
    old = box.run(["readlink", current]).stdout
    monkeypatch.setattr("console.box.install.version", lambda: "9.9.9")
    steps = install(ops, manager, request_for(box, free_port()))
    async for step in steps:
        if step.step == "release":
            break
    await steps.aclose()  # type: ignore[attr-defined]
    assert box.run(["readlink", current]).stdout == old
    torn = next(name for name in box.run(["ls", releases]).stdout.decode().split() if name.startswith("9.9.9"))
    box.run(["rm", f"{releases}/{torn}/release.json"])  # as if it had been cut off before its end
    again = await installed(ops, manager, request_for(box, free_port()))
    assert again["release"].changed and again["current"].changed and not again["settings"].changed
    assert box.run(["readlink", current]).stdout.decode() == f"releases/{torn}\n"
    assert [step.step async for step in uninstall(ops, manager)] == ["unit", "files"]
    assert files_in(box) == before


async def test_without_linger_a_user_install_is_refused_with_the_exact_command(box: Box, ops: Connection) -> None:
    manager = manager_for(ops, layout_for("user", ops.home, DEFAULT_UNIT))
    box.run(["mv", "/var/lib/systemd/linger/ops", "/run/linger-ops"])
    try:
        with pytest.raises(InstallError, match="loginctl enable-linger ops") as caught:
            await installed(ops, manager, request_for(box, free_port()))
    finally:
        box.run(["mv", "/run/linger-ops", "/var/lib/systemd/linger/ops"])
    assert caught.value.exit_code is ExitCode.PRECONDITION


async def test_a_system_install_needs_root(box: Box, ops: Connection) -> None:
    manager = manager_for(ops, layout_for("system", ops.home, DEFAULT_UNIT))
    with pytest.raises(InstallError, match="ops is not root"):
        await installed(ops, manager, request_for(box, free_port()))


async def test_a_system_unit_over_a_temporary_folder_is_refused(box: Box, root: Connection) -> None:
    box.run(["mkdir", "-p", "/tmp/model"])
    box.run(["cp", str(box.checkout / TINY / "target" / "config.json"), "/tmp/model/"])
    manager = manager_for(root, layout_for("system", root.home, DEFAULT_UNIT))
    with pytest.raises(UsageError, match=r"^/tmp/model: lies in a temporary folder"):
        await installed(root, manager, request_for(box, free_port(), model="/tmp/model"))


async def test_a_folder_that_is_no_model_is_refused_before_anything_is_written(box: Box, ops: Connection) -> None:
    before = files_in(box)
    manager = manager_for(ops, layout_for("user", ops.home, DEFAULT_UNIT))
    with pytest.raises(UsageError, match=r"^/usr: holds no config\.json"):
        await installed(ops, manager, request_for(box, free_port(), model="/usr"))
    assert files_in(box) == before


async def test_missing_packages_and_no_index_are_named_in_one_line(box: Box, ops: Connection) -> None:
    """An interpreter with torch by name only, pip, and no way to an index."""
    manager = manager_for(ops, layout_for("user", ops.home, DEFAULT_UNIT))
    bare = f"{ops.home}/bare"
    python = f"{bare}/bin/python"
    await ops.run([str(box.python), "-m", "venv", "--system-site-packages", "--without-pip", bare], timeout_s=60)
    site = (await ops.run([python, "-c", "import site; print(site.getsitepackages()[0])"])).stdout.decode().strip()
    await ops.run(["mkdir", f"{site}/torch-99.0.dist-info"])
    await ops.upload(b"Metadata-Version: 2.1\nName: torch\nVersion: 99.0\n", f"{site}/torch-99.0.dist-info/METADATA")
    box.run(["tee", "/etc/pip.conf"], input=b"[global]\nno-index = true\n")
    try:
        with pytest.raises(InstallError) as caught:
            await installed(ops, manager, request_for(box, free_port(), python=python))
    finally:
        box.run(["rm", "-rf", "/etc/pip.conf", bare])
    said = str(caught.value)
    assert "lacks gguf>=" in said and "starlette>=" in said and "torch>=" not in said
    assert re.search("pip could not fetch them|and pip to fetch them", said) and f"{python} -m pip install" in said
    assert "\n" not in said
    async for _ in uninstall(ops, manager):
        pass


@pytest.mark.parametrize("scope", ["user", "system"])
async def test_a_unit_that_gave_up_is_its_own_state_and_starts_again_when_asked(
    box: Box, ops: Connection, root: Connection, scope: Scope
) -> None:
    connection = ops if scope == "user" else root
    layout = layout_for(scope, connection.home, "gives-up.service")
    await connection.run(["mkdir", "-p", layout.units])
    unit = "[Unit]\nStartLimitBurst=2\nStartLimitIntervalSec=60\n[Service]\nRestart=on-failure\nRestartSec=0.05\n"
    await connection.upload(f"{unit}ExecStart=/bin/sh -c 'exit 1'\n".encode(), layout.unit_file)
    reload = ["systemctl", "--user", "daemon-reload"] if scope == "user" else ["systemctl", "daemon-reload"]
    await connection.run(reload)
    manager = manager_for(connection, layout)
    await manager.start()
    state = await manager.wait(lambda now: now.state == "start-limit-hit", 15)
    assert state.exit_status == 1
    await connection.upload(f"{unit}ExecStart=/bin/sleep 1000\n".encode(), layout.unit_file)
    await connection.run(reload)
    await manager.start()
    running = await manager.wait(lambda now: now.state == "serving", 15)
    assert running.invocation not in (None, state.invocation)
    await manager.stop()
    await manager.wait(lambda now: now.state in ("stopped", "failed"), 15)
    await connection.run(["rm", layout.unit_file])
    await connection.run(reload)
