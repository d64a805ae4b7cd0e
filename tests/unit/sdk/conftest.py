"""One desk for each test; its connections are always closed, and its journal is verified."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from countersign import FilesAdapter, SQLiteAdapter, tracing
from countersign.journal import open_database
from countersign.journal.location import JournalLocation
from countersign.journal.verification import verify
from tests.fakes.desk import Desk, charge_tools, make_desk, note_tool, notes_database, notes_in, refund_tool
from tests.unit.sdk.journals import engine, journal_database, place, server

__all__ = ["desk", "engine", "journal_database", "place", "server"]


@pytest.fixture
def desk(tmp_path: Path, place: JournalLocation, request: pytest.FixtureRequest) -> Iterator[Desk]:
    assert not isinstance(place, str), f"a parameter 'place' ({place!r}) hides the fixture: rename it"
    world = make_desk(tmp_path, journal_path=place)
    yield world
    world.runtime.close()
    database = open_database(place)
    is_there = database.exists()
    database.close()
    if is_there:
        found = verify(place).findings
        tampers = request.node.get_closest_marker("tampers") is not None
        assert bool(found) is tampers, found or "the chain did not notice what this test did to the journal"


@pytest.fixture
def refund(desk: Desk) -> Callable[..., Any]:
    """The tool most tests use."""
    return refund_tool(desk)


@pytest.fixture
def charge(desk: Desk) -> Callable[..., Any]:
    """A charge, which `void` compensates."""
    return charge_tools(desk)


@pytest.fixture
def notes(desk: Desk) -> Path:
    """A small database for the live lane."""
    return notes_database(desk.folder)


@pytest.fixture
def database(notes: Path) -> SQLiteAdapter:
    return SQLiteAdapter(notes, busy_seconds=0.2)


@pytest.fixture
def note(desk: Desk, database: SQLiteAdapter) -> Callable[[str, str], int]:
    """Raises after it has written, where the text is "bad"."""
    return note_tool(desk, database)


@pytest.fixture
def live_notes(desk: Desk, notes: Path) -> SimpleNamespace:
    """A live tool on a small database, its adapter, and what others read of its notes."""
    adapter = SQLiteAdapter(notes, busy_seconds=0.1)
    return SimpleNamespace(adapter=adapter, note=note_tool(desk, adapter), written=lambda: notes_in(notes))


@pytest.fixture
def root(desk: Desk) -> Path:
    """A folder of files for the live lane."""
    (desk.folder / "root").mkdir()
    return desk.folder / "root"


@pytest.fixture
def files(root: Path) -> FilesAdapter:
    return FilesAdapter(root)


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Everything that is traced."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with tracing.use_provider(provider):
        yield exporter
    provider.shutdown()
