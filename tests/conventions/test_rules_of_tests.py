"""The rules of every test: a skip is loud, or a failure under REQUIRE_ALL; no connection leaves the machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conventions.repository import ROOT
from tests.counterparts import require

SUITE = {
    "test_counterpart.py": "from tests.counterparts import require\n"
    "def test_it(): require('the moon', None, 'apt-get install moon')\n",
    "test_by_hand.py": "import pytest\ndef test_it(): pytest.skip('no; to get it: wait')\n",
    "test_by_mark.py": "import pytest\n@pytest.mark.skip(reason='no; to get it: wait')\ndef test_it(): ...\n",
    "test_module.py": "import pytest\npytest.skip('no; to get it: wait', allow_module_level=True)\n",
    "test_library.py": "import pytest\npytest.importorskip('moon', reason='to get it: pip install moon')\n",
}
EXPECTED_FAILURE = "import pytest\n@pytest.mark.xfail(raises=ValueError)\ndef test_it(): raise ValueError\n"


def run_suite(folder: Path, require_all: str) -> subprocess.CompletedProcess[str]:
    for name, source in {**SUITE, "test_xfail.py": EXPECTED_FAILURE}.items():
        (folder / name).write_text(source)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", ROOT / "pyproject.toml", "--rootdir", ROOT,
         "-p", "tests.conftest", "-p", "no:cacheprovider", "--continue-on-collection-errors", folder],
        cwd=ROOT, env=os.environ | {"REQUIRE_ALL": require_all}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_skip_is_reported_with_the_way_to_install_it(tmp_path: Path) -> None:
    result = run_suite(tmp_path, "")
    assert "5 skipped, 1 xfailed" in result.stdout.splitlines()[-1]
    report = result.stdout.partition("NOT TESTED")[2]
    for way in ("apt-get install moon", "pip install moon", "wait"):
        assert f"to get it: {way}" in report


def test_under_require_all_no_test_may_skip(tmp_path: Path) -> None:
    result = run_suite(tmp_path, "1")
    last = result.stdout.splitlines()[-1]
    assert "2 failed, 1 xfailed, 3 errors" in last, result.stdout
    assert "skipped" not in last


@pytest.mark.parametrize("found", [0, "", [], "/usr/bin/chromium"])
def test_what_is_found_is_handed_back_and_empty_is_missing(found: object) -> None:
    if found:
        assert require("chromium", found, "apt-get install chromium") == found
        return
    with pytest.raises((pytest.skip.Exception, pytest.fail.Exception), match="to get it: apt-get"):
        require("chromium", found, "apt-get install chromium")


@pytest.mark.parametrize("address", [("192.0.2.1", 80), ("2001:db8::1", 80)])
def test_a_test_that_leaves_the_machine_is_stopped(address: tuple[str, int]) -> None:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family) as outgoing, pytest.raises(BaseException, match="loopback addresses only"):
        outgoing.connect(address)


def test_a_test_that_asks_for_a_foreign_name_is_stopped() -> None:
    with pytest.raises(BaseException, match="loopback addresses only"):
        socket.create_connection(("example.invalid", 80))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_loopback_is_open(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection((host, server.getsockname()[1])).close()


@pytest.mark.parametrize("part", ["sdk", "examples"])
def test_a_part_named_like_a_folder_is_still_a_part(part: str) -> None:
    subprocess.run(["make", "-s", "test-long", f"PART={part}", "ARGS=--markers"], cwd=ROOT, check=True)
