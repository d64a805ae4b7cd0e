"""The installed policy service on loopback, for a test session.

It is started by its own command line, in its own process and data folder, and stopped in order. Agents are enrolled and
people sign in through the socket of its operator commands. An environment without the service is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import httpx2

from countersign.contract.keys import PrivateKey
from countersign.errors import CountersignError, MisuseError
from countersign.http_clients import socket_client
from countersign.settings import Settings

PEOPLE_IN_A_GROUP: Final = 3
"""How many people of a group can vote in a test: enough for a quorum of three."""

_ISSUER: Final = "urn:countersign:dev"
_FILE: Final = "groups.toml"
_LEFT_OUT: Final = shutil.ignore_patterns(".git", ".countersign", "__pycache__")


def copy_for_test(bundle: Path, copy: Path) -> dict[str, tuple[str, ...]]:
    """Copy the bundle with added people; returns the subjects of those people, by group.

    Raises:
        MisuseError: there is no such folder, or its groups.toml cannot be read.
    """
    if not bundle.is_dir():
        raise MisuseError(f"there is no bundle at {str(bundle)!r}; name the folder of your policies")
    shutil.copytree(bundle, copy, ignore=_LEFT_OUT)
    file = copy / _FILE
    try:
        table = tomllib.loads(file.read_text()) if file.exists() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise MisuseError(f"{_FILE} of the bundle cannot be read: {error}") from error
    elsewhere: dict[str, Any] = {name: {} for name in table.get("directory", {}).get("groups", {})}
    groups = elsewhere | table.get("groups", {})
    added = {name: tuple(f"{name}-{n + 1}" for n in range(PEOPLE_IN_A_GROUP)) for name in groups}
    file.write_text("".join(_written(table.get("people", {}), groups, added)))
    return added


def _written(
    people: Mapping[str, Any], groups: Mapping[str, Any], added: Mapping[str, tuple[str, ...]]
) -> Iterator[str]:
    subjects = [subject for of_group in added.values() for subject in of_group]
    here = {
        subject: {"id": f"{_ISSUER}|{subject}", "name": f"{subject} (of the test)"} for subject in subjects
    }
    for alias, person in {**people, **here}.items():
        yield _table("people", alias, person)
    for name, group in groups.items():
        yield _table("groups", name, {**group, "members": [*group.get("members", ()), *added[name]]})


def _table(kind: str, name: str, members: Mapping[str, Any]) -> str:
    lines = "".join(f"{key} = {_text(value)}\n" for key, value in members.items())
    return f"[{kind}.{_text(name)}]\n{lines}\n"


def _text(value: object) -> str:
    """A text or a list of texts as TOML: JSON, with one more character escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


_LOOPBACK: Final = "127.0.0.1"
_START_SECONDS: Final = 90.0  # a first start on a busy machine takes long
_STOP_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
_SAID: Final = 2000  # characters of the service's output in an error
_SERVICE: Final = "policy_service"


class ServiceFailed(CountersignError):
    """The service of a test did not start, or failed a command; the text contains its output."""

    code = "service_failed"


class TestedService:
    """A running service with a copy of one bundle. `url` is its address; `people` who may vote, by group."""

    __test__ = False  # not a test, in spite of its name

    def __init__(self, bundle: Path, environment: Mapping[str, str] | None = None) -> None:
        _require_installed()
        self._folder = Path(tempfile.mkdtemp(prefix="countersign-"))  # short: a socket's path has 107 bytes
        self._agents: dict[str, Settings] = {}
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://{_LOOPBACK}:{self._port}"
        self._data = self._folder / "data"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("COUNTERSIGN_")}
        self._environment = inherited | {
            "COUNTERSIGN_DATA_DIR": str(self._data),
            "COUNTERSIGN_BUNDLE_DIR": str(self._folder / "bundle"),
            "COUNTERSIGN_HOST": _LOOPBACK,
            "COUNTERSIGN_PORT": str(self._port),
            "COUNTERSIGN_PUBLIC_URL": self.url,
            "COUNTERSIGN_DEV_SIGNIN": "true",
            **(environment or {}),
        }
        try:
            self.people = copy_for_test(bundle, self._folder / "bundle")
            self._start()
        except BaseException:
            self.close()
            raise

    def enroll(self, agent: str, roles: Sequence[str]) -> Settings:
        """The agent with this name and these roles, enrolled on first use, without an owner.

        Raises:
            ServiceFailed: the service refused it.
        """
        if agent not in self._agents:
            key = PrivateKey.generate()
            asked = {"name": agent, "owner": None, "roles": list(roles), "jwk": key.public.jwk()}
            self._operate("agent-enroll", asked)
            path = self._folder / f"agent-{len(self._agents)}.pem"
            path.touch(mode=0o600)
            path.write_bytes(key.to_pem())
            self._agents[agent] = Settings(
                url=self.url,
                agent=agent,
                key_path=path,
                journal_path=self._folder / "journal.db",
                allow_dev=True,  # people of a test sign in by the development link
            )
        return self._agents[agent]

    def agent(self, name: str, roles: Sequence[str], journal: Path) -> Settings:
        """The same with its own journal."""
        return replace(self.enroll(name, roles), journal_path=journal)

    def sign_in_link(self, subject: str) -> str:
        """A single-use sign-in link for this person."""
        return str(self._operate("sign-in-link", {"sub": subject, "name": subject})["url"])

    def close(self) -> None:
        """Stop the service, and remove what it wrote."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        made = subprocess.run(
            self._words("init"), env=self._environment, capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            raise ServiceFailed(
                f"the service could not be set up: {(made.stderr or made.stdout).strip()[-_SAID:]}"
            )
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C reaches pytest first, whose fixtures then stop the service in order.
            self._process = subprocess.Popen(
                self._words("serve"),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServiceFailed(f"the service did not start: {self._last_words()}")
            time.sleep(_POLL_SECONDS)

    def _is_ready(self) -> bool:
        connection = HTTPConnection(_LOOPBACK, self._port, timeout=2.0)
        with contextlib.closing(connection), contextlib.suppress(OSError, HTTPException):
            connection.request("GET", "/readyz")
            return connection.getresponse().status == HTTPStatus.OK
        return False

    def _operate(self, verb: str, args: dict[str, Any]) -> Any:
        try:
            with socket_client(self._data / "admin.sock", timeout=_STOP_SECONDS) as operator:
                answer = operator.post(f"http://service/{verb}", json=args)
        except httpx2.HTTPError as error:
            raise ServiceFailed(f"the service does not answer its operator: {self._last_words()}") from error
        if answer.is_error:
            raise ServiceFailed(f"the service refused {verb!r}: {answer.text[:_SAID]}")
        return answer.json()

    @property
    def _log(self) -> Path:
        return self._folder / "service.log"

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace").strip()[-_SAID:] or "it said nothing"

    @staticmethod
    def _words(verb: str) -> list[str]:
        return [sys.executable, "-m", f"{_SERVICE}.cli", verb]


def _require_installed() -> None:
    if find_spec(_SERVICE) is None:
        raise MisuseError(
            "the policy service is not installed in this environment, and the test needs it to decide; install the "
            "distribution countersign-service in addition to the SDK"
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])
