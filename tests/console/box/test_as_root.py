"""What sudo says: a refusal, a warning before it runs the command all the same, or nothing of its own."""

from __future__ import annotations

import pytest

from console.box.as_root import refusal
from console.box.values import Completed

HOST = "sudo: unable to resolve host box: Name or service not known"


@pytest.mark.parametrize(
    ("status", "stderr", "said"),
    [
        (1, "sudo: a password is required", "sudo: a password is required"),
        (1, f"{HOST}\nsudo: a password is required\n", "sudo: a password is required"),
        (
            1,
            "Sorry, user ops is not allowed to execute '/usr/bin/cat x' as root on box.",
            "Sorry, user ops is not allowed to execute '/usr/bin/cat x' as root on box.",
        ),
        (1, "ops is not in the sudoers file.", "ops is not in the sudoers file."),
        (127, "env: 'sudo': No such file or directory", "env: 'sudo': No such file or directory"),
        (
            1,
            "sudo: /etc/sudoers.d is owned by uid 5, should be 0",
            "sudo: /etc/sudoers.d is owned by uid 5, should be 0",
        ),
        (1, HOST, None),  # `test -e` of what is not there
        (1, f"{HOST}\ncat: /x: No such file or directory", None),
        (5, "Failed to start x.service: Unit x.service not found.", None),
        (0, HOST, None),
        (None, "sudo: a password is required", None),
    ],
)
def test_a_refusal_of_sudo_is_told_from_a_failure_of_the_command(
    status: int | None, stderr: str, said: str | None
) -> None:
    assert refusal(Completed(("sudo", "-n", "x"), status, b"", stderr.encode())) == said
