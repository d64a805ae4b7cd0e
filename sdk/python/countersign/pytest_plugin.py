"""The pytest plugin: test an agent's rules against the real service with your bundle.

Nothing is loaded or started until a test uses a fixture. Tests of a session with the same bundle share one service.
Each test has an agent and a journal of its own, so that keys, budgets and meters are separate.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from countersign.contract.wire import DecisionView
    from countersign.errors import CountersignError
    from countersign.runtime import Runtime
    from countersign.testing.decisions import Decide
    from countersign.testing.people import Browsers, People
    from countersign.testing.service import TestedService

_KEPT: Final = frozenset({"COUNTERSIGN_BUDGETS", "COUNTERSIGN_PRICES"})
_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The settings of a project that tests its rules."""
    parser.addini("countersign_bundle", "folder of the policies that decide in tests", default="policies")
    parser.addini("countersign_roles", "roles of the agent under test", type="args", default=[])


@pytest.fixture
def countersign_bundle(pytestconfig: pytest.Config) -> Path:
    """The folder of the policies: the setting `countersign_bundle`, relative to the settings file. Override it to
    choose another.
    """
    folder = pytestconfig.inipath.parent if pytestconfig.inipath else pytestconfig.rootpath
    return folder / str(pytestconfig.getini("countersign_bundle"))


@pytest.fixture
def countersign_roles(pytestconfig: pytest.Config) -> Sequence[str]:
    """The roles of the agent under test: the setting `countersign_roles`. Override it to choose others."""
    return tuple(pytestconfig.getini("countersign_roles"))


@pytest.fixture
def countersign_agent() -> str:
    """The name of the agent under test, a new one in each test. Override it if policies name one."""
    return f"agent-{next(_numbers)}"


@pytest.fixture
def countersign_environment() -> Mapping[str, str]:
    """More settings of the service, as environment variables. Override it if the bundle's facts need some."""
    return {}


class _Services:
    """The services of a session: one for each bundle and environment, started on demand."""

    def __init__(self) -> None:
        self._running: dict[object, tuple[TestedService, Browsers]] = {}
        self._refused: dict[object, CountersignError] = {}  # every test gets the same error
        self._open = ExitStack()

    def of(self, bundle: Path, environment: Mapping[str, str]) -> tuple[TestedService, Browsers]:
        from countersign.errors import CountersignError
        from countersign.testing.people import Browsers
        from countersign.testing.service import TestedService

        asked = (bundle.resolve(), frozenset(environment.items()))
        if asked in self._refused:
            raise self._refused[asked]
        if asked not in self._running:
            try:
                service = TestedService(bundle, environment)
            except CountersignError as error:
                self._refused[asked] = error
                raise
            self._open.callback(service.close)
            browsers = Browsers(service)
            self._open.callback(browsers.close)
            self._running[asked] = service, browsers
        return self._running[asked]

    def close(self) -> None:
        self._open.close()


@pytest.fixture(scope="session")
def _countersign_services() -> Iterator[_Services]:
    services = _Services()
    try:
        yield services
    finally:
        services.close()


@pytest.fixture
def _countersign_running(
    _countersign_services: _Services, countersign_bundle: Path, countersign_environment: Mapping[str, str]
) -> tuple[TestedService, Browsers]:
    from countersign.errors import CountersignError

    try:
        return _countersign_services.of(Path(countersign_bundle), countersign_environment)
    except CountersignError as error:
        why = str(error)
    pytest.fail(why, pytrace=False)  # outside of the handler, or the error is shown twice


@pytest.fixture
def countersign_service(_countersign_running: tuple[TestedService, Browsers]) -> TestedService:
    """The running service with a copy of the bundle."""
    return _countersign_running[0]


@pytest.fixture
def countersign_runtime(
    countersign_service: TestedService,
    countersign_agent: str,
    countersign_roles: Sequence[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Runtime]:
    """The runtime of the agent under test, installed for `transaction()` in this process, and in the environment for
    programs that the test starts.
    """
    from countersign.process_runtime import use_runtime
    from countersign.runtime import Runtime

    settings = countersign_service.agent(
        countersign_agent, countersign_roles, tmp_path / "countersign-journal.db"
    )
    for name in [name for name in os.environ if name.startswith("COUNTERSIGN_") and name not in _KEPT]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COUNTERSIGN_URL", settings.url)
    monkeypatch.setenv("COUNTERSIGN_AGENT", settings.agent)
    monkeypatch.setenv("COUNTERSIGN_KEY", str(settings.key_path))
    monkeypatch.setenv("COUNTERSIGN_JOURNAL", str(settings.journal_path))
    monkeypatch.setenv("COUNTERSIGN_ALLOW_DEV", "1")
    with Runtime.from_env() as runtime, use_runtime(runtime):
        yield runtime


@pytest.fixture
def countersign_people(
    _countersign_running: tuple[TestedService, Browsers], countersign_runtime: Runtime
) -> People:
    """The approvers: `approve(pending, by="finance")`, `deny(pending, "why", by="finance")`, and `settle(unknown,
    "fired", by="finance")` for a task.
    """
    from countersign.testing.people import People

    return People(*_countersign_running, countersign_runtime)


@pytest.fixture
def countersign_decide(countersign_runtime: Runtime) -> Decide:
    """`countersign_decide("refund", {...}).outcome`: `release`, `review` or `deny`; nothing is recorded. A tool
    missing from the bundle is an error of the test, unless `unknown=True`.
    """
    from countersign.testing.decisions import decide

    def ask(tool: str, args: Mapping[str, Any], *, unknown: bool = False) -> DecisionView:
        return decide(countersign_runtime, tool, args, unknown=unknown)

    return ask
