"""An agent stages on one host and another host fires: their journal is in PostgreSQL, the service is real."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from countersign import Runtime, Settings, resume, transaction
from countersign.journal.location import JournalUrl
from countersign.journal.verification import verify
from examples.local_service import LocalService
from tests.fakes.desk import notes_database
from tests.integration.sdk.conftest import Office, Tools
from tests.unit.sdk.journals import journal_database, place, server

__all__ = ["journal_database", "place", "server"]
pytestmark = pytest.mark.xdist_group("journals")


@pytest.fixture
def engine() -> str:
    return "postgresql"


def test_another_host_fires_what_this_one_parked(
    service: LocalService, enrolled: Settings, place: JournalUrl, tmp_path: Path, key: str
) -> None:
    tools = Tools(notes_database(tmp_path))
    settings = replace(enrolled, journal_path=place, retry_base_seconds=0.01)
    with Runtime(settings, registry=tools.registry) as runtime:
        office = Office(service, settings, tools, runtime)
        office.approve(office.asked(key))
        assert _on_another_host(settings, tools, key) == 0
        with transaction(key, runtime=runtime) as txn:  # and this one knows
            receipt = tools.refund("o-1", 90_000)
        assert (txn.replayed, receipt.result, tools.done) == (True, "r-o-1", [])
    assert verify(place).sound


def _on_another_host(settings: Settings, tools: Tools, key: str) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            socket.gethostname = lambda: "elsewhere"
            with Runtime(settings, registry=tools.registry) as runtime:
                (found,) = resume(runtime)
            settled = (found.run_key, found.after) == (key, "settled")
            code = 0 if settled and tools.done == [("refund", "o-1", 90_000)] else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
