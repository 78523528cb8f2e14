"""Each cause of an empty log is told alone, with its mend."""

from __future__ import annotations

from dataclasses import replace

import pytest

from console.box.empty_log import LogFindings, _storage, judge_empty

WELL = LogFindings(
    host="gpu-01",
    unit="ddtree-engine.service",
    scope="user",
    user="ops",
    uid=1000,
    groups=("ops",),
    properties={"LoadState": "loaded", "InvocationID": "abc", "StandardOutput": "journal", "LogNamespace": ""},
)


@pytest.mark.parametrize(
    ("changes", "cause", "mend"),
    [
        ({}, "nothing written", "run a playbook"),
        ({"properties": {"LoadState": "not-found"}}, "not installed", "ddtree install gpu-01"),
        ({"properties": {"LoadState": "not-found"}, "elsewhere": "system"}, "wrong scope", 'scope = "system"'),
        (
            {"properties": {**WELL.properties, "StandardOutput": "null"}},
            "output goes elsewhere",
            "systemctl --user edit",
        ),
        ({"properties": {**WELL.properties, "LogNamespace": "gpu"}}, "namespace", "journalctl --namespace=gpu"),
        ({"storage": "none"}, "journal stores nothing", "Storage=persistent"),
        ({"scope": "system"}, "not in the group", "sudo usermod -aG systemd-journal ops"),
        ({"persistent": False}, "no persistent journal", "sudo mkdir -p /var/log/journal"),
        ({"storage": "volatile"}, "no persistent journal", "set Storage=persistent"),
        ({"suppressed": "Suppressed 9 messages from user@1000.service"}, "rate limit", "RateLimitBurst= of journald"),
        (
            {"suppressed": "Suppressed 9 messages from x", "scope": "system", "groups": ("adm",)},
            "rate limit",
            "LogRateLimitBurst= of ddtree-engine.service",
        ),
        ({"properties": {**WELL.properties, "InvocationID": ""}}, "never started", "ddtree start gpu-01"),
        ({"properties": {**WELL.properties, "LogLevelMax": "4"}}, "nothing written", "remove LogLevelMax="),
    ],
)
def test_each_cause_has_its_sentence_and_its_mend(changes: dict[str, object], cause: str, mend: str) -> None:
    found = judge_empty(replace(WELL, **changes))  # type: ignore[arg-type]
    assert (found.cause, mend in found.mend) == (cause, True), found


@pytest.mark.parametrize("groups", [("ops", "systemd-journal"), ("adm",), ("wheel",)])
def test_who_may_read_every_journal_needs_no_copy_on_disk(groups: tuple[str, ...]) -> None:
    assert judge_empty(replace(WELL, persistent=False, groups=groups)).cause == "nothing written"
    assert judge_empty(replace(WELL, scope="system", groups=groups)).cause == "nothing written"
    assert judge_empty(replace(WELL, scope="system", uid=0)).cause == "nothing written"


def test_the_supervisor_keeps_its_own_log_and_needs_no_rights() -> None:
    found = replace(WELL, scope="supervisor", storage="none", properties={"LoadState": "loaded", "InvocationID": ""})
    assert judge_empty(found).cause == "never started"


def test_the_last_drop_in_decides_where_journald_stores() -> None:
    assert _storage("# /etc/systemd/journald.conf\n[Journal]\n#Storage=auto\n") == "auto"
    assert _storage("[Journal]\nStorage=auto\n\n# /etc/x.conf\n[Journal]\nStorage = None\n") == "none"
