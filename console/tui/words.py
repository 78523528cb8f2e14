"""Quantities in words: durations, ages, sizes and counts, always with their unit."""

from __future__ import annotations

from datetime import UTC, datetime


def duration(seconds: float) -> str:
    """A span in its two largest units: `42 s`, `3m20s`, `2h05m`, `2d03h`."""
    whole = max(0, int(seconds + 0.001))  # the difference of two clock readings may fall a hair short of a whole second
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d{hour:02d}h"
    if hours:
        return f"{hours}h{minute:02d}m"
    if minutes:
        return f"{minutes}m{second:02d}s"
    return f"{second} s"


def byte_size(count: float | None) -> str:
    """Bytes in decimal units with three significant figures at most: `70.3 kB`, `14.1 GB`; `?` when unknown."""
    if count is None:
        return "?"
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"
        size /= 1000.0
    return f"{size:.1f} TB"


def figure(value: float | None, digits: int = 1) -> str:
    """A figure with `digits` decimals, or `-` when there is none: absent is not zero."""
    return "-" if value is None else f"{value:,.{digits}f}"


def percent(fraction: float | None) -> str:
    """A fraction of one as a whole percentage, or `-`."""
    return "-" if fraction is None else f"{100.0 * fraction:.0f} %"


def epoch_s(iso: str | None) -> float | None:
    """Seconds since the epoch of an ISO 8601 time; a time without a zone is taken as UTC; None when it is none."""
    if iso is None:
        return None
    try:
        moment = datetime.fromisoformat(iso)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def clock(epoch: float) -> str:
    """The operator's local time of day, `12:04:59`."""
    return datetime.fromtimestamp(epoch).strftime("%H:%M:%S")


def day_and_clock(iso: str) -> str:
    """An ISO 8601 time as the operator's local `29 Nov 12:04`; what is no such time comes back as it was."""
    epoch = epoch_s(iso)
    return iso if epoch is None else datetime.fromtimestamp(epoch).strftime("%d %b %H:%M")


def count_of(number: int, noun: str) -> str:
    """`1 request`, `12,408 requests`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
