"""Faults that were looked for after the corpus had been written: what an operator's own script may do wrong at night.

Each is refused at its line with a sentence that says why; what looks like it and is sound passes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sound_script import HEADER_LINES, SOUND, body, changed

from console.experiments.playbook import Playbook, judge_playbook, read_playbook

GET = "from urllib.request import urlopen\n"
SUB = "import subprocess\n"


def judge(script: str | bytes, target: tuple[int, int] | None = None) -> Playbook:
    data = script.encode() if isinstance(script, str) else script
    return judge_playbook(Path("/nowhere/sound.py"), data, target=target)


FILES = [
    ("UTF-16", SOUND.encode("utf-16"), 1, "NUL byte"),
    ("half a surrogate pair", SOUND.replace("hello and", "h\ud800 and").encode("utf-8", "surrogatepass"), 9, "0xed is not UTF-8"),
    ("a byte order mark in the middle", body("\ufeffx = 1\n"), HEADER_LINES + 1, "U+FEFF"),
    ("a no-break space", body("x\u00a0= 1\n"), HEADER_LINES + 1, "U+00A0"),
    ("text that is turned around", body("ok = 'a\u202e b'\n"), HEADER_LINES + 1, "U+202E turns the direction"),
    ("a turned comment", body("x = 1  # \u2066 hidden \u2069\n"), HEADER_LINES + 1, "U+2066 turns the direction"),
    ("a tab in the header", changed("# api = 1", "#\tapi = 1"), 5, "breaks off here"),
    ("a blank behind the opening", SOUND.replace("# /// script", "# /// script ", 1), 1, "exactly `# /// script`"),
    ("a blank behind the closing", SOUND.replace("# ///\n", "# /// \n", 1), 1, "never closed"),
    ("tabs and blanks in one block", body("if 1:\n\tx = 1\n    y = 2\n"), HEADER_LINES + 3, "unindent"),
    ("an estimate above the limit", changed("max_seconds = 600", "max_seconds = 5"), 17, "max_seconds ends the run after 5"),
    ("an estimate below zero", changed('"levels*reps*(6+tokens/40)"', '"tokens-1000"'), 17, "est_seconds is -872"),
    ("an estimate without a value", changed('"levels*reps*(6+tokens/40)"', '"1e308*1e308"'), 17, "no value with the parameters' defaults"),
    ("a title for three lines", changed('"A sound playbook"', '"' + "x" * 61 + '"'), 7, "61 characters; it may have 60"),
    ("a password in the header", changed('# type = "secret"', '# type = "str"\n# default = "hunter22"'), 44, "the default is a key"),
    ("a list over two lines, for old Pythons", changed('["explained", "inconclusive"]', '["explained",\n#  "inconclusive"]'), 19, "no TOML reader"),
    ("a table in one line, for old Pythons", changed('# default = 3\n', '# default = 3\n# x = {a = 1}\n'), 34, "no TOML reader"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "line", "says"), [one[1:] for one in FILES], ids=[one[0] for one in FILES])
def test_a_file_or_header_that_cannot_be_right_is_refused_at_its_line(script: str | bytes, line: int, says: str):
    faults = [fault for fault in judge(script).faults if says in fault.message]
    assert faults, [str(fault) for fault in judge(script).faults]
    assert faults[0].line == line


CODE = [
    # what the box's Python does not have, though this one reads it
    ("a = {}\nx = a[*(1, 2)]\n", 2, "unpacking (*) in a subscript came with Python 3.11"),
    ("def f(*args: *tuple[int]):\n    pass\n", 1, "unpacking (*) in an annotation came with Python 3.11"),
    ("async def g():\n    yield 1\nasync def f():\n    return [[x async for x in g()] for _ in (1,)]\n", 4, "asynchronous comprehension"),
    ("def f(x: int | None = None):\n    return x\n", 1, "int | None, worked out as it is reached, came with Python 3.10"),
    ("ok = isinstance(1, int | str)\n", 1, "int | str, worked out"),
    ("list(zip([1], [2], strict=True))\n", 1, "zip(strict=…) came with Python 3.10"),
    ("import itertools\nitertools.pairwise([1])\n", 2, "itertools.pairwise came with Python 3.10"),
    ("from itertools import batched\n", 1, "itertools.batched came with Python 3.12"),
    ("import datetime as d\nd.UTC\n", 2, "datetime.UTC came with Python 3.11"),
    ("from dataclasses import dataclass\n@dataclass(slots=True)\nclass A:\n    x: int\n", 2, "dataclass(slots=…)"),
    ("raise ExceptionGroup('a', [ValueError()])\n", 1, "ExceptionGroup came with Python 3.11"),
    ("type X = int\n", 1, ""),
    ("def f[T](x: T):\n    return x\n", 1, ""),
    # names
    ("def main():\n    emitt(1)\n", 2, "the name emitt is bound nowhere"),
    ("tokens = 5\nx = tokns + 1\n", 2, "did you mean 'tokens'"),
    ("def f():\n    here = 1\ndef g():\n    return here\n", 4, "here is bound nowhere"),
    ("def f():\n    count = 0\n    def g():\n        count += 1\n    g()\n", 4, "say nonlocal or global count"),
    ("TOTAL = 0\ndef f():\n    TOTAL += 1\n", 3, "TOTAL has no value here yet"),
    ("a = [1]\nx = a[i:=0]\n", 2, ":= without brackets in a subscript"),
    (GET + "urlopen('http://example.com/upload', data=b'x', timeout=5)\n", 2, "it talks to example.com"),
    (GET + "HOST = '10.0.0.7'\nurlopen(f'http://{HOST}:80/{1}', timeout=5)\n", 3, "it talks to 10.0.0.7"),
    ("import http.client as h\nh.HTTPSConnection('metrics.example.com:443', timeout=5)\n", 2, "it talks to metrics.example.com"),
    ("import kit\nkit.mian()\n", 2, "kit has no mian (did you mean 'main'?)"),
    ("from kit import Strop\n", 1, "kit has no Strop (did you mean 'Stop'?)"),
    ("import http.clinet\n", 1, "http.clinet: no such module in this Python's standard library (did you mean 'client'?)"),
    # time-outs that are none
    (GET + "urlopen('http://127.0.0.1', timeout=float('inf'))\n", 2, "timeout=float('inf') is no limit"),
    (GET + "import math\nurlopen('http://127.0.0.1', timeout=math.inf)\n", 3, "math.inf is no limit"),
    (GET + "NO = None\nurlopen('http://127.0.0.1', timeout=NO)\n", 3, "timeout=NO is no limit"),
    (GET + "def ask(url, timeout=None):\n    return urlopen(url, timeout=timeout)\n", 3, "timeout=timeout is no limit"),
    (GET + "t = 5\nurlopen('http://127.0.0.1', timeout=t if t else None)\n", 3, "is no limit"),
    (GET + "urlopen('http://127.0.0.1', timeout=10**9 and 1e9)\n", 2, "is no limit"),
    (GET + "list(map(urlopen, ['http://a']))\n", 2, "urlopen() without a time-out"),
    (GET + "import threading\nthreading.Thread(target=urlopen, args=('http://a',)).start()\n", 3, "urlopen() without a time-out"),
    (GET + "F = {'get': urlopen}\nF['get']('http://a')\n", 2, "kept here and called elsewhere"),
    (GET + "class A:\n    get = urlopen\n", 3, "kept here and called elsewhere"),
    ("import http.client\nc = http.client.HTTPConnection('a', timeout=5)\nc.timeout = None\n", 3, "c.timeout = None is no limit"),
    ("import socket\nimport http.client as h\nh.HTTPConnection('a', timeout=socket._GLOBAL_DEFAULT_TIMEOUT)\n", 3, "is no limit"),
    ("import socket\ns = socket.socket()\ns.settimeout(5)\ns.settimeout(None)\n", 4, ".settimeout(None) is no limit"),
    ("import socket\ns = socket.create_connection(('a', 1), 5)\ns.setblocking(True)\n", 3, "takes the time-out off"),
    ("import socket\ndef a():\n    s = socket.socket()\n    s.settimeout(5)\ndef b():\n    s = socket.socket()\n    s.connect(('a', 1))\n", 6, "no .settimeout"),
    ("import socket\nsocket.setdefaulttimeout(5)\nsocket.setdefaulttimeout(None)\ns = socket.socket()\n", 4, "no .settimeout"),
    ("import socket\ns = socket.socket()\ns.settimeout(5)\nc, who = s.accept()\nc.recv(5)\n", 4, ".accept(): no .settimeout"),
    ("import selectors\nsel = selectors.DefaultSelector()\nsel.select()\n", 3, "without a time-out"),
    ("import select\np = select.poll()\np.poll()\n", 3, "without a time-out"),
    ("import asyncio\nasync def f():\n    r, w = await asyncio.wait_for(asyncio.open_connection('a', 1), 5)\n    return await r.readline()\n", 4, ".readline(): wrap it"),
    ("import asyncio\nasync def f():\n    loop = asyncio.get_running_loop()\n    await loop.create_connection(None, 'a', 1)\n", 4, "wrap it"),
    (SUB + "subprocess.run(['nvidia-smi'])\n", 2, "subprocess.run() without a time-out"),
    ("import os\nos.wait()\n", 2, "without end"),
    ("import signal\nsignal.pause()\n", 2, "without end"),
    (SUB + "p = subprocess.Popen(['nvidia-smi'])\np.communicate()\n", 3, "without a time-out"),
    (SUB + "subprocess.Popen(['nvidia-smi']).wait(timeout=None)\n", 2, "timeout=None is no limit"),
    ("import asyncio\nasync def f():\n    p = await asyncio.create_subprocess_exec('nvidia-smi')\n    await p.wait()\n", 4, "child process"),
    # what no check can read
    ("import operator, os\noperator.attrgetter('system')(os)('ls')\n", 2, "attrgetter"),
    ("import os\nos.__getattribute__('system')('ls')\n", 2, "write the attribute itself"),
    ("import os, sys\ngetattr(os, sys.argv[1])('ls')\n", 2, "by a name that cannot be read here"),
    ("import os\ngetattr(os, 'metsys'[::-1])('ls')\n", 2, "os.system"),
    ("import os\ngetattr(os, chr(115) + 'ystem')('ls')\n", 2, "os.system"),
    ("globals()['__builtins__'].eval('1')\n", 1, "eval"),
    ("import ctypes\nlibc = ctypes.CDLL('libc.so.6')\nlibc.system(b'ls')\n", 3, "past every check"),
    ("import pickle\npickle.loads(b'')\n", 2, "can run what it reads"),
    (SUB + "import sys\nsubprocess.run([sys.executable, '-c', 'print(1)'], timeout=5)\n", 3, "text as code"),
    (SUB + "subprocess.run(['bash'], input='ls', text=True, timeout=5)\n", 2, "reads its commands"),
    # what a cancel does not reach
    (SUB + "subprocess.Popen(['sleep', '600'], start_new_session=True)\n", 2, "a cancel ends the script's own process group"),
    (SUB + "import os\nsubprocess.Popen(['sleep', '600'], preexec_fn=os.setsid)\n", 3, "os.setsid"),
    (SUB + "subprocess.run(['nohup', 'sleep', '600'], timeout=5)\n", 2, "nohup"),
    ("import os\nif os.fork() == 0:\n    pass\n", 2, "os.fork"),
    ("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n", 2, "shut out"),
    ("import os\nos._exit(0)\n", 2, "without an end event"),
    # keys
    ("import os\napi_key = os.environ.get('K') or 'local1234'\n", 2, "api_key holds a key"),
    ("import argparse\np = argparse.ArgumentParser()\np.add_argument('--api-key', default='local1234')\n", 3, "holds a key"),
    ("headers = {'Authorization': 'Token abcd1234efgh5678'}\n", 1, "looks like a key"),
    ("H = 'X-Api-Key: abcd1234efgh5678'\n", 1, "looks like a key"),
    ("class C:\n    pass\nsetattr(C, 'api_key', 'local1234')\n", 3, "api_key holds a key"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "says"), CODE)
def test_code_that_fails_or_hides_on_the_box_is_refused_at_its_line(text: str, line: int, says: str):
    faults = [fault for fault in judge(body(text)).faults if says in fault.message]
    assert faults, [str(fault) for fault in judge(body(text)).faults]
    assert faults[0].line == HEADER_LINES + line


EFFECTS = [
    (SUB + "subprocess.run(['sudo', '-u', 'root', 'systemctl', 'restart', 'x'], timeout=5)\n", "restarts_service"),
    (SUB + "subprocess.run(['nsenter', '-t', '1', '-m', 'systemctl', 'stop', 'x'], timeout=5)\n", "restarts_service"),
    (SUB + "import shutil\ntool = shutil.which('systemctl')\nsubprocess.run([tool, 'restart', 'x'], timeout=5)\n", "restarts_service"),
    (SUB + "subprocess.run(['/etc/init.d/sglang', 'restart'], timeout=5)\n", "restarts_service"),
    ("from os import kill as k\nk(811, 15)\n", "restarts_service"),
    ("import os as o\nend = o.killpg\nend(811, 15)\n", "restarts_service"),
    (SUB + "subprocess.run(['sed', '-i', 's/64/32/', '/home/x/.config/ddtree/engine.toml'], timeout=5)\n", "edits_unit"),
    (SUB + "subprocess.run(['sudo', 'tee', '/etc/systemd/system/x.service.d/o.conf'], input=b'', timeout=5)\n", "edits_unit"),
    ("from builtins import open as o\no('/etc/systemd/system/x.service', 'w')\n", "edits_unit"),
    ("URL = 'http://127.0.0.1:8000/sleep?level=2'\n", "flushes_cache"),
    ("URL = 'http://127.0.0.1:8000/release_memory_occupation'\n", "flushes_cache"),
    ("import base64\nURL = base64.b64decode('L2ZsdXNoX2NhY2hl').decode()\n", "flushes_cache"),
    ("URL = '/fl@sh_c@che'.replace('@', 'u').replace('cuche', 'cache')\n", "flushes_cache"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "effect"), EFFECTS)
def test_an_effect_by_another_road_has_to_be_declared_too(text: str, effect: str):
    faults = [fault for fault in judge(body(text)).faults if "undeclared effect" in fault.message]
    assert faults and effect in faults[0].message, [str(fault) for fault in judge(body(text)).faults]
    honest = body(text).replace("# effects = []", f'# effects = ["{effect}"]')
    assert [str(fault) for fault in judge(honest).faults] == []


SOUND_CODE = [
    "from __future__ import annotations\ndef f(x: int | None = None) -> list[int] | None:\n    return x\n",
    "import sys\nif sys.version_info >= (3, 11):\n    from datetime import UTC\nelse:\n    UTC = None\n",
    "try:\n    from itertools import pairwise\nexcept ImportError:\n    pairwise = None\n",
    "flags = 1 | 2\na = {1} | {2}\nb = dict(a=1)\n",
    "def f():\n    total = 0\n    def g():\n        nonlocal total\n        total += 1\n    return g, [i for i in range(3)], lambda x: x\n",
    "try:\n    pass\nexcept OSError as error:\n    print(error, __file__, __name__, file=None)\n",
    "def f():\n    global later\n    later = 1\nf()\nprint(later, file=None)\n",
    "import os.path, xml.etree.ElementTree, concurrent.futures, importlib.metadata\n",
    "from kit import EXIT, Stop, main\n",
    GET + "def ask(url, timeout=None):\n    if timeout is None:\n        timeout = 5\n    return urlopen(url, timeout=timeout)\n",
    GET + "LIMIT_S = 30\ndef ask(url, timeout=None):\n    return urlopen(url, timeout=timeout or LIMIT_S)\n",
    "import socket\ns = socket.socket()\ns.settimeout(5)\nc, who = s.accept()\nc.settimeout(5)\n",
    "import selectors\nsel = selectors.DefaultSelector()\nsel.select(1.0)\n",
    SUB + "with subprocess.Popen(['ls']) as p:\n    p.wait(5)\n    p.communicate(None, 5)\n",
    SUB + "OPTIONS = dict(check=False, timeout=5)\nsubprocess.run(['ls'], **OPTIONS)\n",
    "import threading\ndone = threading.Event()\ndone.wait()\n",
    "import os\nvalue = getattr(os, 'cpu_count')()\nclass A:\n    pass\nfor name in ('a', 'b'):\n    setattr(A, name, 1)\n",
    "def f():\n    n = 0\n    n += 1\n    for m in (1,):\n        m += 1\n    class A:\n        k = 0\n        k += 1\n    return n\n",
    "a = [1]\nx = a[(i:=0)]\n",
    GET + "import os\nurlopen(os.environ['DDT_BASE_URL'] + '/health', timeout=5)\nurlopen('http://localhost:8000/x', timeout=5)\n",
    "import http.client as h\nh.HTTPConnection('127.0.0.1', 1, timeout=5)\nh.HTTPConnection('::1', 1, timeout=5)\n",
    SUB + "import sys\nsubprocess.run([sys.executable, '-V'], timeout=5)\n",
    SUB + "subprocess.run(['sed', 's/a/b/', '/home/x/.config/ddtree/engine.toml'], timeout=5)\n",
    "import signal\nsignal.signal(signal.SIGTERM, signal.default_int_handler)\n",
    "DOC = 'the engine may sleep; wake up. /sleeping is a path'\n",
]  # fmt: skip


@pytest.mark.parametrize("text", SOUND_CODE)
def test_sound_code_of_the_same_look_passes(text: str):
    assert [str(fault) for fault in judge(body(text)).faults] == []


def test_a_script_that_restarts_by_the_kit_says_so_for_all_engines_or_for_some() -> None:
    script = body("import kit\ndef f(run):\n    with kit.Service(run) as service:\n        return service\n")
    (fault,) = judge(script).faults
    assert fault.line == HEADER_LINES + 3
    assert 'kit.Service restarts the service: undeclared effect; add "restarts_service"' in fault.message
    assert judge(script.replace("# effects = []", '# effects = ["restarts_service"]')).valid
    assert judge(script.replace("# effects = []", '# effects = []\n# restarts_on = ["vllm"]')).valid


def test_a_device_a_pipe_and_a_huge_file_are_refused_without_being_read_whole(tmp_path: Path) -> None:
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.py")
    with (tmp_path / "huge.py").open("wb") as huge:
        huge.truncate(40 * 2**30)  # sparse
    says = {path.stem: read_playbook(path).faults[0].message for path in sorted(tmp_path.iterdir())}
    assert says == {
        "huge": "the file holds 42,949,672,960 bytes; a script may hold 262,144",
        "pipe": "the file cannot be read: it is no regular file",
        "zero": "the file cannot be read: it is no regular file",
    }


def test_faults_without_end_are_cut_and_counted() -> None:
    faults = judge(body("import numpy\n" * 80)).faults
    assert len(faults) == 51
    assert faults[-1].message == "and 30 more faults from here on"


def test_a_newer_header_needs_no_plain_lines():
    script = changed('">=3.9"', '">=3.11"').replace(
        '["explained", "inconclusive"]', '["explained",\n#  "inconclusive"]'
    )
    assert judge(script).faults == ()


LONG = [
    ("sockets", "import socket\n" + "s = socket.socket()\n" * 4_000, 51),
    ("f-strings", "x = 1\ny = [" + ",".join(["f'{x}'"] * 6_000) + "]\n", 0),
    ("one word", "x = '" + "flush" * 45_000 + "'\n", 0),
    ("a list", "x = [" + "'systemctl'," * 15_000 + "]\n", 2),
    ("open f-strings", 'f"{' * 30_000 + "\n", 1),
    (
        "openers",
        "from urllib.request import build_opener\n" + "o = build_opener()\no.open('x', timeout=5)\n" * 1_500,
        0,
    ),
]


@pytest.mark.parametrize(("text", "faults"), [one[1:] for one in LONG], ids=[one[0] for one in LONG])
def test_a_long_script_is_judged_in_seconds(text: str, faults: int):
    """Each of these once took minutes: every element of a list looked at every other, or a pattern went back and forth."""
    assert len(judge(body(text)).faults) == faults
