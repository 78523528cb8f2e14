"""The corpus of faulty scripts: each is refused at its place, none is run, and sound ones of the same look pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from sound_script import BODY, HEADER, HEADER_LINES, SOUND, body, changed, line_of

from console.experiments.playbook import Playbook, catalogue, judge_playbook, read_playbook

FIRST = HEADER_LINES + 1  # the first line of the body


def judge(script: str | bytes, target: tuple[int, int] | None = None) -> Playbook:
    data = script.encode() if isinstance(script, str) else script
    return judge_playbook(Path("/nowhere/sound.py"), data, target=target)


def test_the_sound_script_has_neither_faults_nor_warnings():
    playbook = judge(SOUND)
    assert playbook.faults == ()
    assert playbook.warnings == ()
    assert playbook.valid
    assert (playbook.id, playbook.key, playbook.max_seconds) == ("sound", "s", 600)
    assert [param.name for param in playbook.params] == ["levels", "tokens", "reps", "kind", "pause", "api_key"]


BYTES = [
    ("a byte order mark", b"\xef\xbb\xbf" + SOUND.encode(), 1, 1, "byte order mark"),
    ("a NUL", SOUND.replace("hello and", "hello\0and").encode(), 9, 24, "NUL"),
    ("Latin-1", SOUND.replace("hello and", "héllo and").encode("latin-1"), 9, 20, "0xe9 is not UTF-8"),
    ("CRLF", SOUND.replace("\n", "\r\n").encode(), 1, 13, "carriage return"),
    (
        "a lone CR",
        SOUND.replace("time.time(), m", "time.time(),\r m", 1).encode(),
        line_of(SOUND, "emit(v=1, seq=0"),
        36,
        "carriage",
    ),
    ("too large", SOUND.encode() + b"#" * 300_000, 1, 1, "262,144"),
    ("empty", b"", 1, 1, "empty"),
    ("only blanks", b"  \n\n", 1, 1, "empty"),
    ("another encoding declared", b"# -*- coding: latin-1 -*-\n" + SOUND.encode(), 1, 15, "latin-1"),
]


@pytest.mark.parametrize(
    ("data", "line", "column", "says"), [case[1:] for case in BYTES], ids=[case[0] for case in BYTES]
)
def test_bytes_that_are_no_script_are_refused_at_their_place(data: bytes, line: int, column: int, says: str):
    fault = judge(data).faults[0]
    assert (fault.line, fault.column) == (line, column)
    assert says in fault.message


def _without_line(start: str) -> str:
    return "".join(line for line in SOUND.splitlines(keepends=True) if not line.startswith(start))


HEADERS = [
    ("no header", BODY, 1, "no header"),
    ("another block type", SOUND.replace("# /// script", "# /// playbook"), 1, "registered type is `# /// script`"),
    ("a header with the wrong case", SOUND.replace("# /// script", "# /// Script"), 1, "exactly `# /// script`"),
    ("an indented header", SOUND.replace("# /// script", " # /// script"), 1, "exactly `# /// script`"),
    ("two headers", HEADER + "\n" + SOUND, HEADER_LINES + 2, "second `# /// script` block"),
    ("two headers without a gap", HEADER + SOUND, HEADER_LINES + 1, "second `# /// script` block"),
    ("an unclosed header", HEADER.removesuffix("# ///\n") + "\n" + BODY, 1, "never closed"),
    ("a header that breaks off", changed("# api = 1", "#api = 1"), 5, "breaks off here"),
    ("a blank line inside the header", changed("# api = 1\n", "# api = 1\n\n"), 1, "never closed"),
    ("broken TOML", changed('# key = "s"', '# key = "s'), 8, "TOML"),
    ("TOML without a value", changed("# api = 1", "# api ="), 5, "TOML"),
    ("a TOML key twice", changed("# api = 1", "# api = 1\n# api = 1"), 6, "TOML"),
    ("an unclosed TOML list", changed('wants = ["steps.exact"]', 'wants = ["steps.exact"'), 15, "TOML"),
    ("two TOML keys on a line", changed("# api = 1", '# api = 1; id = "sound"'), 5, "TOML"),
    ("dependencies", changed("dependencies = []", 'dependencies = ["numpy"]'), 3, "'numpy' cannot be had"),
    ("no requires-python", _without_line("# requires-python"), 1, "requires-python is missing"),
    ("an unreadable requires-python", changed('">=3.9"', '"3.9+"'), 2, "requires-python is not readable"),
    ("a Python nobody has", changed('">=3.9"', '"<3.8"'), 2, "admits none"),
    ("an unknown top-level key", changed("# dependencies", "# dependancies"), 3, "did you mean 'dependencies'"),
    ("no playbook table", SOUND.replace("tool.ddtree.playbook", "tool.ddtree.playbok"), 4, "did you mean 'playbok'"),
    ("an unknown key", changed("# summary =", "# sumary ="), 9, "did you mean 'summary'"),
    ("a missing key", _without_line("# title"), 4, "title is missing"),
    ("a missing estimate", _without_line("# est_seconds"), 4, "est_seconds is missing"),
    ("another api", changed("# api = 1", "# api = 2"), 5, "api is 2"),
    ("api as a bool", changed("# api = 1", "# api = true"), 5, "api is True"),
    ("an id that is not the file's name", changed('id = "sound"', 'id = "loud"'), 6, "'loud' and the file's name is 'sound'"),
    ("an id in capitals", changed('id = "sound"', 'id = "Sound"'), 6, "small letter"),
    ("a title of the wrong type", changed('"A sound playbook"', "5"), 7, "title is an integer, not a string"),
    ("a key of two letters", changed('key = "s"', 'key = "st"'), 8, "one printable"),
    ("an empty summary", changed('"Says hello and ends"', '""'), 9, "summary is empty"),
    ("a version of two numbers", changed('"1.0.0"', '"1.0"'), 10, "three numbers"),
    ("an unknown kind", changed('"probe"', '"prob"'), 11, "did you mean 'probe'"),
    ("an unknown engine", changed('"vllm"', '"vlm"'), 12, "did you mean 'vllm'"),
    ("engines as a string", changed('["bundled", "vllm"]', '"bundled"'), 12, "engines is a string"),
    ("no engine", changed('["bundled", "vllm"]', "[]"), 12, "engines is empty"),
    ("an unknown capability", changed('"openai.completions"', '"openai.completion"'), 13, "did you mean 'openai.completions'"),
    ("a capability twice", changed('["steps.exact"]', '["steps.exact", "steps.exact"]'), 14, "twice"),
    ("an unknown effect", changed("# effects = []", '# effects = ["restart_service"]'), 15, "did you mean 'restarts_service'"),
    ("exclusive as a string", changed("exclusive = true", 'exclusive = "yes"'), 16, "not true or false"),
    ("an estimate that calls", changed('"levels*reps*(6+tokens/40)"', '"open(levels)"'), 17, "open() is no function"),
    ("an estimate with a power", changed('"levels*reps*(6+tokens/40)"', '"9**9**9"'), 17, "unexpected '*'"),
    ("an estimate with an unknown name", changed('"levels*reps*(6+tokens/40)"', '"levels*token"'), 17, "did you mean 'tokens'"),
    ("an unclosed estimate", changed('"levels*reps*(6+tokens/40)"', '"levels*(reps"'), 17, "expected ')'"),
    ("no time limit", changed("max_seconds = 600", "max_seconds = 0"), 18, "between 1 and"),
    ("a time limit as text", changed("max_seconds = 600", 'max_seconds = "600"'), 18, "not a whole number"),
    ("an unknown verdict", changed('"inconclusive"]', '"inconclusiv"]'), 19, "did you mean 'inconclusive'"),
    ("an unknown param key", changed("# min = 16\n# max = 4096", "# minimum = 16\n# max = 4096"), 29, "did you mean 'min'"),
    ("an unknown param type", changed('# type = "int_list"', '# type = "intlist"'), 21, "did you mean 'int_list'"),
    ("a param without type", changed('# type = "int_list"\n', ""), 20, "levels has no type"),
    ("a default of the wrong type", changed("default = 128", 'default = "128"'), 28, '"128" is not an integer'),
    ("a bool for an int", changed("default = 128", "default = true"), 28, "true is not an integer"),
    ("a float for an int", changed("default = 128", "default = 128.0"), 28, "128.0 is not an integer"),
    ("a list with a string", changed("[50, 1000, 3000]", '[50, "1000"]'), 22, "is not a list of integers"),
    ("a default out of range", changed("default = 128", "default = 8192"), 28, "8192 is above the max 4096"),
    ("a list value out of range", changed("[50, 1000, 3000]", "[5, 1000]"), 22, "5 is below the min 16"),
    ("a default no choice", changed('default = "prose"', 'default = "pros"'), 37, "did you mean 'prose'"),
    ("a choice without choices", changed('# choices = ["prose", "code"]\n', ""), 34, "needs choices"),
    ("min above max", changed("# min = 16\n# max = 4096", "# min = 5000\n# max = 4096"), 29, "min 5000 is above max 4096"),
    ("a bound on a choice", changed('# default = "prose"', '# default = "prose"\n# min = 1'), 38, "min has no meaning"),
    ("a bound that is no expression", changed('"engine.max_context-tokens-64"', '"engine.max_context-"'), 24, "max is no expression"),
    ("a bound of an unknown engine fact", changed('"engine.max_context-tokens-64"', '"engine.max_contxt"'), 24, "engine.max_context"),
    ("a bound on itself", changed("# max = 4096", '# max = "tokens*2"'), 30, "refers to itself"),
    ("a bound that divides by zero", changed("# max = 4096", '# max = "reps/(reps-3)"'), 28, "divides by zero"),
    ("a default duration without unit", changed('default = "5s"', 'default = "5"'), 40, "is not a duration"),
    ("a default duration too long", changed('default = "5s"', 'default = "2m"'), 40, "120 is above the max 60"),
    ("a secret with a default", changed('# type = "secret"', '# type = "secret"\n# default = "abc"'), 44, "a secret has no default"),
    ("a param with a bad name", changed("params.reps]", "params.Reps]"), 31, "'Reps' is no parameter name"),
    ("params that are no tables", SOUND.replace("[tool.ddtree.playbook.params.reps]\n# type = \"int\"\n# default = 3", "[tool.ddtree.playbook.params]\n# reps = 3"), 32, "not a table with type"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "line", "says"), [case[1:] for case in HEADERS], ids=[case[0] for case in HEADERS])
def test_a_header_that_breaks_the_schema_is_refused_at_its_line(script: str, line: int, says: str):
    playbook = judge(script)
    matching = [fault for fault in playbook.faults if says in fault.message]
    assert matching, [str(fault) for fault in playbook.faults]
    assert matching[0].line == line
    assert matching[0].source == script.split("\n")[line - 1]
    assert not playbook.valid


SYNTAX = [
    # the founding case: escaped quotes inside a replacement field
    ('rate = {"tok": 1}\nprint(f"{rate[\\"tok\\"]} tok/s")\n', 2, 15, "a backslash inside {…}"),
    ('if True:\n    print(f"a {1} and {rate[\\"tok\\"]:.1f}")\n', 2, 29, "a backslash inside {…}"),
    ('rate = {"tok": 1}\nprint(f"{rate["tok"]} tok/s")\n', 2, 15, 'the quote " again'),
    ("names = []\nprint(f\"{chr(10).join(names) + '\\n'}\")\n", 2, 33, "a backslash in a string inside"),
    ("x = 1\nprint('a', f'''\n  {x +} b''')\n", 3, 7, "invalid syntax"),
    ('x = 1\nprint("long before", f"b {x y} c")\n', 2, 27, "invalid syntax"),
    ('x = 1\nprint(f"{x tok/s")\n', 2, 9, "never closed"),
    ('print(f"{} tok/s")\n', 1, 9, "nothing between"),
    ('print(f"a } b")\n', 1, 11, "single }"),
    ('x = 1\nprint(f"{x!z}")\n', 2, 11, "no conversion"),
    ("def f(:\n    pass\n", 1, 7, "invalid syntax"),
    ("rows = [1, 2\nprint(rows)\n", 1, 8, "never closed"),
    ('name = "abc\nprint(name)\n', 1, 8, "unterminated string"),
    ("if True:\nprint(1)\n", 2, 1, "expected an indented block"),
    ("if True:\n\tx = 1\n        y = 2\n", 3, None, "tab"),
    ("return 1\n", 1, 1, "outside function"),
    ("for x in []:\n    pass\nbreak\n", 3, 1, "outside loop"),
    ("def f():\n    nonlocal x\n", 2, 5, "nonlocal"),
    ("def f(a, a):\n    pass\n", 1, None, "duplicate argument"),
    ("await thing()\n", 1, None, "outside"),
    ("print 'hello'\n", 1, 1, "print"),
    ("x = “abc”\n", 1, 5, "invalid character"),
    ("from __future__ import braces\n", 1, None, "not a chance"),
    ("match 1:\n    case 1:\n        pass\n", None, None, "3.10"),
    ("try:\n    pass\nexcept* ValueError:\n    pass\n", None, None, "3.11"),
    ("x = " + "-" * 100_000 + "1\n", None, None, "deep"),
]


@pytest.mark.parametrize(("text", "line", "column", "says"), SYNTAX)
def test_broken_python_is_shown_with_line_column_source_and_caret(
    text: str, line: int | None, column: int | None, says: str
):
    script = body(text)
    (fault,) = judge(script).faults
    assert says in fault.message
    if line is not None:
        assert fault.line == HEADER_LINES + line
        assert fault.source == script.split("\n")[fault.line - 1]
    if column is not None:
        assert fault.column == column
        assert str(fault).startswith(f"line {HEADER_LINES + (line or 0)}, col {column}: ")
        assert len(fault.caret) == column


def test_the_caret_stands_under_the_place_behind_tabs_and_wide_letters():
    (fault,) = judge(body("if True:\n\tprint('時', f\"{}\")\n")).faults
    assert fault.source[fault.column - 1] == "{"
    assert fault.caret == "\t" + " " * 14 + "^"


def test_newer_fstrings_pass_where_the_script_promises_a_python_that_reads_them():
    script = changed('">=3.9"', '">=3.12"') + 'rate = {"tok": 1}\nemit(text=f"{rate["tok"]}")\n'
    faults = judge(script).faults
    assert all("cannot check it" in fault.message for fault in faults)  # none on a console that reads them itself


def test_syntax_of_a_newer_python_passes_once_the_box_is_known():
    script = body("match 1:\n    case 1:\n        pass\n")
    assert judge(script, target=(3, 11)).faults == ()
    assert not judge(script, target=(3, 9)).valid


def test_a_box_older_than_the_script_needs_is_a_fault():
    (fault,) = judge(changed('">=3.9"', '">=3.11"'), target=(3, 10)).faults
    assert fault.line == 2
    assert "the box has Python 3.10" in fault.message


LINT = [
    ("import numpy\n", 1, 1, "numpy is neither"),
    ("x = 1\nimport os, torch.nn\n", 2, 1, "torch is neither"),
    ("from requests import get\n", 1, 1, "requests is neither"),
    ("from . import kit\n", 1, 1, "relative import"),
    ("def f():\n    import pandas as pd\n", 2, 5, "pandas is neither"),
    ("import importlib\nimportlib.import_module('numpy')\n", 2, 1, "numpy is neither"),
    ("numpy = __import__('numpy')\n", 1, 9, "numpy is neither"),
    ("import importlib\nname = input\nimportlib.import_module(name.__name__ + 'x')\n", 3, 1, "cannot be read here"),
    ("try:\n    import numpy\nexcept ImportError:\n    numpy = None\n", 2, 5, "numpy is neither"),
    ("import tomllib\n", 1, 1, "came with Python 3.11"),
    ("import distutils\n", 1, 1, "gone since Python 3.12"),
    ("name = input('go on? ')\n", 1, 8, "input: it waits for a person"),
    ("ask = input\nask()\n", 1, 7, "input: it waits"),
    ("import builtins\nbuiltins.input()\n", 2, 1, "input: it waits"),
    ("import sys\nline = sys.stdin.readline()\n", 2, 8, "sys.stdin"),
    ("import getpass\ngetpass.getpass()\n", 2, 1, "getpass"),
    ("breakpoint()\n", 1, 1, "breakpoint"),
    ("import os\nos.system('ls')\n", 2, 1, "os.system: it goes through a shell"),
    ("import os as o\no.system('ls')\n", 2, 1, "os.system"),
    ("from os import system\nsystem('ls')\n", 1, 1, "os.system"),
    ("from os import system as run\nrun('ls')\n", 1, 1, "os.system"),
    ("from os import *\nsystem('ls')\n", 2, 1, "os.system"),
    ("import os\ngetattr(os, 'sys' + 'tem')('ls')\n", 2, 1, "os.system"),
    ("import os\nvars(os)['system']('ls')\n", 2, 1, "os.system"),
    ("import os\nos.__dict__['system']('ls')\n", 2, 1, "os.system"),
    ("import os\nshell = os\nshell.popen('ls')\n", 3, 1, "os.popen"),
    ("__import__('os').system('ls')\n", 1, 1, "os.system"),
    ("import os\nos.execvp('ls', ['ls'])\n", 2, 1, "replaces the script's process"),
    ("import subprocess\nsubprocess.getoutput('ls')\n", 2, 1, "getoutput"),
    ("import subprocess\nsubprocess.run('ls', shell=True)\n", 2, 28, "shell=True"),
    ("from subprocess import Popen as P\nP('ls', shell = 1)\n", 2, 17, "shell=1"),
    ("import subprocess\nflag = True\nsubprocess.run('ls', shell=flag)\n", 3, 28, "shell=flag"),
    ("import subprocess\nsubprocess.run('ls', **{'shell': True})\n", 2, 25, "shell=True"),
    ("import subprocess\noptions = dict(shell=True)\nsubprocess.run('ls', **options)\n", 2, 22, "shell=True"),
    ("import subprocess\noptions = {}\noptions['shell'] = True\n", 3, 1, "shell=True"),
    ("import subprocess\nsubprocess.Popen('ls', -1, None, None, None, None, None, True, True)\n", 2, None, "by position"),
    ("import subprocess\nsubprocess.run(['bash', '-c', 'ls | wc'])\n", 2, 17, "bash -c"),
    ("import subprocess\nsubprocess.run(['/bin/sh', '-ec', 'ls'])\n", 2, 17, "sh -c"),
    ("import asyncio\nasyncio.create_subprocess_shell('ls')\n", 2, 1, "create_subprocess_shell"),
    ("eval('1+1')\n", 1, 1, "eval: it runs text as code"),
    ("exec(open('x').read())\n", 1, 1, "exec: it runs text"),
    ("__builtins__.eval('1')\n", 1, 1, "eval"),
    ("run = getattr(__builtins__, 'exec')\n", 1, 7, "exec"),
    ("compile('1', 'x', 'exec')\n", 1, 1, "compile"),
    ("import runpy\nrunpy.run_path('x.py')\n", 2, 1, "runpy"),
    ("KEY = 'sk-proj-abcd1234efgh5678ijkl'\n", 1, 8, "looks like a key"),
    ("# token hf_abcdEFGH1234ijklMNOP\n", 1, 9, "looks like a key"),
    ("headers = {'Authorization': 'Bearer abcd1234efgh5678ij'}\n", 1, 30, "looks like a key"),
    ("KEY = 'sk-' + 'abcd1234efgh' + '5678ijkl'\n", 1, 7, "amounts to a key"),
    ("api_key = 'correct-horse-battery'\n", 1, 11, "api_key holds a key"),
    ("def ask(url, password='hunter22'):\n    pass\n", 1, 23, "password holds a key"),
    ("import os\nos.environ['VLLM_API_KEY'] = 'local1234'\n", 2, 30, "holds a key"),
    ("import os\nkey = os.environ.get('VLLM_API_KEY', 'local1234')\n", 2, 38, "holds a key"),
    ("client = dict(apiKey='abc123def')\n", 1, 22, "apiKey holds a key"),
    ("URL = 'http://ops:hunter2@127.0.0.1:8765'\n", 1, 8, "looks like a key"),
    ("PEM = '''-----BEGIN RSA PRIVATE KEY-----'''\n", 1, 10, "looks like a key"),
    ("import urllib.request\nurllib.request.urlopen('http://127.0.0.1:1/')\n", 2, 1, "urlopen() without a time-out"),
    ("from urllib.request import urlopen as get\nget('http://127.0.0.1:1/')\n", 2, 1, "without a time-out"),
    ("import urllib.request as r\nr.urlopen('http://127.0.0.1:1/', timeout=None)\n", 2, 42, "timeout=None is no limit"),
    ("from urllib import request\nask = request.urlopen\nask('http://127.0.0.1:1/')\n", 3, 1, "without a time-out"),
    ("from urllib import request\nrequest.urlretrieve('http://127.0.0.1:1/', 'x')\n", 2, 1, "takes no time-out"),
    ("from urllib.request import build_opener\no = build_opener()\no.open('http://127.0.0.1:1/')\n", 3, 1, "opener.open() without"),
    ("import http.client\nc = http.client.HTTPConnection('127.0.0.1', 8765)\n", 2, 5, "HTTPConnection() without"),
    ("import http.client as h\nclass C(h.HTTPConnection):\n    pass\nc = C('127.0.0.1')\n", 4, 5, "without a time-out"),
    ("import socket\ns = socket.socket()\ns.connect(('127.0.0.1', 1))\n", 2, 5, "no .settimeout"),
    ("import socket\nwith socket.socket() as s:\n    s.settimeout(None)\n", 2, 6, "no .settimeout"),
    ("import socket\ns = socket.create_connection(('127.0.0.1', 1))\n", 2, 5, "create_connection() without"),
    ("import asyncio\nasync def f():\n    return await asyncio.open_connection('127.0.0.1', 1)\n", 3, 18, "wait_for"),
    ("from concurrent.futures import ThreadPoolExecutor as T\nfrom urllib.request import urlopen\nT().submit(urlopen, 'http://127.0.0.1:1')\n", 3, 1, "without"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "column", "says"), LINT)
def test_code_that_would_hang_escape_or_give_away_a_key_is_refused(text: str, line: int, column: int | None, says: str):
    playbook = judge(body(text))
    matching = [fault for fault in playbook.faults if says in fault.message]
    assert matching, [str(fault) for fault in playbook.faults]
    assert matching[0].line == HEADER_LINES + line
    assert column is None or matching[0].column == column


SOUND_CODE = [
    "def f(input, eval=None):\n    return input\n",
    "def compile(x):\n    return x\ncompile(1)\n",
    "import re\nre.compile('x')\nclass A:\n    def eval(self): return 1\nA().eval()\n",
    "import os\nos.environ.get('OPENAI_API_KEY')\nAPI_KEY_FILE = 'key_file_1.txt'\n",
    "tokens = 'abc 123'\nkey = 'level_1024'\nsecret_name = 'OPENAI_API_KEY'\n",
    "headers = {'Authorization': f'Bearer {len([])}'}\n",
    "import subprocess\nsubprocess.run(['ls', '-c'], shell=False, timeout=5)\n",
    "import socket\ns = socket.socket()\ns.settimeout(5)\ns.connect(('127.0.0.1', 1))\n",
    "import socket\nsocket.setdefaulttimeout(5)\ns = socket.socket()\n",
    "import http.client\ndef ask(limit):\n    return http.client.HTTPConnection('127.0.0.1', 1, timeout=limit)\n",
    "import http.client\ndef f(c: http.client.HTTPConnection):\n    return isinstance(c, http.client.HTTPConnection)\n",
    "import asyncio\nasync def f():\n    return await asyncio.wait_for(asyncio.open_connection('127.0.0.1', 1), 5)\n",
    "import functools, urllib.request\nask = functools.partial(urllib.request.urlopen, timeout=5)\n",
    "try:\n    import tomllib\nexcept ImportError:\n    tomllib = None\n",
    "import kit\nfrom kit import main\n",
    "import xml.etree.ElementTree as E, http.client, concurrent.futures\n",
    "CACHED = {'clear': 'the cache was cleared'}\nDIGEST = '9f86d081884c7d659a2feaa0c55ad0159f86d081884c7d659a2feaa0c55ad015'\n",
    "import subprocess\nsubprocess.run(['nvidia-smi', '-i', '0', '--query-gpu=clocks.sm', '--format=csv'], timeout=5)\n",
    "import subprocess\nsubprocess.run(['sudo', '-n', 'systemctl', 'is-active', 'x'], timeout=5)\n",
    "import shutil\nhave = shutil.which('systemctl')\n",
    '"""Restarting? Say systemctl restart, or call /flush_cache."""\n',
    "words = ['kill', 'service', 'time']\nname = 'a.service'.replace('.service', '')\n",
    "import os\nalive = os.kill(1, 0)\n",
    "text = open('/etc/systemd/system/x.service').read()\n",
]


@pytest.mark.parametrize("text", SOUND_CODE)
def test_sound_code_of_the_same_look_passes(text: str):
    assert [str(fault) for fault in judge(body(text)).faults] == []


EFFECTS = [
    ("import subprocess\nsubprocess.run(['systemctl', 'restart', 'ddtree-engine'], timeout=5)\n", "restarts_service"),
    ("import subprocess\nsubprocess.run(['sudo', '-n', '/usr/bin/systemctl', '--user', 'stop', 'x'], timeout=5)\n", "restarts_service"),
    ("import subprocess, shlex\nsubprocess.run(shlex.split('systemctl --user restart x'), timeout=5)\n", "restarts_service"),
    ("def ctl(verb):\n    return ['systemctl', verb, 'x']\n", "restarts_service"),
    ("TOOL = 'system' + 'ctl'\nARGS = [TOOL, 'restart', 'x']\n", "restarts_service"),
    ("import os\nTOOL = os.path.join('/usr/bin', 'systemctl')\n", "restarts_service"),
    ("ARGS = 'cd /; systemctl kill x'.split()\n", "restarts_service"),
    ("import os, signal\nos.kill(811, signal.SIGTERM)\n", "restarts_service"),
    ("import subprocess\nsubprocess.run(['pkill', '-f', 'sglang'], timeout=5)\n", "restarts_service"),
    ("import subprocess\nsubprocess.run(['docker', 'restart', 'vllm'], timeout=5)\n", "restarts_service"),
    ("BUS = 'org.freedesktop.systemd1.Manager'\n", "restarts_service"),
    ("import subprocess\nsubprocess.run(['systemctl', '--user', 'daemon-reload'], timeout=5)\n", "edits_unit"),
    ("import subprocess\nsubprocess.run(['systemctl', 'set-property', 'x', 'MemoryMax=1G'], timeout=5)\n", "edits_unit"),
    ("open('/etc/systemd/system/x.service.d/a.conf', 'w')\n", "edits_unit"),
    ("from pathlib import Path\nUNIT = Path.home() / '.config/systemd/user/x.service'\nUNIT.write_text('')\n", "edits_unit"),
    ("from pathlib import Path\n(Path('~/.config/ddtree') / 'engine.toml').write_text('')\n", "edits_unit"),
    ("URL = 'http://127.0.0.1:30000/flush_cache'\n", "flushes_cache"),
    ("import os\nURL = os.environ['DDT_BASE_URL'] + '/reset_prefix_cache'\n", "flushes_cache"),
    ("import os\nbase = os.environ['DDT_BASE_URL']\nURL = f'{base}/flush{\"_\"}cache'\n", "flushes_cache"),
    ("PATH = '/%s_%s' % ('flush', 'cache')\n", "flushes_cache"),
    ("PATH = '/slots/0?action=erase'\n", "flushes_cache"),
    ("open('/proc/sys/vm/drop_caches', 'w')\n", "flushes_cache"),
    ("import subprocess\nsubprocess.run(['nvidia-smi', '-lgc', '1980'], timeout=5)\n", "writes_gpu_clock"),
    ("import subprocess\nsubprocess.run(['nvidia-smi', '--lock-gpu-clocks=1980,1980'], timeout=5)\n", "writes_gpu_clock"),
    ("import subprocess\nsubprocess.run(['nvidia-smi', '-i', '0', '-pl', '450'], timeout=5)\n", "writes_gpu_clock"),
    ("import ctypes\nnv = ctypes.CDLL('libnvidia-ml.so.1')\nnv.nvmlDeviceSetGpuLockedClocks(None, 1, 1)\n", "writes_gpu_clock"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "effect"), EFFECTS)
def test_an_effect_on_the_box_has_to_be_declared(text: str, effect: str):
    script = body(text)
    faults = [fault for fault in judge(script).faults if "undeclared effect" in fault.message]
    assert faults, [str(fault) for fault in judge(script).faults]
    assert effect in faults[0].message
    assert faults[0].line >= FIRST
    honest = script.replace("# effects = []", f'# effects = ["{effect}"]')
    assert [str(fault) for fault in judge(honest).faults] == []


def test_printing_past_the_event_writer_is_a_warning_and_no_fault():
    playbook = judge(body("import sys\nprint('progress 50 %')\nprint('x', file=sys.stderr)\n"))
    assert playbook.valid
    assert [(warning.line, "standard output" in warning.message) for warning in playbook.warnings] == [
        (FIRST + 1, True)
    ]


def test_every_fault_of_a_script_is_listed_in_the_order_of_its_lines():
    script = changed('key = "s"', 'key = "st"').replace("# api = 1", "# api = 2") + "import numpy\nimport torch\n"
    assert [fault.line for fault in judge(script).faults] == [5, 8, SOUND.count("\n") + 1, SOUND.count("\n") + 2]


def test_a_script_is_never_executed(tmp_path: Path):
    trace = tmp_path / "trace"
    script = tmp_path / "sound.py"
    script.write_text(HEADER + f"open({str(trace)!r}, 'w').write('ran')\n")
    assert read_playbook(script).valid
    assert not trace.exists()


def test_a_file_that_cannot_be_read_is_a_fault_too(tmp_path: Path):
    assert "No such file" in read_playbook(tmp_path / "gone.py").faults[0].message
    assert "cannot be read" in read_playbook(tmp_path).faults[0].message


def test_a_key_or_id_taken_by_another_playbook_is_said(tmp_path: Path):
    (tmp_path / "alone").mkdir()
    (tmp_path / "own").mkdir()
    (tmp_path / "alone" / "sound.py").write_text(SOUND)
    (tmp_path / "own" / "other.py").write_text(changed('id = "sound"', 'id = "other"'))
    (tmp_path / "own" / "sound.py").write_text(SOUND)
    first, other, twin = catalogue([tmp_path / "alone", tmp_path / "own"])
    assert (first.key, first.valid, first.warnings) == ("s", True, ())
    assert (other.key, other.valid) == ("", True)
    assert "key 's' belongs to sound" in other.warnings[0].message
    assert not twin.valid
    assert "is taken by" in twin.faults[0].message
