"""Clients of other hosts are built in one module of each package, and none of them reads the environment."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conventions.repository import ROOT
from tests.conventions.test_craft import modules

FOLDERS = {
    "policy_service": "policy_service/http_clients.py",
    "sdk/python/countersign": "sdk/python/countersign/http_clients.py",
    "examples": None,  # they use the SDK's
}
BUILDERS = re.compile(
    r"""httpx2?\.(Client|AsyncClient|HTTPTransport|AsyncHTTPTransport|request|stream|get|post|put|patch|delete|head|options)
    | aiohttp\.(ClientSession|request)
    | slack_sdk\..*Client
    | authlib\..*OAuth[12]Client
    | urllib3\..* | requests\..* | urllib\.request\..* | http\.client\.HTTPSConnection
    | dulwich\.porcelain\..* | dulwich\.client\.(get_transport_and_path.*|default_urllib3_manager|.*HttpGitClient)
    | opentelemetry\.exporter\..*Exporter
    | mcp\.client\..* | websockets\..*
    """,
    re.VERBOSE,
)
TRUSTS_BY_DEFAULT = re.compile(
    r"httpx2\.(Client|AsyncClient|HTTPTransport|AsyncHTTPTransport|create_ssl_context)"
)


def calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    """Every call of what the module imports, with its full name."""
    tree = ast.parse(path.read_bytes())
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {one.asname: one.name for one in node.names if one.asname}
            whole = [one.name.partition(".")[0] for one in node.names if not one.asname]
            names |= dict(zip(whole, whole, strict=True))
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            root, _, rest = ast.unparse(node.func).partition(".")
            if root in names:
                yield node, f"{names[root]}.{rest}".rstrip(".")


def built(path: Path) -> list[str]:
    """Clients that this module builds. A git client is built where its connections are given to it."""
    clients = [(call, name) for call, name in calls(path) if BUILDERS.fullmatch(name)]
    alone = [one for one in clients if "pool_manager" not in {word.arg for word in one[0].keywords}]
    return [f"{path.name}:{call.lineno} {name}" for call, name in alone]


def _is_closed(call: ast.Call) -> bool:
    return any(one.arg == "trust_env" and ast.unparse(one.value) == "False" for one in call.keywords)


def trusting(path: Path) -> list[str]:
    """Calls that leave the environment to be read."""
    opened = [(call, name) for call, name in calls(path) if TRUSTS_BY_DEFAULT.fullmatch(name)]
    return [f"{path.name}:{call.lineno} {name}" for call, name in opened if not _is_closed(call)]


@pytest.mark.parametrize(("folder", "place"), FOLDERS.items())
def test_clients_are_built_in_one_place(folder: str, place: str | None) -> None:
    found = {str(path.relative_to(ROOT)): built(path) for path in modules(ROOT / folder)}
    assert {name: where for name, where in found.items() if where and name != place} == {}
    assert place is None or found[place]


@pytest.mark.parametrize("place", [place for place in FOLDERS.values() if place])
def test_no_client_reads_the_environment(place: str) -> None:
    assert trusting(ROOT / place) == []


@pytest.mark.parametrize(
    "text",
    [
        "import httpx2\nhttpx2.Client()",
        "import httpx2 as h\nh.get('http://a')",
        "from httpx2 import AsyncClient as C\nC(trust_env=False)",
        "import urllib.request\nurllib.request.urlopen('http://a')",
        "from urllib.request import urlopen\nurlopen('http://a')",
        "from requests import Session\nSession()",
        "import aiohttp\naiohttp.ClientSession()",
        "from slack_sdk.socket_mode.aiohttp import SocketModeClient\nSocketModeClient('t')",
        "from dulwich.client import HttpGitClient\nHttpGitClient('http://a')",
        "def f():\n    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter\n"
        "    OTLPSpanExporter()",
    ],
)
def test_a_client_that_is_built_elsewhere_is_seen(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.py").write_text(text)
    assert built(tmp_path / "x.py")


def test_a_client_that_reads_the_environment_is_seen(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("import httpx2\nhttpx2.Client(trust_env=True)\nhttpx2.HTTPTransport()\n")
    assert len(trusting(tmp_path / "x.py")) == 2
