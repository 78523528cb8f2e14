"""A playbook talks to the engine of its own box and to nobody else: no figure and no text leaves by it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from console.experiments.script.code import UNKNOWN, Code
from console.experiments.script.fault import Fault

_URLS = frozenset({"urllib.request.urlopen", "urllib.request.Request", "urllib.request.urlretrieve"})
_HOSTS = frozenset(
    {
        "http.client.HTTPConnection",
        "http.client.HTTPSConnection",
        "asyncio.open_connection",
        "ssl.get_server_certificate",
    }
)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


def check_loopback(code: Code) -> Iterator[Fault]:
    """A fault for each call that names another machine. An address that is not in the text is the box's own affair."""
    for call in code.calls():
        path = code.dotted(call.func)
        if path not in _URLS and path not in _HOSTS:
            continue
        given = [*call.args[:1], *(word.value for word in call.keywords if word.arg in ("url", "host"))][:1]
        text = code.text(given[0]) if given else None
        host = _host_of(text, url=path in _URLS) if text else None
        if host is not None and not _is_here(host):
            yield code.fault(given[0], f"it talks to {host}: a playbook reaches its own box alone, at DDT_BASE_URL")


def _host_of(text: str, *, url: bool) -> str | None:
    try:
        host = urlsplit(text).hostname if url else text.rsplit(":", 1)[0] if text.count(":") == 1 else text
    except ValueError:
        return None
    return host if host and UNKNOWN not in host else None


def _is_here(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return not _NAME.fullmatch(host)
