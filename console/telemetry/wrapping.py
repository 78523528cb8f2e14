"""What other programs put before an engine's line when they keep it: journalctl, syslog, container runtimes, supervisors,
loggers, launchers of several ranks, grep.

Only what stands at the very start of a line and has a known shape is taken off: a prompt that is echoed in a log may
well hold the words of a record further in.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_CONTROL = re.compile(
    r"\x1b\[[0-9;:?]*[ -/]*[@-~]"  # colours and cursor moves
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # window titles
    r"|\x1b[()][0-9A-B]|\x1b[=>]"
    r"|#033\[[0-9;]*m"  # a colour as rsyslog keeps it
    r"|\x00"  # what a crash leaves in a file that was being written
)
_BLANK = " \t\ufeff"

_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_SHORT = rf"(?:{_DAY} )?[A-Z][a-z]{{2}} [ 0-9]\d \d\d:\d\d:\d\d(?:\.\d+)?"  # names no year, so it is no time of ours
_STAMP = (
    rf"(?:{_DAY} )?"
    r"(?P<stamp>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z| ?[+-]\d\d(?::?\d\d)?)?)"
)
_EPOCH = r"(?P<epoch>\d{9,11}\.\d{1,9})"
_SINCE_BOOT = r"\[ *\d+\.\d+(?: < *\d+\.\d+ >)?\]"
_PROGRAM = r"(?!slot print_timing: )[\w.\-]{1,120} \(?[\w.\-@/:+]{1,200}\)?(?:\[[\w.]+\])?:"
_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|SUCCESS)"
_OWN_STAMP = r"(?!(?:\d{4}-)?\d\d-\d\d \d\d:)"  # a level before a date is the head of vLLM's own line

_STAMPED = re.compile(
    # journalctl's text formats and syslog files: `<time> <host> <program>[<pid>]: `
    rf"(?:<\d{{1,3}}>)?(?:{_SHORT}|{_STAMP}(?P<zone> [A-Z]{{2,5}})?|{_EPOCH}|{_SINCE_BOOT}) {_PROGRAM} "
)
_SYSLOG_5424 = re.compile(rf"<\d{{1,3}}>1 {_STAMP} \S+ \S+ \S+ \S+ (?:-|(?:\[[^\]]*\])+) ?")
_STAMP_ALONE = re.compile(
    rf"(?:{_STAMP}|{_SHORT}|{_EPOCH})(?:[ \t]+|(?=\t)|$)"
    r"(?:(?:stdout|stderr) [FP] "  # container runtimes
    rf"|\| {_LEVEL} *\| [^|]{{1,160}}? - "  # loguru
    rf"|(?:- [\w.]{{1,80}} )?- {_LEVEL} - "  # Python's logging, as most set it up
    r"|[\w.\-@/]{1,120}\[[\w.]+\]: "  # syslog without a host
    rf"|\[?{_LEVEL}\]?:? +{_OWN_STAMP}"
    r")?"
)
_TAG = re.compile(
    r"<\d>"  # the syslog level, where nobody took it off
    r"|(?:\d{1,4}\|)?[\w.\-]{1,80} *\| "  # docker compose, pm2
    r"|\[pod/[^\]\s]{1,200}\] "  # kubectl logs --prefix
    r"|\[(?:rank|default)\d+\]: ?|\[\d+,\d+\]<std(?:out|err)>: ?"  # torchrun, mpirun
    r"|[\w./\-]{1,200}\.(?:log|txt|out|err)(?:[.\-]\d+)?[:\-](?:\d+[:\-])? ?|\d{1,9}(?:: ?|\t)"  # grep over files, line numbers, srun
    rf"|\[?{_LEVEL}\]?:(?:[\w.]{{1,80}}:| *)"  # Python's logging, as it is where nobody set it up
    r"|\([\w:.\- ]{1,80} pid=\d+(?:, ip=[\w.:]+)?\) "  # Ray, and vLLM's own
)
_WRAPS = (_STAMPED, _SYSLOG_5424, _STAMP_ALONE, _TAG)
_DEEPEST = 4
"""A container's stamp within a compose tag within a journal is three."""
_ENGINES_OWN = re.compile(r"(?:decode|request|prefill|ready) |\[\d{4}-|INFO \d")
"""How the engines' own lines begin, which is the common case and needs no closer look."""


def unwrapped(line: str) -> tuple[str, str | None]:
    """`line` as the engine wrote it, and the stamp in ISO 8601 that was kept beside it, or None where there is none that
    names its year."""
    text = line.rstrip("\r\n")
    if not text.isprintable() or "#033[" in text:
        text = _CONTROL.sub("", text)
        text = text[text.rfind("\r") + 1 :]  # a progress bar was drawn over
    text = text.lstrip("\ufeff")
    time: str | None = None
    for _ in range(_DEEPEST):
        if _ENGINES_OWN.match(text):
            break
        wrap = _wrap(text.lstrip(_BLANK))
        if wrap is None:
            break
        text = wrap.string[wrap.end() :].lstrip("\ufeff")
        time = _time(wrap) or time
    return text, time


def _wrap(text: str) -> re.Match[str] | None:
    return next((found for one in _WRAPS if (found := one.match(text)) is not None and found.end()), None)


def _time(wrap: re.Match[str]) -> str | None:
    found = wrap.groupdict()
    try:
        if found.get("epoch"):
            return datetime.fromtimestamp(float(found["epoch"]), UTC).isoformat(timespec="milliseconds")
        if not found.get("stamp"):
            return None
        stamp = datetime.fromisoformat(found["stamp"].replace(",", ".").replace(" +", "+").replace(" -", "-"))
        if (found.get("zone") or "").strip() in ("UTC", "GMT") and stamp.tzinfo is None:
            stamp = stamp.replace(tzinfo=UTC)
        return stamp.isoformat(timespec="milliseconds" if stamp.microsecond else "seconds")
    except (ValueError, OverflowError, OSError):  # no such day
        return None
