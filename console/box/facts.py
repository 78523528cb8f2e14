"""What the console has to know of a box before it can do anything there; asked once per login, in one command."""

from __future__ import annotations

import re
from dataclasses import dataclass

from console.box.errors import BoxError

_MARK = "ddtree-facts-follow"

# The mark comes first, because a login shell may print a greeting of its own.
FACTS_ARGV = (
    "sh",
    "-c",
    f'echo {_MARK}; id -u; id -un; echo "$HOME"; '
    'if [ -d "/run/user/$(id -u)" ]; then echo yes; else echo no; fi; '
    "if [ -d /run/systemd/system ]; then systemctl --version; fi; true",
)


@dataclass(frozen=True)
class BoxFacts:
    """One login on one box."""

    uid: int
    user: str
    home: str
    has_runtime_dir: bool
    """/run/user/UID exists, so a user manager may be there."""
    systemd_version: int | None
    """252 and the like; None where PID 1 is not systemd."""
    greeting: bytes
    """What the login shell prints before any command's output; anything here spoils SFTP and JSON."""

    @property
    def runtime_dir(self) -> str:
        return f"/run/user/{self.uid}"


def parse_facts(output: bytes, where: str) -> BoxFacts:
    """BoxFacts from what FACTS_ARGV printed. Raises BoxError if it is something else."""
    greeting, mark, rest = output.partition(_MARK.encode())
    lines = rest.decode("utf-8", "replace").strip("\n").split("\n")
    if not mark or len(lines) < 4 or not lines[0].isdigit() or not lines[2].startswith("/"):
        raise BoxError(
            f"the login shell there did not run a plain command (it printed {output[:80]!r})",
            where=where,
            mend="log in with ssh and see what is printed",
        )
    version = re.match(r"systemd (\d+)", lines[4]) if len(lines) > 4 else None
    return BoxFacts(
        uid=int(lines[0]),
        user=lines[1],
        home=lines[2],
        has_runtime_dir=lines[3] == "yes",
        systemd_version=int(version[1]) if version else None,
        greeting=greeting,
    )
