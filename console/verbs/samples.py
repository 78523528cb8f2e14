"""A Sample in words: the same line for `status`, `logs --samples` and `parse`."""

from __future__ import annotations

from console.telemetry.sample import Sample


def rates_in_words(sample: Sample) -> str:
    """`35.6 tok/s   commit length 3.25   step 91.3 ms   context 3451`: what the sample knows, nothing for the rest."""
    return _joined(
        f"{sample.tok_s:.1f} tok/s" if sample.tok_s is not None else None,
        f"commit length {sample.commit_length:.2f}" if sample.commit_length is not None else None,
        f"step {sample.step_ms:.1f} ms" if sample.step_ms is not None else None,
        f"context {sample.context}" if sample.context is not None else None,
    )


def figures_in_words(sample: Sample) -> str:
    """The rates, and every other figure that the sample knows."""
    return _joined(
        rates_in_words(sample),
        f"{sample.tokens} tokens" if sample.tokens is not None else None,
        f"{sample.steps} steps" if sample.steps is not None else None,
        f"accept rate {sample.accept_rate:.2f}" if sample.accept_rate is not None else None,
        f"KV {100 * sample.kv_fraction:.0f} %" if sample.kv_fraction is not None else None,
        f"running {sample.running}" if sample.running is not None else None,
        f"queued {sample.queued}" if sample.queued is not None else None,
        f"graph {'on' if sample.graph else 'off'}" if sample.graph is not None else None,
    )


def _joined(*figures: str | None) -> str:
    return "   ".join(figure for figure in figures if figure)


def sample_line(sample: Sample) -> str:
    """One line: when, what kind, the figures, and the notes in brackets."""
    notes = f"   [{'; '.join(sample.notes)}]" if sample.notes else ""
    rank = f" {sample.rank}" if sample.rank else ""
    return f"{sample.time or '-'}  {sample.engine}{rank} {sample.kind}  {figures_in_words(sample)}{notes}"
