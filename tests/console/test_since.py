"""`logs --since`: how long ago, or when, as the time that journalctl takes."""

from __future__ import annotations

import pytest

from console.errors import UsageError
from console.verbs.logs import _since

NOW_S = 1_790_000_000.7


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (None, None),
        ("90s", "@1789999910"),
        ("10m", "@1789999400"),
        ("-10 min", "@1789999400"),
        ("2h", "@1789992800"),
        ("3d", "@1789740800"),
        ("999999999999999d", "@0"),
        ("1960-01-01T00:00:00+00:00", "@0.000"),
        ("2026-05-04T10:00:00+02:00", "@1777881600.000"),
        ("@1790000000.5", "@1790000000.5"),
    ],
)
def test_a_time_is_one_that_journalctl_knows(text: str | None, at: str | None) -> None:
    assert _since(text, NOW_S) == at


@pytest.mark.parametrize(
    "text", ["", "yesterday", "10", "10w", "m", "@", "@x", "2026-13-40", "1e3s", "--since", "9" * 5000 + "d"]
)
def test_what_is_no_time_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="is no time; write 10m, 2h, or"):
        _since(text, NOW_S)
