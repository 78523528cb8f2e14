"""Which engine a unit runs is told by its command line, as `systemctl show` prints it."""

from __future__ import annotations

import pytest

from console.deployment.bundled import BUNDLED
from console.deployment.detect import Found, engine_of
from console.deployment.sglang import Sglang
from console.deployment.site import NO_FILE
from console.deployment.vllm import Vllm


def properties(command: str, files: str = "", identifier: str = "") -> dict[str, str]:
    path = command.split()[0]
    line = (
        f"{{ path={path} ; argv[]={command} ; ignore_errors=no ; start_time=[n/a] ; pid=0 ; code=(null) ; status=0/0 }}"
    )
    return {"LoadState": "loaded", "ExecStart": line, "EnvironmentFiles": files, "SyslogIdentifier": identifier}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (properties("/opt/ddtree/current/venv/bin/python -m engine serve --config /etc/ddtree/engine.toml"), Found(BUNDLED)),
        ({"LoadState": "not-found"}, Found(BUNDLED)),
        (
            properties("/opt/venv/bin/python -m sglang.launch_server $SGLANG_ARGS", "/etc/sglang.env (ignore_errors=no)"),
            Found(Sglang("SGLANG_ARGS"), "/etc/sglang.env"),
        ),
        (
            properties("/opt/venv/bin/vllm serve $ARGS", "/a.env (ignore_errors=no) /etc/v.env (ignore_errors=yes)", "v"),
            Found(Vllm("ARGS", "v"), "/etc/v.env"),
        ),
        (properties("/usr/bin/python3 -m vllm.entrypoints.openai.api_server --model /m"), Found(Vllm(), NO_FILE)),
        (properties("/usr/bin/sglang serve --model-path /m", "/x.env (ignore_errors=no)"), Found(Sglang(), NO_FILE)),
        (properties("/home/sglangfan/engine serve"), Found(BUNDLED)),
    ],
)  # fmt: skip
def test_the_engine_its_variable_and_its_file_are_found(given: dict[str, str], found: Found) -> None:
    assert engine_of(given) == found
