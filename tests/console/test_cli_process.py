"""`ddtree` from outside: exit statuses, one line on standard error, and standard output that carries data alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.console.conftest import Ddtree

FOUNDING_CASE = Path(__file__).parents[1] / "data" / "founding_case.json"
TINY_TARGET = Path(__file__).parents[1] / "data" / "tiny-ddtree" / "target"
DECODE = "decode seq=1 req=r1 steps=2 tokens=6 wall_ms=20 running=1\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["statsu", "demo"], "no verb 'statsu'; did you mean status?"),
        (["restart", "demo", "--sett", "page_size=1"], "did you mean --set?"),
        (["status"], "needs HOST"),
        (["status", "demo"], "no demo is running"),
        (["status", "user@"], "is no host name"),
        (["status", "no-such-host.invalid"], "no-such-host.invalid"),
        (["parse", "no-such-file.log"], "no such file"),
        (["explain", "no-such-file.json"], "no such file"),
        (["check", "no-such-file.py"], "cannot be read"),
        (["capacity", "no-such-folder", "--context-length", "10"], "no such file"),
        (["logs", "demo", "--grep", "("], "is no regular expression"),
        (["--json"], "--json needs a verb"),
        ([], "the console needs a terminal"),
        (["--plain"], "names no host"),
    ],
)
def test_bad_input_is_one_line_and_status_2(ddtree: Ddtree, words: list[str], said: str) -> None:
    done = ddtree(*words)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stderr.startswith("ddtree: ") and done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert done.stdout == "" or words[0] in ("check", "--json")


def test_with_json_the_error_is_an_object_on_standard_output_too(ddtree: Ddtree) -> None:
    done = ddtree("status", "demo", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout) == {
        "error": {"what": "no demo is running", "where": "demo", "mend": "start one with `ddtree demo`", "exit": 2}
    }
    assert done.stderr == "ddtree: demo: no demo is running; start one with `ddtree demo`\n"


@pytest.mark.parametrize(("text", "said"), [("[" * 100_000, "nested too deeply"), ("9" * 5000, "is not JSON")])
def test_json_that_python_will_not_read_is_one_line(ddtree: Ddtree, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "observations.json"
    file.write_text(text)
    done = ddtree("explain", str(file))
    assert done.returncode == 2 and str(file) in done.stderr and said in done.stderr and done.stderr.count("\n") == 1


def test_a_slip_in_the_options_is_an_object_too(ddtree: Ddtree) -> None:
    done = ddtree("--json", "statsu")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["mend"] == "did you mean status?"


def test_nobody_answering_is_status_5(ddtree: Ddtree) -> None:
    done = ddtree("status", "127.0.0.1:9", "--json")  # the discard port: nobody listens there
    assert done.returncode == 5, done.stderr
    assert json.loads(done.stdout)["error"]["exit"] == 5


def test_parse_prints_samples_and_ends_with_the_count(ddtree: Ddtree, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(f'a prompt said "{DECODE.strip()}"\n{DECODE}')
    done = ddtree("parse", str(log), "-", "--json", stdin=DECODE.replace("tokens=6", "tokens=8"))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line.get("commit_length") for line in lines] == [3.0, 4.0, None]
    assert lines[-1] == {"kind": "end", "lines": 3, "records": 2, "skipped": 1}


def test_parse_reads_journal_objects_with_their_time(ddtree: Ddtree) -> None:
    base = {"__CURSOR": "s=1;i=1", "__REALTIME_TIMESTAMP": "1770000000250000", "PRIORITY": "6"}
    coloured = list(f"\x1b[1m{DECODE.strip()}\x1b[0m".encode())  # journald gives a line with ESC as bytes
    text = "".join(json.dumps({**base, "MESSAGE": message}) + "\n" for message in (DECODE.strip(), coloured, None))
    done = ddtree("parse", "--engine", "bundled", "--json", stdin=text)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["commit_length"] for line in lines[:-1]] == [3.0, 3.0], done.stderr
    assert lines[0]["time"] == "2026-02-02T02:40:00.250+00:00"
    assert lines[-1]["skipped"] == 1


def test_bytes_that_are_no_text_do_not_end_the_parse(ddtree: Ddtree, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(b"\xff\xfe\x00 noise\r\n" + DECODE.encode())
    assert json.loads(ddtree("parse", str(log), "--json").stdout.splitlines()[-1])["records"] == 1


def test_explain_gives_the_founding_cases_verdict(ddtree: Ddtree) -> None:
    done = ddtree("explain", str(FOUNDING_CASE), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"]["class"] == "explained"
    assert report["attribution"]["total"] == pytest.approx(4.700, abs=0.002)


def test_explain_says_which_line_is_no_json(ddtree: Ddtree, tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    file.write_text('{"observations": [\n  {"label": }]}')
    done = ddtree("explain", str(file))
    assert done.returncode == 2
    assert "line 2, col 13" in done.stderr


def test_capacity_says_what_fits_and_exits_3_when_it_does_not(ddtree: Ddtree) -> None:
    words = ["capacity", str(TINY_TARGET), "--context-length", "1000", "--page-size", "16", "--json"]
    fits = ddtree(*words, "--memory", "2MB")
    assert fits.returncode == 0, fits.stderr
    config = json.loads((TINY_TARGET / "config.json").read_text())
    per_token = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * 2
    found = json.loads(fits.stdout)
    assert found["bytes_per_token"] in (per_token, 2 * per_token)  # bfloat16 or float32 weights
    assert found["pages"] == 2_000_000 // (found["bytes_per_token"] * 16)
    tight = ddtree(*words, "--memory", "100kB")
    assert tight.returncode == 3
    assert json.loads(tight.stdout)["fits"] is False


@pytest.mark.parametrize("length", ["0", "100000000"])
def test_capacity_refuses_a_length_with_both_numbers(ddtree: Ddtree, length: str) -> None:
    done = ddtree("capacity", str(TINY_TARGET), "--context-length", length)
    assert done.returncode == 2
    assert length in done.stderr


def test_playbooks_lists_every_script_with_its_validity(ddtree: Ddtree) -> None:
    found = json.loads(ddtree("playbooks", "--json").stdout)["playbooks"]
    assert all(playbook["valid"] for playbook in found), found


def test_check_shows_line_column_and_source(ddtree: Ddtree, tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("# nothing above\nprint(f'{x!}')\n")
    done = ddtree("check", str(script))
    assert done.returncode == 2
    assert "line 2, col" in done.stdout and "print(f'{x!}')" in done.stdout
    assert done.stderr.count("\n") == 1


def test_version_and_help_are_data(ddtree: Ddtree) -> None:
    assert ddtree("--version").stdout.startswith("ddtree ")
    overview = ddtree("--help").stdout
    from console.actions import VERBS

    assert all(f"  {name}" in overview for name in VERBS)
    assert "--dry-run" in ddtree("restart", "--help").stdout


def test_no_colour_reaches_a_pipe(ddtree: Ddtree) -> None:
    assert "\x1b" not in ddtree("--help").stdout + ddtree("explain", str(FOUNDING_CASE)).stdout


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(DECODE * 20_000)
    command = [sys.executable, "-m", "console.cli", "parse", str(log), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 0


def test_an_interrupt_is_status_130(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "console.cli", "parse", "-", "--json"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        process.stdin.write(DECODE)
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(2)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "ddtree: interrupted\n"


def test_a_fault_of_ours_is_one_line_that_names_a_file(ddtree: Ddtree, tmp_path: Path) -> None:
    # A last host that is no text is what nobody planned for.
    state = tmp_path / "state"
    (state / "ddtree").mkdir(parents=True)
    (state / "ddtree" / "last_host").write_bytes(b"\xff\n")
    done = ddtree("--plain", env={"XDG_STATE_HOME": str(state)})
    assert done.returncode == 1
    assert done.stderr.startswith("ddtree: unexpected UnicodeDecodeError") and done.stderr.count("\n") == 1
    named = Path(done.stderr.rpartition(" is in ")[2].strip())
    assert "Traceback" in named.read_text()


@pytest.mark.parametrize("words", [["status", "--help"], ["status", "demo"], ["--version"], ["parse", os.devnull]])
def test_the_headless_path_loads_no_screen_and_no_torch(words: list[str]) -> None:
    program = (
        "import sys; from console.cli import main; main(sys.argv[1:]); "
        "loaded = {'textual', 'rich', 'torch', 'numpy', 'scipy', 'engine', 'kernels'} & sys.modules.keys(); "
        "sys.exit(f'loaded: {loaded}' if loaded else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("confirm",), "confirm: needs HOST; write ddtree confirm HOST"),
        (("revert", "gpu", "now"), "revert: takes no 'now'; write ddtree revert HOST"),
        (("confirm", "gpu", "--yes"), "confirm: no option --yes"),
        (("start", "gpu", "--confirm-within", "5"), "start: no option --confirm-within"),
        (("restart", "gpu", "--confirm-within"), "--confirm-within: needs a value; write --confirm-within S"),
        (("restart", "gpu", "--confirm-within", "1e3"), "--confirm-within: '1e3' is not a whole number"),
        (("restart", "gpu", "--confirm-within", "-5"), "--confirm-within: '-5' is not a whole number"),
        (("restart", "gpu", "--confirm-within", "5"), "--confirm-within: needs a change; add --set NAME=VALUE"),
        (
            ("restart", "gpu", "--confirm-within", "0", "--set", "page_size=8"),
            "--confirm-within: 0 is outside 1 to 86400 seconds",
        ),
        (
            ("restart", "gpu", "--confirm-within", "86401", "--set", "page_size=8"),
            "--confirm-within: 86401 is outside 1 to 86400 seconds",
        ),
    ],
)
def test_a_word_that_is_asked_for_wrongly_is_one_line(ddtree: Ddtree, words: tuple[str, ...], said: str) -> None:
    done = ddtree(*words)
    assert (done.returncode, done.stderr) == (2, f"ddtree: {said}\n")
