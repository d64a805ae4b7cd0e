"""Pytest plugin: record which lines of the two packages each test runs, child programs included.

`tests.mutation.reach` starts pytest with this plugin. Every worker and every child program writes one coverage
data file into `REACH_FOLDER`; a worker names the context of each line by the test, a child by the test that
started it (`PYTEST_CURRENT_TEST`). Durations and outcomes go to `tests.jsonl` in the same folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

FOLDER = Path(os.environ["REACH_FOLDER"])


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(_Lines(), "recorded lines")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Outcomes(), "recorded outcomes")


class _Lines:
    def __init__(self) -> None:
        self.measured = coverage.Coverage(config_file=str(FOLDER / "coveragerc"), context="")
        self.measured.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.measured.switch_context(item.nodeid)
        return (yield)

    def pytest_sessionfinish(self) -> None:
        self.measured.stop()
        self.measured.save()


class _Outcomes:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration
        if not report.passed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        with (FOLDER / "tests.jsonl").open("w") as out:
            for name, seconds in self.seconds.items():
                print(json.dumps([name, round(seconds, 4), name not in self.failed]), file=out)
