"""A sound little playbook, and ways to spoil it: what the corpus of faulty scripts is made of."""

from __future__ import annotations

HEADER = """\
# /// script
# requires-python = ">=3.9"
# dependencies = []
# [tool.ddtree.playbook]
# api = 1
# id = "sound"
# title = "A sound playbook"
# key = "s"
# summary = "Says hello and ends"
# version = "1.0.0"
# kind = "probe"
# engines = ["bundled", "vllm"]
# needs = ["openai.completions"]
# wants = ["steps.exact"]
# effects = []
# exclusive = true
# est_seconds = "levels*reps*(6+tokens/40)"
# max_seconds = 600
# verdicts = ["explained", "inconclusive"]
# [tool.ddtree.playbook.params.levels]
# type = "int_list"
# default = [50, 1000, 3000]
# min = 16
# max = "engine.max_context-tokens-64"
# help = "prompt tokens"
# [tool.ddtree.playbook.params.tokens]
# type = "int"
# default = 128
# min = 16
# max = 4096
# [tool.ddtree.playbook.params.reps]
# type = "int"
# default = 3
# [tool.ddtree.playbook.params.kind]
# type = "choice"
# choices = ["prose", "code"]
# default = "prose"
# [tool.ddtree.playbook.params.pause]
# type = "duration"
# default = "5s"
# max = 60
# [tool.ddtree.playbook.params.api_key]
# type = "secret"
# ///
"""
BODY = '''\
"""A playbook that only says hello."""

import json
import os
import subprocess
import sys
import time
import urllib.request


def emit(**event):
    print(json.dumps(event), flush=True)


def main():
    emit(v=1, seq=0, t=time.time(), m=time.monotonic(), type="hello", playbook="sound")
    with urllib.request.urlopen(os.environ["DDT_BASE_URL"] + "/health", timeout=5) as answer:
        state = answer.status
    subprocess.run(["systemctl", "--user", "show", "ddtree-engine.service"], check=False, timeout=10)
    emit(v=1, seq=1, t=time.time(), m=time.monotonic(), type="end", status="done", exit=0, rows=0, seq_total=2, state=state)
    return 0


if __name__ == "__main__":
    sys.exit(main())
'''
SOUND = HEADER + BODY
HEADER_LINES = HEADER.count("\n")


def body(text: str) -> str:
    """The sound header with another body; its first line is line HEADER_LINES + 1."""
    return HEADER + text


def changed(old: str, new: str) -> str:
    """The sound script with one thing changed, exactly once."""
    assert SOUND.count(old) == 1, f"{old!r} stands {SOUND.count(old)} times in the script"
    return SOUND.replace(old, new)


def line_of(script: str, text: str) -> int:
    """The 1-based line of the first occurrence of `text`."""
    return script[: script.index(text)].count("\n") + 1
