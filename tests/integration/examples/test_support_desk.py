"""The demo as somebody would run it: the commands, the pages, the signals; and what must not happen."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import httpx2
import pytest

from examples.local_service import REPOSITORY, LocalService, ServiceError, free_port
from examples.person import PageError, Person
from examples.support_desk import demo, desk
from tests.fakes import warm
from tests.fakes.local_service import WarmService

DEMO = ["-m", "examples.support_desk.demo"]
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'sdk/python'}"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    folder = tmp_path_factory.mktemp("desk")
    policies = REPOSITORY / "policies"
    with WarmService(folder / "service", policies, port=free_port(), environment=ENVIRONMENT) as running:
        yield running


def test_check_plays_every_part_and_prints_each_outcome() -> None:
    done = warm.run([*DEMO, "--check"], env=ENVIRONMENT, cwd=REPOSITORY, timeout=120)

    assert done.returncode == 0, done.stderr
    lines = [re.sub(r" {2,}", "|", line.strip()) for line in done.stdout.splitlines()]
    assert lines == [
        "refund $24.00 to cus_1001|fired",
        "mail ada@example.com that it is done|fired",
        "refund $39.00 to cus_1003|denied",
        lines[3],
        "refund $1,240.00 to cus_1002|waits",
        "refund $1,240.00 to cus_1002|fired",
        "every result is as expected",
    ]
    assert lines[3].endswith("[never-to-closed-accounts]")


def test_check_reports_a_surprise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_desk", lambda folder: nullcontext((None, None, folder)))
    monkeypatch.setattr(demo, "_play", lambda *_: demo.EXPECTED | {"ticket-3": ["fired"]})

    assert demo.check() == 1
    output = capsys.readouterr()
    assert "UNEXPECTED: ticket-3: ['fired'], expected ['denied by" in output.err
    assert "as expected" not in output.out


@pytest.mark.long
def test_the_large_refund_fires_when_it_is_approved_and_ctrl_c_leaves_nothing_running() -> None:
    link = url = ""
    fired: list[str] = []
    with subprocess.Popen(
        [sys.executable, *DEMO], env=ENVIRONMENT, cwd=REPOSITORY, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    ) as running:  # fmt: skip
        for line in running.stdout or ():
            if "sign in as" in line:
                link = line.split()[-1]
            elif "then decide" in line:
                url = line.split()[-1]
                assert "refund $1,240.00 to cus_1002" not in fired
                with Person(url.partition("/reviews")[0]) as maya:
                    maya.sign_in(link)
                    maya.approve(url)
            elif line.rstrip().endswith(" fired"):
                fired.append(line.strip().removesuffix("fired").strip())
            elif "until Ctrl-C" in line:
                running.send_signal(signal.SIGINT)

    assert running.returncode == 0
    assert fired[-1] == "refund $1,240.00 to cus_1002"
    with pytest.raises(httpx2.TransportError):
        httpx2.get(url)


def test_what_a_service_refuses_is_raised_with_the_reason(service: LocalService) -> None:
    link = service.sign_in_link("maya")
    with Person(service.url) as maya, Person(service.url) as thief:
        maya.sign_in(link)
        with pytest.raises(PageError, match="answered 4"):
            thief.sign_in(link)
        with pytest.raises(PageError, match="not a sign-in link"):
            thief.sign_in(f"{service.url}/sign-in/dev")
    with pytest.raises(ServiceError, match="cannot be an agent's name"):
        service.enroll("no such name", "support-agent")


def test_a_service_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "broken.cedar").write_text("permit (")
    broken = WarmService(tmp_path / "service", tmp_path / "bundle", port=free_port(), environment=ENVIRONMENT)

    with pytest.raises(ServiceError, match=r"did not start: (.|\n)*broken\.cedar"), broken:
        pass
    assert not broken.running


def test_a_refund_is_written_once_for_each_call_key_and_never_above_what_was_paid(tmp_path: Path) -> None:
    books = tmp_path / "books.sqlite3"
    desk.create(books)
    for payment, cents in (("pay_9999", 1), ("pay_5001", 2_401)):
        with pytest.raises(desk.NoSuchPaymentError, match=f"no {cents} cents left"):
            desk.give_back(books, payment, cents, "", "k0")
    assert desk.lines(books) == []
    for _ in range(2):
        assert desk.give_back(books, "pay_5001", 1_000, "broken", "k1") == 1_400
    assert desk.lines(books) == ["refunded $10.00 to cus_1001"]
