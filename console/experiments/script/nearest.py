"""The nearest known name to one that is not known, as a clause for the end of a sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`" (did you mean 'tokens'?)"`, or an empty string when nothing is near."""
    close = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
