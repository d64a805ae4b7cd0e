"""Rules of every test: loopback only, one async backend, Hypothesis profiles, and no quiet skip.

A test that needs something from outside the repository (a browser, a server, recorded data) asks
`tests.counterparts.require` for it. Tests whose prerequisites are missing are skipped and listed at the end with
the way to get it. With REQUIRE_ALL=1 in the environment no test may skip, for any reason.
"""

from __future__ import annotations

import gc
import ipaddress
import logging
import os
import signal
import sys
from collections.abc import Generator, Iterator

import pytest
import structlog
from hypothesis import settings

from tests.counterparts import REQUIRE_ALL, WAY_TO_GET
from tests.parts import PARTS, part_of

# Nothing that a collection of tests makes is garbage before it ends; see `pytest_collection_finish`.
gc.disable()

settings.register_profile("fast", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("long", deadline=None, max_examples=2_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


class NetworkError(BaseException):
    """Raised where a test leaves the machine. A BaseException, so that no handler under test swallows it."""


def _refuse_the_network(event: str, args: tuple[object, ...]) -> None:
    if event == "socket.connect":
        host = args[1][0] if isinstance(args[1], tuple) else ""  # otherwise a unix socket
    elif event == "socket.getaddrinfo":
        host = args[0]
    else:
        return
    if not _is_this_machine(host.decode() if isinstance(host, bytes) else host):
        raise NetworkError(f"a test reached for {host!r}; tests talk to loopback addresses only")


def _is_this_machine(host: object) -> bool:
    if host in {None, "", "localhost", "0.0.0.0", "::"}:
        return True
    try:
        return ipaddress.ip_address(str(host).split("%")[0]).is_loopback
    except ValueError:
        return False


sys.addaudithook(_refuse_the_network)

# Where nothing is configured, a command under test sends the logs of all later tests to its own closed stderr.
structlog.configure(processors=[structlog.processors.format_exc_info, structlog.processors.JSONRenderer()])

# A shell starts what goes to the background with Ctrl-C ignored, and every program a test starts inherits that:
# those that are to end by it would then be waited for in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--part NAME`: that part of `make test-long` and nothing else."""
    parser.addoption("--part", choices=PARTS, help="run one part of the long tests")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what another part runs; Hypothesis and the folders' conftest files have marked their tests by now."""
    part = config.getoption("--part")
    if part is None:
        return
    config.hook.pytest_deselected(items=[item for item in items if part_of(item) != part])
    items[:] = [item for item in items if part_of(item) == part]


def pytest_collection_finish() -> None:
    """What is loaded by now stays: without this every collection walks ten thousand tests and all libraries again."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The service runs on asyncio, so the tests do."""
    return "asyncio"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        _fail_instead(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if REQUIRE_ALL and report.outcome == "skipped":
        _fail_instead(report)
    return report


def _fail_instead(report: pytest.TestReport | pytest.CollectReport) -> None:
    why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"REQUIRE_ALL=1 allows no skip, and {report.nodeid} skipped: {why}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the missing prerequisites and how to get them at the end of the run."""
    skipped = terminalreporter.stats.get("skipped", [])
    missing = sorted({str(report.longrepr[2]) for report in skipped if WAY_TO_GET in str(report.longrepr)})
    if not missing:
        return
    terminalreporter.section("NOT TESTED: something these tests need is missing", sep="!", red=True)
    for line in missing:
        terminalreporter.write_line(line.removeprefix("Skipped: "), red=True)


@pytest.fixture(autouse=True)
def _logs_of_its_own() -> Iterator[None]:
    """A command that was run inside a test leaves no handler behind, least of all one whose file is closed by then."""
    root = logging.getLogger()
    before, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    yield
    left = [one for one in root.handlers if type(one) is logging.StreamHandler and one not in before]
    for handler in left:
        root.removeHandler(handler)
    if left:
        root.setLevel(level)
        logging.captureWarnings(False)
    logging.raiseExceptions = raising
