"""A COMMIT on PostgreSQL whose answer is lost with the line to the server: a real one, behind a line that is cut."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from countersign import OutcomeUnknown, resume, tool, transaction
from countersign.adapters.postgres import PostgresAdapter
from countersign.errors import CommitUnknown
from countersign.journal.reading import LIVE_LANE
from tests.fakes.desk import Desk, charge_tools
from tests.unit.sdk.adapters.resources import PostgresRows

pytestmark = pytest.mark.xdist_group("postgresql")


class Line:
    """To the server, until it is cut: as a COMMIT is said, which then arrives or does not."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self.cuts = self.arrives = self.dead = False
        self._answered = threading.Event()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        self._door.close()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._door.accept()
                if self.dead:
                    near.close()
                    continue
                far = socket.create_connection(self._server)
                threading.Thread(target=self._carry, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._carry, args=(far, near, False), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket, there: bool) -> None:
        with suppress(OSError):
            while said := one.recv(65536):
                if there and self.cuts and b"COMMIT" in said:
                    self.dead = True
                    if self.arrives:
                        other.sendall(said)
                        assert self._answered.wait(10)
                    break
                if not there and self.dead:
                    self._answered.set()  # and nobody hears it
                    break
                other.sendall(said)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.fixture
def line(conninfo: str) -> Iterator[Line]:
    told = conninfo_to_dict(conninfo)
    made = Line(str(told["host"]), int(str(told["port"])))
    yield made
    made.close()


@pytest.fixture
def adapter(conninfo: str, line: Line) -> PostgresAdapter:
    return PostgresAdapter(
        make_conninfo(conninfo, host="127.0.0.1", port=line.port), name="rows", wait_seconds=1
    )


@pytest.fixture
def put(desk: Desk, adapter: PostgresAdapter, rows: PostgresRows) -> Callable[[str], Any]:
    @tool("put", lane="live", adapter=adapter, registry=desk.registry)
    def put(key: str) -> None:
        """Write a row."""
        rows.write(adapter, key, "new")

    return put


def live_states(desk: Desk) -> list[str]:
    (record,) = desk.runtime.journal.transactions.find("t-1")
    return [row.state.value for row in desk.runtime.journal.transactions.shown(record, LIVE_LANE)]


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("staged", [True, False])
def test_it_is_not_known_until_the_server_can_be_asked_and_nothing_is_taken_back_before(
    desk: Desk, put: Callable[[str], Any], rows: PostgresRows, line: Line, arrives: bool, staged: bool
) -> None:
    charge = charge_tools(desk)
    line.arrives = arrives
    with pytest.raises(OutcomeUnknown) as unknown, transaction("t-1", runtime=desk.runtime) as txn:
        put("k")
        if staged:
            charge("o-1", 100)
        line.cuts = True
    assert isinstance(unknown.value.__cause__, CommitUnknown)
    assert isinstance(unknown.value.__cause__.__cause__, psycopg.Error)
    assert (rows.outside("k"), txn.state, live_states(desk)) == (
        "new" if arrives else None,
        "unsettled",
        ["live"],
    )
    assert [one.after for one in resume(desk.runtime)] == ["unsettled"]
    assert [what for what, *_ in desk.done] == (["charge"] if staged else [])
    line.cuts = line.dead = False
    (found,) = resume(desk.runtime)
    assert (found.after, live_states(desk)) == (
        "settled" if arrives or staged else "ended",
        ["kept"] if arrives else ["undone"],
    )
    taken_back = ["void"] if staged and not arrives else []
    assert [what for what, *_ in desk.done] == [*(["charge"] if staged else []), *taken_back]
    assert resume(desk.runtime) == []
