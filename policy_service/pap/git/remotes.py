"""Connect to the policies' repository: a folder, https, or ssh through this host's client.

The server proves its identity (TLS, known hosts), except on loopback. No prompt is ever shown. Every conversation has a
deadline. The displayed form of an address contains no password.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import unquote, urlsplit

from dulwich.client import (
    GitClient,
    HttpGitClient,
    LocalGitClient,
    SSHGitClient,
    SSHVendor,
    SubprocessWrapper,
)
from dulwich.protocol import Protocol

from policy_service.errors import StartError
from policy_service.http_clients import DIRECT, Route, git_pool

_SCP: Final = re.compile(r"(?:([\w.-]+)@)?([\w.-]+):(?!//)([^\\:][^\\]*)\Z")
_HOST: Final = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:-]*\Z")
_WRITE: Final = "write a folder, https://host/path, ssh://user@host/path or user@host:path"


class RemoteTimeoutError(Exception):
    """A conversation exceeded its deadline."""


class RemoteRedirectError(Exception):
    """The server redirects to an address that the operator did not configure."""


_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True)
class RepositoryAddress:
    """The address of a repository. ``shown`` is its form for people and logs, without secrets."""

    kind: str  # "folder", "http", "ssh"
    host: str
    path: str
    shown: str
    port: int | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    url: str = field(default="", repr=False)

    @property
    def is_remote(self) -> bool:
        """Whether it is reached over a network."""
        return self.kind != "folder"


def parse_address(text: str, password: str | None = None) -> RepositoryAddress:
    """Parse the setting; ``password`` is for https, with or without a user in the address.

    Raises:
        StartError: the address is not supported.
    """
    if "://" not in text:
        scp = _SCP.match(text)
        if scp is None or Path(text).exists():
            folder = str(Path(text).expanduser().absolute())
            return RepositoryAddress("folder", "", folder, folder)
        return _ssh(scp[2], None, scp[1], scp[3])
    parts = urlsplit(text)
    try:
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise StartError(f"policies_repository: its port is not a number; {_WRITE}") from None
    if parts.scheme == "file" and not host:
        return RepositoryAddress("folder", "", unquote(parts.path), unquote(parts.path))
    if parts.scheme == "ssh":
        if parts.password:
            raise StartError("policies_repository: ssh takes no password; give the service's user a key")
        return _ssh(host, port, parts.username, unquote(parts.path))
    if parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host)):
        return _http(parts.scheme, host, port, parts.path, parts.username, password or parts.password)
    raise StartError(f"policies_repository: {parts.scheme!r} does not authenticate the server; {_WRITE}")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _ssh(host: str, port: int | None, username: str | None, path: str) -> RepositoryAddress:
    if not _HOST.match(host) or path.startswith("-") or (username or "").startswith("-"):
        raise StartError(f"policies_repository: {host!r} is no host name; {_WRITE}")
    shown = f"ssh://{host}{'' if port is None else f':{port}'}/{path.lstrip('/')}"
    return RepositoryAddress("ssh", host, path, shown, port, username)


def _http(
    scheme: str, host: str, port: int | None, path: str, username: str | None, password: str | None
) -> RepositoryAddress:
    if not host or not _HOST.match(host):
        raise StartError(f"policies_repository: {host!r} is no host name; {_WRITE}")
    bare = f"[{host}]" if ":" in host else host
    base = f"{scheme}://{bare}{'' if port is None else f':{port}'}"
    user = unquote(username) if username else ("git" if password else None)
    secret = unquote(password) if password else None
    return RepositoryAddress("http", host, path, base + path, port, user, secret, base + "/")


class RemoteSession:
    """One conversation with a repository, bounded by a deadline."""

    def __init__(self, place: RepositoryAddress, timeout_s: float, route: Route = DIRECT) -> None:
        self._place, self._timeout_s, self._route = place, timeout_s, route
        self._ends = time.monotonic() + timeout_s
        self._vendor = _Ssh(timeout_s)
        self._opened: list[Protocol] = []
        self._http: HttpGitClient | None = None
        self._answers: list[Any] = []

    def client(self) -> GitClient:
        """The client of git's protocol for this address. It reads no git configuration and no environment."""
        if self._place.kind == "folder":
            return LocalGitClient(thin_packs=False, report_activity=self.tick)
        if self._place.kind == "ssh":
            return _SshClient(
                self._opened,
                self._place.host,
                port=self._place.port,
                username=self._place.username,
                vendor=self._vendor,
                thin_packs=False,
                report_activity=self.tick,
            )
        if self._http is None:
            self._http = self._over_http()
        return self._http

    def _over_http(self) -> HttpGitClient:
        """An HTTP client whose responses this session closes: dulwich leaves refused ones open."""
        made = HttpGitClient(
            self._place.url,
            pool_manager=git_pool(self._place.url, self._route, self._timeout_s),
            thin_packs=False,
            username=self._place.username,
            password=self._place.password,
            timeout=self._timeout_s,
            report_activity=self.tick,
        )
        send = made.pool_manager.request

        def sent(*args: Any, **more: Any) -> Any:
            # Any redirect leads away from the address the operator configured.
            answer = send(*args, **(more | {"redirect": False}))
            self._answers.append(answer)
            if answer.status in _REDIRECTS:
                raise RemoteRedirectError("it redirects elsewhere; write where it is as policies_repository")
            return answer

        made.pool_manager.request = sent  # type: ignore[method-assign]
        return made

    def tick(self, *_: object) -> None:
        """Check the deadline; called for all incoming data.

        Raises:
            RemoteTimeoutError: the deadline has passed.
        """
        if time.monotonic() > self._ends:
            raise RemoteTimeoutError(f"it took longer than {self._timeout_s:g} s (policies_timeout_s)")

    def within(self, take: Callable[[bytes], int], limit: int) -> Callable[[bytes], int]:
        """Wrap ``take``, bounded to ``limit`` bytes."""
        taken = 0

        def guarded(data: bytes) -> int:
            nonlocal taken
            self.tick()
            taken += len(data)
            if taken > limit:
                raise ValueError(
                    f"its history is larger than {limit} bytes; keep the policies in their own repository"
                )
            return take(data)

        return guarded

    def close(self) -> None:
        """Close everything. After a failure dulwich leaves its side of a pipe open."""
        self._vendor.close()
        for one in self._opened:
            one.close()
        for answer in self._answers:
            answer.close()
        if self._http is not None:
            self._http.pool_manager.clear()

    def scrub(self, text: str) -> str:
        """A server's text without our password, printable and at most 300 characters."""
        if self._place.password:
            text = text.replace(self._place.password, "***")
        return "".join(char if char.isprintable() else " " for char in text)[:300]


class _SshClient(SSHGitClient):
    """dulwich's client; it records its connections so that the session can close them."""

    def __init__(self, opened: list[Protocol], host: str, **more: Any) -> None:
        super().__init__(host, **more)
        self._opened = opened

    def _connect(
        self, cmd: bytes, path: str | bytes, protocol_version: int | None = None
    ) -> tuple[Protocol, Callable[[], bool], IO[bytes] | None]:
        found = super()._connect(cmd, path, protocol_version)
        self._opened.append(found[0])
        return found


class _Ssh(SSHVendor):
    """This host's ssh with its keys and known hosts, without prompts, and killed at the deadline."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._running: list[tuple[subprocess.Popen[bytes], threading.Timer]] = []

    def run_command(
        self,
        host: str,
        command: bytes,
        username: str | None = None,
        port: int | None = None,
        password: str | None = None,
        key_filename: str | None = None,
        ssh_command: str | None = None,
        protocol_version: int | None = None,
    ) -> SubprocessWrapper:
        wait = max(1, int(self._timeout_s))
        options = [
            "BatchMode=yes", "StrictHostKeyChecking=yes", "ForwardAgent=no", "ClearAllForwardings=yes",
            "PermitLocalCommand=no", f"ConnectTimeout={wait}", f"ServerAliveInterval={wait}",
        ]  # fmt: skip
        arguments = ["ssh", "-x", "-T", *(part for one in options for part in ("-o", one))]
        arguments += [] if port is None else ["-p", str(port)]
        arguments += [] if username is None else ["-l", username]
        running = subprocess.Popen(
            [*arguments, "--", host, command.decode()],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        timer = threading.Timer(self._timeout_s, running.kill)
        timer.daemon = True
        timer.start()
        self._running.append((running, timer))
        return SubprocessWrapper(running)

    def close(self) -> None:
        for running, timer in self._running:
            timer.cancel()
            if running.poll() is None:
                running.kill()
            running.wait()
            for pipe in (running.stdin, running.stdout, running.stderr):
                if pipe is not None:
                    pipe.close()
        self._running.clear()
