"""The figures of the newest windows, each with its trend: rate, commit length, step time, context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content

from console.telemetry.rates import Rates, rates_over
from console.telemetry.sample import Sample
from console.tui.glyphs import Glyphs
from console.tui.tones import BAD, COMMIT, GOOD, LABEL_WIDTH, QUIET, RATE, STEP, STRONG, WARN, row, within
from console.tui.view import View
from console.tui.words import duration, epoch_s, figure

NOW_WINDOWS = 5
"""Windows whose sums make the figures shown: about as many seconds."""
BEFORE_WINDOWS = 60
"""Windows before those, against which a trend is told."""
NOTICEABLE = 0.03
"""A change below 3 % is noise, and no trend is shown."""
REMARKABLE = 0.15
"""A change below 15 % is told without a colour: most of them come and go."""
_TREND_WIDTH = 5
PARTIAL = "partial"
"""The word beside figures over a span of which log lines were lost: they are those of the windows that came."""


@dataclass(frozen=True)
class Figures:
    """The newest rates and those just before; `idle_s` is the time since the last window when nothing runs."""

    now: Rates | None
    before: Rates | None
    idle_s: float | None
    context: int | None


def figures_of(view: View) -> Figures:
    """The figures that the newest windows of `view` give."""
    samples = decode_windows(view)
    now = rates_over(samples[-NOW_WINDOWS:])
    before = rates_over(samples[-NOW_WINDOWS - BEFORE_WINDOWS : -NOW_WINDOWS])
    return Figures(now, before, _idle_s(view, samples), samples[-1].context if samples else None)


def decode_windows(view: View) -> Sequence[Sample]:
    """The decode windows at hand, oldest first."""
    samples = view.snapshot.samples if view.snapshot else ()
    return [sample for sample in samples if sample.kind == "decode"]


def draw_figures(view: View, width: int, _height: int) -> list[Content]:
    """One line: `tok/s 32.7 ▾12%   commit length 2.93 of 16   step 89.6 ms   context 3,451 / 200,000`."""
    figures = figures_of(view)
    if figures.now is None:
        return [row("tok/s", (_why_nothing(view), QUIET))]
    room = width - LABEL_WIDTH
    spacious = Content("   ").join(_parts(view, figures, figures.now, brief=False))
    if spacious.cell_length > room:
        spacious = within(_parts(view, figures, figures.now, brief=True), room)
    return [row("tok/s", spacious)]


def _parts(view: View, figures: Figures, now: Rates, *, brief: bool) -> list[Content]:
    """Each figure in a field of its own width, so that none moves when another changes; idle time before the context."""
    glyphs = view.glyphs
    still = brief and figures.idle_s is not None  # figures of a while ago: no trend, and their age needs the room

    def trend(new: float, old: float | None, *, better_up: bool) -> list[tuple[str, str]]:
        return [] if still else _trend(new, old, glyphs, better_up=better_up)

    before = figures.before
    parts = [
        Content.assemble(
            (f"{figure(now.tok_s):>5}", f"bold {RATE}"),
            *trend(now.tok_s, before.tok_s if before else None, better_up=True),
        ),
        Content.assemble(
            ("commit " if brief else "commit length ", QUIET),
            (figure(now.commit_length, 2), f"bold {COMMIT}"),
            ("" if still else _of_block(view), QUIET),
            *trend(now.commit_length, before.commit_length if before else None, better_up=True),
        ),
        Content.assemble(
            ("step ", QUIET),
            (f"{figure(now.step_ms):>5}", f"bold {STEP}"),
            (" ms", QUIET),
            *trend(now.step_ms, before.step_ms if before else None, better_up=False),
        ),
    ]
    if figures.idle_s is not None:
        parts.append(Content.styled(f"idle {duration(figures.idle_s)}", f"bold {WARN}"))
    if now.partial:
        parts.append(Content.styled(PARTIAL if brief else f"{PARTIAL}: log lines were lost", f"bold {WARN}"))
    if figures.context is not None and (figures.idle_s is None or not brief):
        limit = "" if brief else _context_limit(view)
        parts.append(
            Content.assemble(("ctx " if brief else "context ", QUIET), (f"{figures.context:,}", STRONG), (limit, QUIET))
        )
    return parts


def _idle_s(view: View, samples: Sequence[Sample]) -> float | None:
    if view.snapshot is None or view.snapshot.running != 0 or not samples:
        return None
    ended_s = epoch_s(samples[-1].time)
    return None if ended_s is None else max(0.0, view.wall_s - ended_s)


def _why_nothing(view: View) -> str:
    if view.snapshot is None:
        return "waiting for the host"
    service = view.snapshot.service
    if service is not None and service.state != "serving":
        return f"no figures: the service is {service.state.replace('-', ' ')}"
    return "no decode window yet: figures come with the first request"


def _of_block(view: View) -> str:
    """What a step can keep at most: a block of the drafter, its first token being the bonus of the step before.

    A looked-up branch reaches beyond the block: then there is no such bound.
    """
    engine = view.snapshot.engine if view.snapshot else None
    if view.snapshot is not None and view.snapshot.settings.get("lookup", "off") != "off":
        return ""
    return f" of {engine.block_size}" if engine and engine.block_size else ""


def _context_limit(view: View) -> str:
    assert view.snapshot is not None
    limit = view.snapshot.settings.get("context_length") or (view.snapshot.engine and view.snapshot.engine.max_context)
    return f" / {limit:,}" if isinstance(limit, int) else ""


def _trend(now: float, before: float | None, glyphs: Glyphs, *, better_up: bool) -> list[tuple[str, str]]:
    """` ▾12%` in as many columns as no trend takes."""
    change = now / before - 1.0 if before else 0.0
    if abs(change) < NOTICEABLE:
        return [(" " * _TREND_WIDTH, QUIET)]
    arrow = glyphs.up if change > 0 else glyphs.down
    words = f" {arrow}{min(999.0, abs(change) * 100):.0f}%"
    tone = QUIET if abs(change) < REMARKABLE else GOOD if (change > 0) == better_up else BAD
    return [(words.ljust(_TREND_WIDTH), tone)]
