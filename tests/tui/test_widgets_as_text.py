"""What the widgets say, drawn as text without an app."""

from __future__ import annotations

from dataclasses import replace

import pytest

from console.box.values import LinkState, ServiceState
from console.snapshot import GpuFigures, KvFigures, Snapshot, TreeFigures, TreeNode
from console.telemetry.sample import PARTIAL
from console.tui.glyphs import ASCII, UNICODE, shown
from console.tui.keys import EVERYWHERE, HELP, KEYS, SCREENS
from console.tui.view import View
from console.tui.widgets.draft_tree import draw_tree, picture
from console.tui.widgets.figures import draw_figures
from console.tui.widgets.histogram import draw_commits
from console.tui.widgets.key_bar import key_line
from console.tui.widgets.log_line import log_line
from console.tui.widgets.machine import draw_gpus, draw_machine
from console.tui.widgets.notices import draw_alarms, draw_journal
from console.tui.widgets.pane import Draw
from console.tui.widgets.pool import draw_pool
from console.tui.widgets.stages import draw_stages
from console.tui.widgets.timeline import draw_timeline
from console.tui.widgets.top_line import draw_top_line
from console.tui.words import byte_size, duration
from tests.tui.recorded import ALARM, GPUS, WALL_S, decode_sample, record, snapshot

NOW_S = 1000.0
PANES: tuple[Draw, ...] = (
    draw_top_line,
    draw_alarms,
    draw_figures,
    draw_timeline,
    draw_stages,
    draw_commits,
    draw_pool,
    draw_tree,
    draw_gpus,
    draw_machine,
    draw_journal,
)


def view(one: Snapshot | None = None, **changes: object) -> View:
    """The recorded host at a fixed moment."""
    return replace(View("gpu-01", NOW_S, WALL_S, one or snapshot(NOW_S)), **changes)  # type: ignore[arg-type]


def drawn(draw: Draw, one: View, width: int = 80, height: int = 0) -> list[str]:
    """A pane as text."""
    return [line.plain for line in draw(one, width, height)]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_host_tag_state_and_link_stay_on_the_top_line_at_every_width(width: int) -> None:
    (line,) = drawn(draw_top_line, view(), width)
    assert len(line) <= width
    assert "gpu-01 [LAB]" in line
    assert "serving" in line
    assert line.rstrip().endswith("LIVE")


def test_the_wide_top_line_tells_engine_context_page_budget_age_and_latency() -> None:
    (line,) = drawn(draw_top_line, view(), 120)
    assert line == " ● gpu-01 [LAB]  bundled 0.1.0  ctx 8192  page 16  ddtree 16 │ serving 2d03h │ link 41 ms │ LIVE"


def test_a_lost_link_says_for_how_long_the_figures_are_stale() -> None:
    lost = snapshot(NOW_S, link=LinkState("LOST", NOW_S - 40, reason="keepalive"), data_s=NOW_S - 42)
    assert drawn(draw_top_line, view(lost), 80)[0].rstrip().endswith("LOST stale 42 s")


def test_a_link_in_retry_counts_down() -> None:
    waiting = snapshot(NOW_S, link=LinkState("RETRY", NOW_S - 2, retry_at_s=NOW_S + 8), data_s=NOW_S - 5)
    assert "RETRY in 8 s stale 5 s" in drawn(draw_top_line, view(waiting), 80)[0]


def test_states_are_told_apart_by_word() -> None:
    words = set()
    for state in ("serving", "starting", "failed", "stopped", "stuck-in-stop"):
        one = snapshot(NOW_S, service=ServiceState(state, "ddtree-engine.service", "user"))  # type: ignore[arg-type]
        words.add(drawn(draw_top_line, view(one), 80)[0].split("│")[1].strip())
    assert words == {"serving", "starting", "failed", "stopped", "stuck in stop"}


def test_a_read_only_console_says_so() -> None:
    assert "read-only" in drawn(draw_top_line, view(read_only=True), 120)[0]


def test_figures_are_ratios_of_sums_with_their_trend() -> None:
    fast = [decode_sample(i, WALL_S - 60 + i) for i in range(50)]
    fast = [replace(s, tokens=40, steps=10, step_ms=50.0) for s in fast]
    slow = [replace(decode_sample(50 + i, WALL_S - 10 + i), tokens=20, steps=10, step_ms=100.0) for i in range(5)]
    (line,) = drawn(draw_figures, view(snapshot(NOW_S, samples=(*fast, *slow))), 120)
    assert "20.0 ▾75%" in line  # 100 tokens in 5 s, before: 2,000 tokens in 25 s
    assert "commit length 2.00 of 16 ▾50%" in line
    assert "step 100.0 ms ▴100%" in line
    looked_up = snapshot(NOW_S, samples=(*fast, *slow))
    looked_up = replace(looked_up, settings={**looked_up.settings, "lookup": "auto"})
    assert "commit length 2.00 ▾50%" in drawn(draw_figures, view(looked_up), 120)[0]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_figures_over_lost_log_lines_say_partial_in_a_word(width: int) -> None:
    whole = snapshot(NOW_S)
    short = (*whole.samples[:-2], replace(whole.samples[-2], notes=(f"{PARTIAL}3 lines were lost",)), whole.samples[-1])
    before, after = view(whole), view(replace(whole, samples=short))
    for draw, height in ((draw_figures, 1), (draw_stages, 1), (draw_stages, 6), (draw_commits, 1), (draw_commits, 6)):
        told = [" ".join(drawn(draw, one, width, height)).count("partial") for one in (before, after)]
        assert told == [0, 1], draw
    assert "partial" in drawn(draw_timeline, after, width, 7)[-1]
    assert "partial" not in " ".join(drawn(draw_timeline, before, width, 7))
    assert all(len(line) <= width for line in drawn(draw_figures, after, width))
    first = (replace(whole.samples[-5], notes=(f"{PARTIAL}before the span",)), *whole.samples[-4:])
    assert "partial" not in drawn(draw_figures, view(replace(whole, samples=first)), width)[0]


def test_an_idle_engine_is_called_idle_and_its_old_figures_are_kept() -> None:
    idle = snapshot(NOW_S, running=0)
    (line,) = drawn(draw_figures, View("gpu-01", NOW_S, WALL_S + 75, idle), 120)
    assert "idle 1m15s" in line
    slower = [replace(s, step_ms=180.0) for s in idle.samples[-5:]]  # a trend at every figure leaves the least room
    idle = replace(idle, samples=(*idle.samples[:-5], *slower))
    for width in (60, 80):
        (line,) = drawn(draw_figures, View("gpu-01", NOW_S, WALL_S + 75, idle), width)
        assert "idle 1m15s" in line and "%" not in line and len(line) <= width
    assert "tok/s" in line


def test_no_window_yet_is_said_and_is_no_zero() -> None:
    (line,) = drawn(draw_figures, view(snapshot(NOW_S, samples=())), 80)
    assert "no decode window yet" in line
    assert "0" not in line


def test_one_spike_is_seen_in_forty_columns() -> None:
    samples = tuple(decode_sample(i, WALL_S - 1000 + i, spike=i == 500) for i in range(1000))
    lines = drawn(draw_timeline, view(snapshot(NOW_S, samples=samples)), 40, 13)
    step = lines[8:12]
    columns = {i for row in step[:2] for i, character in enumerate(row) if character > "⠀" and i > 16}
    assert len(columns) in (1, 2)  # the spike, and nothing else, reaches the upper half


def test_charts_share_one_axis_and_name_its_ends() -> None:
    lines = drawn(draw_timeline, view(), 80, 7)
    assert [line.split()[0] for line in lines[0:6:2]] == ["tok/s", "commit", "step"]
    assert lines[6].split() == ["-2m00s", "-1m00s", "now"]


def test_stages_stand_in_running_order_with_milliseconds() -> None:
    (first, second) = drawn(draw_stages, view(), 80, 2)
    for name, ms in (("draft", "4.1"), ("build", "0.3"), ("walk", "0.1"), ("commit", "0.5"), ("host", "0.7")):
        assert f"{name} " in first + second
        assert f" {ms}" in first + second
    assert (first + second).index("draft") < (first + second).index("verify") < (first + second).index("host")
    assert second.endswith("ms a step")


def test_a_tall_pane_lists_one_stage_a_row_with_shares() -> None:
    lines = drawn(draw_stages, view(), 60, 6)
    assert [line[10:17].strip() for line in lines] == ["draft", "build", "verify", "walk", "commit", "host"]
    assert lines[2].rstrip().endswith("95 %")


def test_the_commit_histogram_has_one_column_a_length() -> None:
    (line,) = drawn(draw_commits, view(), 80, 1)
    assert line.startswith(" commits  1 █ 2 ")
    assert line.endswith("of 660 steps")


def test_the_pool_shows_pages_and_the_queue() -> None:
    full = snapshot(NOW_S, kv=KvFigures(2311, 4096, 64, 70_272), running=1, queued=3)
    (line,) = drawn(draw_pool, view(full), 120)
    assert "2,311 / 4,096  56 %" in line
    assert "of 18.4 GB" in line
    assert line.endswith("running 1  queue 3")


def test_the_accepted_path_is_the_solid_top_line_of_the_tree() -> None:
    lines = drawn(draw_tree, view(), 120, 8)
    assert lines[0].startswith(" tree     ● the ─┬─ ● light .61 ─┬─ ● house .48 ─┬─ ● stood .14")
    assert any("└─ ○ old .09" in line for line in lines)
    assert lines[-1].split()[:6] == ["kept", "4", "12", "of", "16", "drafts"]


def test_what_was_looked_up_has_its_own_mark_and_its_share_is_told() -> None:
    nodes = (
        TreeNode(-1, 0, "r", None, True),
        TreeNode(0, 1, "kept", 0.9, True, lookup=True),
        TreeNode(1, 2, "not", 0.8, False, lookup=True),
        TreeNode(0, 1, "own", 0.1, False),
    )
    told = snapshot(NOW_S, tree=TreeFigures(nodes, 4, 2), lookup_share=0.25)
    lines = drawn(draw_tree, view(told), 120, 8)
    assert "◆ kept .90" in lines[0]
    assert "◇ not .80" in lines[0]
    assert "○ own .10" in lines[1]
    assert "◆ lookup 25 % of kept" in lines[-1]


def test_a_tree_that_does_not_fit_says_how_much_is_hidden() -> None:
    lines = drawn(draw_tree, view(), 120, 3)
    assert len(lines) == 3
    assert "z shows 4 more" in lines[-1]


def test_rows_of_a_tree_that_begin_beyond_the_edge_are_counted_and_not_drawn() -> None:
    chain = [TreeNode(i - 1, i, f"token{i:02}", 0.5, False) for i in range(9)]
    forks = [TreeNode(i, i + 1, f"fork{i:02}", 0.1, False) for i in range(8)]
    one = view(snapshot(NOW_S, tree=TreeFigures((*chain, *forks), budget=16, commit_length=1)))
    lines = drawn(draw_tree, one, 80, 20)
    forked = [line for line in lines if "fork" in line]
    assert 2 <= len(forked) < 8
    assert all(line.rstrip().endswith((".10", "…")) for line in forked)
    assert f"z shows {8 - len(forked)} more" in lines[-1]


def test_every_node_of_the_tree_is_drawn_once() -> None:
    nodes = [TreeNode(-1, 0, "r", None, True)]
    for i in range(40):
        nodes.append(TreeNode(i // 3, nodes[i // 3].depth + 1, f"n{i:03}", 0.5, False))
    whole = "\n".join("".join(str(p if isinstance(p, str) else p[0]) for p in line) for line in picture(nodes, UNICODE))
    for i in range(40):
        assert whole.count(f"n{i:03}") == 1


def test_a_box_without_a_gpu_says_so_in_words() -> None:
    assert drawn(draw_gpus, view()) == [" GPUs     no GPU on this box"]


def test_gpus_that_do_not_fit_are_counted() -> None:
    lines = drawn(draw_gpus, view(snapshot(NOW_S, gpus=GPUS)), 80, 3)
    assert len(lines) == 3
    assert "and 6 more" in lines[-1]


def test_a_throttled_gpu_tells_why() -> None:
    hot = GpuFigures(0, "X", 97.0, 88_000_000_000, throttle="SwThermalSlowdown")
    assert "throttle: SwThermalSlowdown" in drawn(draw_gpus, view(snapshot(NOW_S, gpus=(hot,))))[0]


def test_an_alarm_is_a_sentence_with_its_key_at_every_width() -> None:
    for width in (60, 80, 120):
        (line,) = drawn(draw_alarms, view(snapshot(NOW_S, alarms=(ALARM,))), width)
        assert len(line) <= width
        assert line.startswith(" ▲ ALARM")
        assert line.endswith("press 1")
    assert drawn(draw_alarms, view()) == []


def test_control_characters_from_the_box_are_written_out() -> None:
    assert shown("a\x1b[31mred\x00\x7f\r", UNICODE) == "a␛[31mred␀␡␍"
    assert shown("a\x1b[31m", ASCII) == "a^[[31m"
    assert shown("\u202eevil", UNICODE) == "<U+202E>evil"
    assert shown("\x9b31m", UNICODE) == "<U+009B>31m"


def test_a_log_line_sends_no_control_character() -> None:
    line = log_line(record("\x1b]0;title\x07 \x1b[2J done", 1), UNICODE).plain
    assert line.isprintable()
    assert "␛]0;title␇" in line


def test_a_gap_in_the_journal_is_a_line_of_its_own() -> None:
    gap = replace(record("12 s of log are missing", 1), marker="gap")
    assert log_line(gap, UNICODE).plain == "─── gap: 12 s of log are missing ───"


@pytest.mark.parametrize("draw", PANES)
def test_ascii_mode_draws_nothing_but_ascii(draw: Draw) -> None:
    one = view(snapshot(NOW_S, gpus=GPUS, alarms=(ALARM,)), glyphs=ASCII)
    for width, height in ((60, 2), (80, 7), (200, 20)):
        assert all(line.isascii() for line in drawn(draw, one, width, height))


@pytest.mark.parametrize("draw", PANES)
def test_a_pane_before_the_first_snapshot_is_empty_or_says_what_it_waits_for(draw: Draw) -> None:
    drawn(draw, View("gpu-01", NOW_S, WALL_S, None), 80, 5)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("which", SCREENS)
def test_the_help_key_is_never_cut_off(which: str, width: int) -> None:
    line = key_line(HELP, (*KEYS[which], *EVERYWHERE), which, width, unread=3).plain  # type: ignore[index, arg-type]
    assert line.startswith(" ? help")
    assert len(line) <= width


def test_no_key_of_a_screen_is_given_twice() -> None:
    for which in SCREENS:
        keys = [key.key for key in (HELP, *EVERYWHERE, *KEYS[which])]
        assert sorted(keys) == sorted(set(keys)), which


def test_durations_and_sizes_carry_their_units() -> None:
    assert [duration(s) for s in (0, 42, 200, 7500, 183_600)] == ["0 s", "42 s", "3m20s", "2h05m", "2d03h"]
    now = 2018.6122479358758
    assert now + 120.0 - now < 120.0 and duration(now + 120.0 - now) == "2m00s"  # as two clock readings differ
    assert [byte_size(n) for n in (512, 70_272, 14_054_400_000, None)] == ["512 B", "70.3 kB", "14.1 GB", "?"]


def test_tokens_of_blanks_and_line_ends_are_readable_in_the_tree() -> None:
    nodes = tuple(
        TreeNode(-1 if i == 0 else 0, min(i, 1), text, 0.5, False)
        for i, text in enumerate((" the", "\n  ", " ", " a\t"))
    )
    tree = TreeFigures(nodes, budget=4, commit_length=1)
    lines = drawn(draw_tree, view(snapshot(NOW_S, tree=tree)), 100, 6)
    assert lines[0].split()[1:3] == ["●", "the"]
    assert [line.split("○ ")[1].split()[0] for line in lines[:3]] == ["\\n··", "·", "a\\t"]
