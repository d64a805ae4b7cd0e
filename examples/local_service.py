"""The real service on loopback, as a child process with a data folder of its own.

It starts what an operator would start, with the commands an operator would type, and stops it again however
the caller ends. It is no way around anything: enrolling and sign-in links go through the command line.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from countersign import Settings

LOOPBACK = "127.0.0.1"
START_SECONDS = 90.0  # a busy machine takes long for a first start
STOP_SECONDS = 10.0
_PORTS = range(20_000, 32_000)
REPOSITORY = Path(__file__).parents[1]
PROGRAM = ("-m", "policy_service.cli")


class ServiceError(Exception):
    """The service refused or failed; the message quotes it."""


def free_port(wanted: int = 0) -> int:
    """The wanted port if it is free, else another one.

    Below those that systems give to outgoing connections: one of those could be taken before the service listens.
    """
    for port in filter(None, (wanted, *(secrets.choice(_PORTS) for _ in range(100)))):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
            return port
    raise ServiceError("no port is free on the loopback address")


def end_in_order_on_signals() -> None:
    """Let SIGTERM and a closed terminal unwind like Ctrl-C does, so that no child outlives its caller."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))


class LocalService:
    """`policy-service` with its settings; a context manager that serves while it is open."""

    def __init__(
        self, data: Path, bundle: Path, *, port: int, environment: Mapping[str, str] | None = None
    ) -> None:
        self.data = data
        self._port = port
        self.url = f"http://{LOOPBACK}:{port}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("COUNTERSIGN_")}
        self._environment = inherited | {
            "COUNTERSIGN_DATA_DIR": str(data),
            "COUNTERSIGN_BUNDLE_DIR": str(bundle),
            "COUNTERSIGN_HOST": LOOPBACK,
            "COUNTERSIGN_PORT": str(port),
            "COUNTERSIGN_PUBLIC_URL": self.url,
            "COUNTERSIGN_DEV_SIGNIN": "true",
            "COUNTERSIGN_SIGN_IN_LINK_S": "3600",  # an hour is enough for a person who tries the demo
            "PYTHONUNBUFFERED": "1",
            **(environment or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._links_given: set[str] = set()
        self._log = data.parent / f"{data.name}.log"

    def __enter__(self) -> Self:
        self.data.mkdir(parents=True, exist_ok=True)
        self.command("init")
        with self._log.open("wb") as log:
            self._process = self._start(log)
        try:
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def running(self) -> bool:
        """Whether the service still runs."""
        return self._process is not None and self._process.poll() is None

    def enroll(self, agent: str, role: str) -> Settings:
        """Enrol an agent without an owner and give it a key; what its SDK needs to know."""
        key = self.data / f"{agent}.pem"
        self.command("agent", "enroll", agent, "--role", role, "--key-out", str(key))
        return Settings(
            url=self.url,
            agent=agent,
            key_path=key,
            journal_path=self.data / f"{agent}-journal.db",
            issuer_keys=tuple(self.command("issuer-keys").strip().split(",")),
            allow_dev=True,  # the people of these examples sign in by the development link
        )

    def sign_in_link(self, person: str) -> str:
        """A one-time link that signs a person in: the one `serve` printed, then always another."""
        for line in self._log.read_text(errors="replace").splitlines():
            says, _, link = line.partition(": ")
            if says == f"sign in as {person}" and link not in self._links_given:
                self._links_given.add(link)
                return link
        return self.command("signin", person).strip()

    def command(self, *words: str) -> str:
        """Run one verb of the operator's command line and answer what it printed."""
        done = self._run(*words)
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()
            raise ServiceError(f"`policy-service {' '.join(words)}` failed: {said}")
        return done.stdout

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *PROGRAM, *words]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)

    def _start(self, log: BinaryIO) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C reaches the caller first, who then stops the service in order.
        return subprocess.Popen(
            [sys.executable, *PROGRAM, "serve"],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if not self.running:
                raise ServiceError(f"the service did not start: {self._last_words()}")
            if self._is_ready():
                return
            time.sleep(0.1)
        raise ServiceError(f"the service is not ready after {START_SECONDS:.0f} s: {self._last_words()}")

    def _is_ready(self) -> bool:
        """Ask /readyz with as little as possible: this runs while the service needs the processor to start."""
        connection = HTTPConnection(LOOPBACK, self._port, timeout=2.0)
        with closing(connection), contextlib.suppress(OSError, HTTPException):
            connection.request("GET", "/readyz")
            return connection.getresponse().status == HTTPStatus.OK
        return False

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace").strip()[-2000:] or "it said nothing"

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
