"""A real machine for the tests: sshd, systemd and journald, booted from this machine's own files (boot.sh)."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from console.box.target import Target

BOOT_SCRIPT = Path(__file__).with_name("boot.sh")
CHECKOUT = Path(__file__).resolve().parents[2]
BOOT_LIMIT_S = 60.0
HIDDEN = ("/tmp", "/var/tmp")  # a unit with PrivateTmp sees nothing of what lies there
# What has to be there, and the Debian package that brings it.
NEEDED = {
    "/usr/sbin/sshd": "openssh-server",
    "/usr/bin/ssh-keygen": "openssh-client",
    "/lib/systemd/systemd": "systemd",
    "/usr/bin/dbus-daemon": "dbus",
    "/usr/sbin/useradd": "passwd",
    "/usr/sbin/pivot_root": "util-linux",
    "/usr/bin/unshare": "util-linux",
    "/usr/bin/nsenter": "util-linux",
    "/usr/bin/setpriv": "util-linux",
}


def why_not() -> str | None:
    """Why no box can be booted here, or None if one can."""
    if sys.platform != "linux":
        return "the real box needs Linux"
    if os.geteuid() != 0:
        return "the real box needs root (mount and PID namespaces)"
    missing = {package for path, package in NEEDED.items() if not Path(path).exists()}
    if not any(Path("/usr/lib").glob("*/security/pam_systemd.so")) and not any(
        Path("/lib").glob("*/security/pam_systemd.so")
    ):
        missing.add("libpam-systemd")
    if missing:
        return f"the real box needs Debian packages: {', '.join(sorted(missing))}"
    probe = subprocess.run(
        ["unshare", "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True,
        text=True,
    )
    if probe.returncode != 0:
        return f"namespaces are not allowed here: {probe.stderr.strip()}"
    return None


@dataclass
class Box:
    """The running machine. Log in as `ops` (ordinary, lingering, in the journal's group) or `root`, with `key`."""

    folder: Path  # here, for keys and the like
    port: int
    address: str = "127.0.0.1"
    checkout: Path = CHECKOUT
    python: Path = Path(sys.executable)  # runs in the box too, for every user
    _holder: subprocess.Popen[bytes] | None = None
    _shown: dict[Path, Path] = field(default_factory=dict)
    """Folders of this machine that would be hidden from a unit -> where the box has them."""

    @property
    def _cgroup(self) -> str:
        return f"ddtree-box-{self.port}"

    @property
    def key(self) -> Path:
        return self.folder / "key"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def target(self, user: str = "ops", **changes: object) -> Target:
        """How the console reaches it, past every config file of the machine the tests run on."""
        target = Target(
            name="box",
            ssh_name=self.address,
            address=self.address,
            port=self.port,
            user=user,
            own_known_hosts=self.known_hosts,
            identity_files=(self.key,),
            only_these_keys=True,
        )
        return replace(target, **changes)  # type: ignore[arg-type]

    def run(
        self, argv: Sequence[str], *, input: bytes | None = None, check: bool = True, timeout_s: float = 30.0
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command in the box as root, past sshd."""
        enter = ["nsenter", "--target", str(self.init_pid()), "--all", "--root", "--"]
        enter += ["sh", "-c", 'cd / && exec "$@"', "sh"]
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        done = subprocess.run(
            [*enter, *argv], input=input, capture_output=True, env=environment, timeout=timeout_s, check=False
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{list(argv)} gave {done.returncode}: {done.stderr.decode(errors='replace')}")
        return done

    def init_pid(self) -> int:
        """The box's PID 1 as this machine numbers it."""
        assert self._holder is not None
        pid = self._holder.pid
        while True:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if not children:
                raise AssertionError("the box is not running")
            pid = int(children[-1])
            namespaces = next(
                line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("NSpid:")
            )
            if namespaces.split()[1:][-1] == "1" and len(namespaces.split()) > 2:
                return pid

    def reboot(self) -> None:
        """Boot again with the same disk: same machine id, new boot id."""
        before = self.init_pid()
        self.run(["systemctl", "reboot"], check=False)
        _until(lambda: self._pid_or_none() not in (None, before), "the box to go down and come up", self)
        self._wait_ready()
        self._show()

    def restart_sshd(self) -> None:
        """Have sshd read its keys and settings again; open sessions live on."""
        self.run(["systemctl", "restart", "ssh"])
        _until(self._answers, "sshd to listen again", self)

    def make_reachable(self, path: Path) -> None:
        """Let every user of the box walk to `path` (which must lie outside /tmp and /run)."""
        for folder in (path, *path.parents):
            self.run(["chmod", "o+x", str(folder)])

    def start(self) -> None:
        """Boot; returns when systemd says it is up and sshd answers."""
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "box", "-f", str(self.key)], check=True)
        state = self.folder / "state"
        state.mkdir()
        interpreter = Path(os.path.realpath(sys.executable)).parent.parent
        reachable = dict.fromkeys(
            str(path) for path in (self.checkout, Path(sys.prefix), Path(sys.base_prefix), interpreter)
        )
        log = (self.folder / "boot.log").open("wb")
        self._holder = subprocess.Popen(
            [
                # Each process dies with the one before it, so that the box ends even if the tests are killed.
                *("setpriv", "--pdeathsig", "KILL"),
                *("unshare", "--mount", "--propagation", "private", "--fork", "--kill-child"),
                *(str(BOOT_SCRIPT), "hold", str(state), self._cgroup, str(self.port), f"{self.key}.pub"),
                *_outermost(reachable),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        self._wait_ready()
        hidden = [
            path for path in map(Path, _outermost(reachable)) if any(path.is_relative_to(folder) for folder in HIDDEN)
        ]
        self._shown = {path: Path(f"/srv/shown{number}") for number, path in enumerate(hidden)}
        self.checkout, self.python = self._as_shown(self.checkout), self._as_shown(self.python)
        self._show()
        host_key = self.run(["cat", "/etc/ssh/ssh_host_ed25519_key.pub"]).stdout.decode()
        self.known_hosts.write_text(f"[{self.address}]:{self.port} {host_key}")

    def stop(self) -> None:
        """End every process of the box, whatever state it is in; its files go with its last process."""
        if self._holder is None:
            return
        pid = self._pid_or_none()
        os.killpg(self._holder.pid, signal.SIGKILL)  # the box's PID 1 dies with them, and takes all others along
        self._holder.wait()
        self._holder = None
        deadline_s = time.monotonic() + BOOT_LIMIT_S
        while pid is not None and _alive(pid) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        subprocess.run(
            ["unshare", "--mount", "--propagation", "private", str(BOOT_SCRIPT), "clean", self._cgroup], check=True
        )

    def _show(self) -> None:
        """Mount what lies under a temporary folder where a unit sees it as well."""
        for path, shown in self._shown.items():
            self.run(["mkdir", "-p", str(shown)])
            self.run(["mount", "--bind", str(path), str(shown)])

    def _as_shown(self, path: Path) -> Path:
        for hidden, shown in self._shown.items():
            if path.is_relative_to(hidden):
                return shown / path.relative_to(hidden)
        return path

    def _pid_or_none(self) -> int | None:
        try:
            return self.init_pid()
        except (AssertionError, OSError):
            return None

    def _wait_ready(self) -> None:
        _until(self._ready, "the box to boot", self)

    def _ready(self) -> bool:
        if self._pid_or_none() is None:
            return False
        said = self.run(["systemctl", "is-system-running"], check=False).stdout.decode().strip()
        if said not in ("running", "degraded"):
            return False
        return self._answers()

    def _answers(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex((self.address, self.port)) == 0


def _until(condition: Callable[[], bool], what: str, box: Box) -> None:
    deadline_s = time.monotonic() + BOOT_LIMIT_S
    while not condition():
        holder = box._holder
        if time.monotonic() > deadline_s or holder is None or holder.poll() is not None:
            log = (box.folder / "boot.log").read_text(errors="replace")
            raise AssertionError(f"waited in vain for {what}; it said: {log[-2000:]}")
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _outermost(paths: Iterable[str]) -> list[str]:
    """The paths that lie in none of the others."""
    paths = list(paths)
    return [path for path in paths if not any(path != other and path.startswith(f"{other}/") for other in paths)]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def boot(folder: Path) -> Box:
    """A booted Box whose keys lie in `folder`; nothing is left behind if it does not come up."""
    box = Box(folder, free_port())
    try:
        box.start()
    except BaseException:
        box.stop()
        shutil.rmtree(folder / "state", ignore_errors=True)
        raise
    return box
