"""`make demo`: a real service on loopback, a small agent behind it, and a question that waits for a person.

    python -m examples.support_desk.demo            goes on until Ctrl-C; people answer in the browser
    python -m examples.support_desk.demo --check    plays every part; exits with 1 if a result differs

The agent is a process of its own with its own key; the person of --check uses the pages a browser uses.
What the demo writes lies in `.demo/` and is made anew at each start; nothing is left running.
"""

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from countersign import Settings
from examples.local_service import (
    REPOSITORY,
    LocalService,
    ServiceError,
    end_in_order_on_signals,
    free_port,
)
from examples.person import PageError, Person
from examples.support_desk import desk
from examples.support_desk.agent import Event
from examples.support_desk.tools import BOOKS

PORT = 8470
AGENT = "support-agent"
ROLE = "support-agent"
APPROVER = "maya"  # of finance, in policies/groups.toml
CHECK_SECONDS = 90  # the whole of --check, on a busy machine
FOLDER = REPOSITORY / ".demo"

EXPECTED = {
    "ticket-1": ["fired"],
    "ticket-2": ["fired"],
    "ticket-3": ["denied by never-to-closed-accounts"],
    "ticket-4": ["waits", "fired"],
    "the books while it waits": ["refunded $24.00 to cus_1001", "mailed ada@example.com: Your refund"],
    "the books at the end": [
        "refunded $24.00 to cus_1001",
        "refunded $1,240.00 to cus_1002",
        "mailed ada@example.com: Your refund",
    ],
}


def main() -> int:
    """Run the demo, or check it."""
    parser = argparse.ArgumentParser(prog="python -m examples.support_desk.demo", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="play every part and compare with the expected results"
    )
    arguments = parser.parse_args()
    end_in_order_on_signals()
    try:
        return check() if arguments.check else show()
    except (ServiceError, PageError) as error:
        print(f"the demo ends here: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; nothing is left running")
        return 0


def show() -> int:
    """Let a person play, until interrupted."""
    print("Countersign demo: starting a policy service and a support desk's agent ...", flush=True)
    with _own_folder() as folder, _desk(folder) as (service, settings, books):
        print(f"The agent's questions wait for people at {service.url}\n")
        with _agent(settings, books) as events:
            for event in events:
                _print(event)
                if event.state == "waits":
                    print(f"\n    sign in as Maya of finance   {service.sign_in_link(APPROVER)}")
                    print(f"    then decide                  {event.url}\n", flush=True)
        print(f"\nThe agent is done. What has happened ({books}):\n")
        print("".join(f"    {line}\n" for line in desk.lines(books)))
        print("The service goes on until Ctrl-C.", flush=True)
        while service.running:
            time.sleep(0.5)
        raise ServiceError("the service has stopped; see the .log file next to its data")


def check() -> int:
    """Play the agent's and the person's part. Return 0 if every result is as expected."""
    with (
        tempfile.TemporaryDirectory(prefix="countersign-demo-") as name,
        _desk(Path(name)) as (service, settings, books),
    ):
        became = _play(service, settings, books)
    wrong = [what for what, expected in EXPECTED.items() if became.get(what) != expected]
    for what in wrong:
        print(f"UNEXPECTED: {what}: {became.get(what)}, expected {EXPECTED[what]}", file=sys.stderr)
    if wrong:
        return 1
    print("every result is as expected")
    return 0


def _play(service: LocalService, settings: Settings, books: Path) -> dict[str, list[str]]:
    became: dict[str, list[str]] = {}
    with _agent(settings, books, CHECK_SECONDS) as events, Person(service.url) as maya:
        for event in events:
            _print(event)
            state = f"{event.state} by {event.policy}" if event.policy else event.state
            became.setdefault(event.ticket, []).append(state)
            if event.state == "waits":
                became["the books while it waits"] = desk.lines(books)
                maya.sign_in(service.sign_in_link(APPROVER))
                maya.approve(event.url, "checked against the order")
    became["the books at the end"] = desk.lines(books)
    return became


def _print(event: Event) -> None:
    print(f"    {event.wish:<40} {event.state}", flush=True)
    if event.state in {"denied", "failed"}:
        print(f"        {event.text}", flush=True)


@contextmanager
def _own_folder() -> Iterator[Path]:
    """The demo's folder, empty, and for one demo at a time."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ServiceError(f"another demo is running in {FOLDER}; end it first") from error
        folder = FOLDER / "support-desk"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield folder


@contextmanager
def _desk(folder: Path) -> Iterator[tuple[LocalService, Settings, Path]]:
    """The desk's books, and the service with an enrolled agent."""
    books = folder / "books.sqlite3"
    desk.create(books)
    with LocalService(folder / "service", REPOSITORY / "policies", port=free_port(PORT)) as service:
        yield service, service.enroll(AGENT, ROLE), books


@contextmanager
def _agent(settings: Settings, books: Path, seconds: float | None = None) -> Iterator[Iterator[Event]]:
    """Run the agent in its own process and yield its events. It is stopped after `seconds`."""
    environment = os.environ | {
        "COUNTERSIGN_URL": settings.url,
        "COUNTERSIGN_AGENT": settings.agent,
        "COUNTERSIGN_KEY": str(settings.key_path),
        "COUNTERSIGN_JOURNAL": str(settings.journal_path),
        "COUNTERSIGN_ISSUER_KEYS": ",".join(settings.issuer_keys),
        "COUNTERSIGN_ALLOW_DEV": "1",
        BOOKS: str(books),
    }
    command = [sys.executable, "-m", "examples.support_desk.agent", "--json"]
    with (
        subprocess.Popen(
            command,
            env=environment,
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process,
        _ended_after(process, seconds),
    ):
        try:
            yield (Event(**json.loads(line)) for line in process.stdout or ())
        finally:
            process.terminate()


@contextmanager
def _ended_after(process: subprocess.Popen[str], seconds: float | None) -> Iterator[None]:
    """Kill the process when it takes longer, so that its output ends and its reader goes on."""
    watch = threading.Timer(seconds, process.kill) if seconds is not None else None
    if watch is not None:
        watch.start()
    try:
        yield
    finally:
        if watch is not None:
            watch.cancel()


if __name__ == "__main__":
    sys.exit(main())
