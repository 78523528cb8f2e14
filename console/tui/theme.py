"""The console's colours: quiet ground, few tones, each with one meaning. Layout is in theme.tcss."""

from __future__ import annotations

from textual.theme import Theme

TONES: dict[str, str] = {
    "chart-rate": "#4fb8c4",
    "chart-commit": "#b197e8",
    "chart-step": "#d6a55c",
    "stage-1": "#b197e8",
    "stage-2": "#8fa3bf",
    "stage-3": "#4fb8c4",
    "stage-4": "#7bb98f",
    "stage-5": "#d6a55c",
    "stage-6": "#8a93a5",
    "host-1": "#4fb8c4",
    "host-2": "#7bb98f",
    "host-3": "#b197e8",
    "host-4": "#d6a55c",
    "host-5": "#7aa7e6",
    "host-production": "#f28b82",
    "named-red": "#f28b82",
    "named-yellow": "#e0b25e",
    "named-green": "#7bb98f",
    "named-blue": "#7aa7e6",
    "named-magenta": "#b197e8",
    "named-cyan": "#4fb8c4",
    "named-white": "#e6eaf2",
    "named-grey": "#8a93a5",
}
"""Variables of our own; they stand in for themes that do not define them."""

CALM = Theme(
    name="calm",
    primary="#7aa7e6",
    secondary="#b197e8",
    accent="#7aa7e6",
    foreground="#d5dae3",
    background="#12161d",
    surface="#171c25",
    panel="#1f2631",
    success="#7bb98f",
    warning="#e0b25e",
    error="#f28b82",
    dark=True,
    variables={
        **TONES,
        "text-muted": "#8a93a5",
        "border": "#2c3543",
        "border-blurred": "#2c3543",
        "block-cursor-background": "#2a3445",
        "block-cursor-foreground": "#e6eaf2",
        "block-cursor-text-style": "none",
        "input-cursor-background": "#d5dae3",
        "scrollbar": "#2c3543",
        "scrollbar-hover": "#3a4557",
        "scrollbar-active": "#7aa7e6",
        "scrollbar-background": "#12161d",
        "scrollbar-background-hover": "#12161d",
        "scrollbar-background-active": "#12161d",
        "scrollbar-corner-color": "#12161d",
    },
)
