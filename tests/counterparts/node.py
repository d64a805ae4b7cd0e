"""Third-party servers that run on Node.js, each a process on a loopback port of its own, gone at the end.

`package-lock.json` in this folder names their exact versions; `npm ci --prefix tests/counterparts` gets them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from examples.local_service import free_port
from tests.counterparts import require

_HERE = Path(__file__).parent
_MODULES = _HERE / "node_modules"
WAY_TO_GET = "install Node.js 20 or newer with npm, then: npm ci --prefix tests/counterparts"
_START_S = 60.0


def _node(package: str) -> str:
    """The interpreter, when it and the package are here; otherwise the test is skipped, loudly."""
    node = shutil.which("node")
    return require(package, node if node and (_MODULES / package).is_dir() else None, WAY_TO_GET)


@contextmanager
def group_of_its_own(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own: what it starts ends with it."""
    pipe: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    options |= pipe | {"cwd": _HERE, "text": True, "stderr": subprocess.DEVNULL, "start_new_session": True}
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said == "ready\n", f"the counterpart did not start: {said!r}"


@contextmanager
def oidc_provider(
    redirect_uri: str,
    people: Mapping[str, Mapping[str, Any]],
    jwks: Mapping[str, Any] | None = None,
    listed: Sequence[Any] | None = None,
    **client: Any,
) -> Iterator[str]:
    """The issuer of a running `oidc-provider` with one client, `countersign` / `a-secret`, and these people.

    `jwks` are the private keys it signs with, instead of keys of its own; `listed` is what its key set holds besides.
    """
    node = _node("oidc-provider")
    port = free_port()
    app = {"client_id": "countersign", "client_secret": "a-secret", "redirect_uris": [redirect_uri]}
    clients = [{**app, "scope": "openid profile email groups", **client}]
    setup = json.dumps({"port": port, "clients": clients, "people": people, "jwks": jwks, "listed": listed})
    with group_of_its_own(node, "oidc_provider.mjs", setup) as process:
        _until_ready(process)
        yield f"http://127.0.0.1:{port}"


@contextmanager
def emulate(service: str, seed: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """The address of `emulate` standing in for one vendor: google, github, okta or microsoft."""
    node = _node("emulate")
    port = free_port()
    file = folder / "seed.json"
    file.write_text(json.dumps({service: seed}))
    program = str(_MODULES / "emulate/dist/index.js")
    with group_of_its_own(
        node, program, "start", "--service", service, "--port", str(port), "--seed", str(file)
    ) as process:
        address = f"http://localhost:{port}"
        until_it_answers(address, process)
        yield address


def until_it_answers(address: str, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        assert process.poll() is None, "the counterpart ended at once"
        try:
            httpx2.get(address, timeout=1.0)
            return
        except httpx2.TransportError:
            time.sleep(0.05)
    raise AssertionError("the counterpart does not answer")


@dataclass(frozen=True)
class TokenFactory:
    """An issuer that signs any claims it is given."""

    issuer: str
    process: subprocess.Popen[str]

    def sign(self, claims: Mapping[str, Any], header: Mapping[str, Any] | None = None) -> str:
        """A token with these claims laid over the issuer's own; None drops one."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"header": header or {}, "claims": claims}) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@contextmanager
def token_factory() -> Iterator[TokenFactory]:
    """A running `oauth2-mock-server`."""
    node = _node("oauth2-mock-server")
    port = free_port()
    with group_of_its_own(node, "token_factory.mjs", str(port)) as process:
        _until_ready(process)
        yield TokenFactory(f"http://localhost:{port}", process)
