"""kill -9 at every point of a commit, then a restart: nothing fires twice, and no report claims more than is known."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from countersign.contract import EffectState, PrivateKey
from countersign.journal import Journal
from countersign.journal.location import JournalUrl
from tests.counterparts import postgres
from tests.crash.alone import Life, acts, fired, live, manifests_of, place_in
from tests.fakes.desk import notes_database, write_key
from tests.fakes.service import FakeService
from tests.fakes.service_http import Face, serving

OPEN_ENDS = {"redeemed", "firing"}
SPENT = {EffectState.REDEEMED, EffectState.FIRED, EffectState.UNKNOWN, EffectState.UNUSED}
HERE_IT_MATTERS = (
    *("after durable commit", "after POST", "before refund:", "after refund:", "before void:", "after void:"),
    *("before live", "after live", "after file", "after save"),
)
"""Enough for every day; `make test-long` dies at every point there is."""

OLD_FILES = {"state": "old", "draft": "to be removed"}
NEW_FILES = {"state": "new", "orders/o-1": "refunded"}

PATIENCE_S = 60.0  # for what has to come about, never for time to pass

DATABASE = "journals.url"  # next to the stages, where their journals share one database

pytestmark = pytest.mark.timeout(900)  # a hundred processes on a busy machine
POSTGRES = pytest.param("postgresql", marks=[pytest.mark.long, pytest.mark.xdist_group("postgresql")])
EVERY = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])


@pytest.fixture(params=["sqlite", POSTGRES])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Which engine the journals of a sweep are on."""
    if request.param == "postgresql":
        with postgres.database(request.getfixturevalue("postgres_server")) as url:
            (tmp_path / DATABASE).write_text(url.replace("+psycopg", ""))
            yield "postgresql"
        return
    yield "sqlite"


@dataclass
class Stage:
    """One agent's machine in front of a served fake."""

    folder: Path
    service: FakeService
    face: Face
    url: str
    flow: str

    def live(self, **life: Any) -> dict[str, Any]:
        return live(Life(self.folder, self.url, self.flow, **life))

    def held(self) -> list[EffectState]:
        (revisions,) = self.service.revisions.values() or ([],)
        return [one.state for one in revisions[-1].held] if revisions else []

    def notes(self, table: str = "notes") -> int:
        """How many rows the live half wrote into the SQLite database of this name."""
        with closing(sqlite3.connect(self.folder / f"{table}.db")) as opened:
            (many,) = opened.execute(f"SELECT count(*) FROM {table}").fetchone()
        return int(many)

    def books(self) -> int:
        """How many rows the second database has."""
        place = place_in(self.folder)
        if not isinstance(place, JournalUrl):
            return self.notes("books")
        with psycopg.connect(place.secret) as books:
            counted = "SELECT count(*) FROM public.books WHERE stage = %s"
            row = books.execute(counted, (self.folder.name,)).fetchone()
        return int(row[0]) if row else -1

    def files(self) -> str:
        """Whether the files below the root are as before or as after; "half" is neither."""
        root = self.folder / "files"
        paths = [path for path in root.rglob("*") if path.is_file() and ".countersign" not in path.parts]
        found = {str(path.relative_to(root)): path.read_text() for path in paths}
        ends = {"old": OLD_FILES, "new": NEW_FILES}
        return next((end for end, files in ends.items() if files == found), "half")

    def records(self) -> str:
        """What the files adapter has left next to the files."""
        folder = self.folder / "files" / ".countersign" / "sessions"
        found = sorted(folder.iterdir()) if folder.exists() else []
        records = [one / "record.json" for one in found]
        return " ".join(json.loads(one.read_text())["state"] if one.exists() else "none" for one in records)

    def effects(self) -> tuple[str, tuple[Any, ...]]:
        """The state of the transaction and its effects, as the journal has them."""
        with closing(Journal(place_in(self.folder))) as opened:
            found = opened.transactions.find("t-1")
            rows = opened.transactions.effects(found[0]) if found and found[0].staging else ()
            return (found[0].state if found else "", rows)

    def journal(self) -> list[tuple[str, str]]:
        """Each state with whose it is, the transaction's first; nothing where there is none."""
        state, rows = self.effects()
        return [(state, "txn"), *((row.state.value, row.tool) for row in rows)] if state else []


@contextmanager
def staged(tmp_path: Path, flow: str, name: str) -> Iterator[Stage]:
    folder = tmp_path / name
    folder.mkdir()
    notes_database(folder)
    (folder / "files").mkdir()
    if (tmp_path / DATABASE).exists():
        database = (tmp_path / DATABASE).read_text()
        (folder / "journal.url").write_text(f"{database}?options=-csearch_path%3Dj_{uuid.uuid4().hex}")
        with psycopg.connect(database) as books:
            books.execute("CREATE TABLE IF NOT EXISTS public.books (stage text)")
    with closing(sqlite3.connect(folder / "books.db")) as opened:
        opened.execute("CREATE TABLE books (stage TEXT)")
    for name, content in OLD_FILES.items():
        (folder / "files" / name).write_text(content)
    service = FakeService(now=time.time)
    face = Face(service)
    key = PrivateKey.generate()
    service.enroll("support", key.public)
    write_key(folder / "agent.pem", key)
    service.review(manifests_of(flow, folder))
    with serving(face) as url:
        service.iss = url
        yield Stage(folder, service, face, url, flow)
    shutil.rmtree(folder)


def points_of(tmp_path: Path, flow: str, *, every: bool) -> list[str]:
    """The points of a run that is not killed."""
    with staged(tmp_path, flow, "survivor") as stage:
        said = stage.live()
        assert said["raised"] in {None, "EffectFailed"}
        return chosen(said["points"], every)


def killed_at_each(tmp_path: Path, flow: str, *, every: bool = True) -> Iterator[tuple[str, Stage]]:
    """Each point of a run, with the stage of the agent that was killed there."""
    for number, point in enumerate(points_of(tmp_path, flow, every=every)):
        with staged(tmp_path, flow, str(number)) as stage:
            assert stage.live(dies_at=point)["raised"] == "killed", point
            yield point, stage


def require_as_approved(stage: Stage, context: str) -> None:
    """I-2: what fired was called with the bytes that were staged, and these were approved under their digest."""
    staged = {row.effect_id: (row.args, row.effect.digest) for row in stage.effects()[1] if row.effect}
    (revisions,) = stage.service.revisions.values() or ([],)
    held = {one.effect.effect_id: one for one in (revisions[-1].held if revisions else ())}
    for effect_id, args in fired(stage.folder).items():
        approved = held[effect_id].effect
        assert held[effect_id].state in SPENT, context
        assert staged[effect_id] == (approved.args_bytes, approved.digest), f"not as staged: {context}"
        assert args == approved.args_bytes, f"fired with other arguments than approved: {context}"


def chosen(points: list[str], every: bool) -> list[str]:
    mattering = points if every else [point for point in points if point.startswith(HERE_IT_MATTERS)]
    assert mattering, f"no point of {points} is one where it matters: it has been renamed"
    return mattering


def require_honest(stage: Stage, point: str, said: dict[str, Any], before: list[str]) -> None:
    """What the restarted process said is what is true."""
    world = acts(stage.folder)
    context = f"killed {point}; then {said}; world {world}; journal {stage.journal()}"
    assert len(world) == len(set(world)), f"fired twice: {context}"
    assert world[: len(before)] == before
    if said["raised"] is None:
        assert said["outcomes"] == ["fired"] * len(said["outcomes"]), context
        assert len(world) == len(said["outcomes"]), context
    if said["raised"] == "OutcomeUnknown":
        assert "unknown" in said["outcomes"], context
        assert point.startswith(
            ("before refund:", "after refund:", "after durable commit", "before durable commit")
        ), context
    assert not {state for state, _ in stage.journal()} & OPEN_ENDS, context


@EVERY
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("flow", [pytest.param("one", marks=pytest.mark.long), "two"])
def test_killed_anywhere_a_rerun_fires_once_or_says_unknown(tmp_path: Path, flow: str, every: bool) -> None:
    points = unknown = 0
    for point, stage in killed_at_each(tmp_path, flow, every=every):
        points += 1
        before = acts(stage.folder)
        said = stage.live()
        require_honest(stage, point, said, before)
        unknown += said["raised"] == "OutcomeUnknown"
    assert points > (30 if every else 6)
    # after FIRING is on disk: before the act, after it, and before its outcome is on disk too
    assert unknown == {"one": 3, "two": 6}[flow] + (every * {"one": 1, "two": 2}[flow])


@EVERY
def test_an_idempotent_tool_is_called_again_with_its_key(tmp_path: Path, every: bool) -> None:
    for point, stage in killed_at_each(tmp_path, "idempotent", every=every):
        said = stage.live()
        assert said["raised"] is None, point
        assert set(acts(stage.folder)) == {"refund:o-1"}
        assert len(acts(stage.folder)) <= 2


@pytest.mark.long
@pytest.mark.parametrize("flow", ["probed", "probed_final"])
def test_killed_anywhere_the_probe_settles_the_outcome(tmp_path: Path, flow: str) -> None:
    """I-3: each outcome in doubt is known in the end, as the world has it, and no call was made twice."""
    ends = set()
    for point, stage in killed_at_each(tmp_path, flow):
        before = acts(stage.folder)
        stage.live(resumes=True)
        if flow == "probed_final":
            assert "unknown" not in dict(stage.journal()), point
        until = time.monotonic() + PATIENCE_S
        while "unknown" in dict(stage.journal()):  # what is not there counts once its timeout has passed
            assert time.monotonic() < until, point
            time.sleep(0.1)
            stage.live(resumes=True)
        first, world = stage.journal(), acts(stage.folder)
        context = f"{point}: {first}, {world}"
        stage.live(resumes=True)
        assert (stage.journal(), acts(stage.folder)) == (first, world), context
        assert world[: len(before)] == before and len(world) == len(set(world)), context
        assert [state for state, tool in first if tool == "refund" and state == "fired"] == [
            "fired" for _ in world
        ], context
        assert not {state for state, _ in first} & {"firing", "redeemed", "unknown"}, context
        assert not {EffectState.REDEEMED, EffectState.UNKNOWN} & {*stage.held()}, context
        ends.add(tuple(state for state, _ in first[1:]))
    assert {("fired", "fired"), ("failed", "unused"), ("fired", "failed")} <= ends


@pytest.mark.parametrize("point", ["before void:o-1 acts #1", "after void:o-1 acted #1"])
def test_a_killed_compensation_is_unknown_and_not_called_again(tmp_path: Path, point: str) -> None:
    with staged(tmp_path, "taken_back", "one") as stage:
        assert stage.live(dies_at=point)["raised"] == "killed"
        world = acts(stage.folder)
        assert world == ["charge:o-1", "void:o-1"][: 1 + point.startswith("after")]
        for _ in range(2):
            assert stage.live(resumes=True)["resumed"] == ["unsettled"]
        assert (acts(stage.folder), dict(stage.journal())["unsettled"]) == (world, "txn")
        compensation = stage.service.latest(next(iter(stage.service.revisions))).held[0].compensation
        assert compensation is not None
        assert compensation.state is EffectState.UNKNOWN


@pytest.mark.long
def test_two_databases_end_all_done_all_undone_or_with_a_task(tmp_path: Path, engine: str) -> None:
    """I-1, I-2, I-3, I-14 at every fault point of the journal; a second recovery changes nothing."""
    ends = set()
    for point, stage in killed_at_each(tmp_path, "wide"):
        before = acts(stage.folder)
        redeemed = bool(SPENT & {*stage.held()})
        stage.live(resumes=True)
        first = (stage.journal(), acts(stage.folder), stage.notes(), stage.books())
        stage.live(resumes=True)
        journal, world, notes, books = first
        context = f"{engine}, {point}: {world}, {notes} notes, {books} books, {journal}"
        assert (stage.journal(), acts(stage.folder), stage.notes(), stage.books()) == first, context
        states = {state for state, _ in journal}
        assert not states & OPEN_ENDS, f"it hangs without a task: {context}"
        assert EffectState.REDEEMED not in stage.held(), f"the service has no outcome: {context}"
        assert world[: len(before)] == before, context
        assert len(world) == len(set(world)), f"fired twice: {context}"
        assert redeemed or world == [], f"fired without a redemption: {context}"
        require_as_approved(stage, context)
        assert len(fired(stage.folder)) == len(world), context
        done = (len(world), notes, books) == (3, 1, 1)
        undone = (len(world), notes, books) == (0, 0, 0)
        if "unsettled" not in states:
            assert done or undone, f"half of it remains without a task: {context}"
        ends.add("done" if done else "undone" if undone else "before a person")
    assert ends == {"done", "undone", "before a person"}, "the flow has not seen all of its ends"


@pytest.mark.parametrize("flow", ["with_files", "with_both"])
@pytest.mark.long
def test_resume_undoes_or_finishes_files(tmp_path: Path, flow: str) -> None:
    ends = set()
    for point, stage in killed_at_each(tmp_path, flow):
        kept = "prepared" in stage.records() and stage.notes() == int(flow == "with_both")
        redeemed = EffectState.REDEEMED in stage.held()
        doubtful = "firing" in dict(stage.journal())
        for _ in range(2):
            stage.live(resumes=True)
        states = dict(stage.journal())
        context = f"{point}: {acts(stage.folder)}, {stage.files()}, {stage.notes()} notes, {stage.journal()}"
        assert not states.keys() & OPEN_ENDS, context
        assert stage.records() == "", f"something is left: {context}"
        if redeemed and kept and not doubtful:
            assert "fired" in states, f"what could be finished was given up: {context}"
        fired = "fired" in states and "unsettled" not in states
        assert stage.files() == ("new" if fired else "old"), context
        assert stage.notes() == int(fired and flow == "with_both"), context
        ends.add((redeemed, fired))
    assert {(False, False), (True, True), (True, False)} <= ends, "the flow has not seen all of its ends"


@pytest.mark.long
def test_a_rerun_after_a_death_leaves_the_files_as_its_answer_says(tmp_path: Path) -> None:
    for point, stage in killed_at_each(tmp_path, "with_both"):
        said = stage.live()
        context = f"{point}: {said}, {acts(stage.folder)}, {stage.files()}, {stage.notes()} notes, {stage.journal()}"
        assert len(acts(stage.folder)) <= 1, context
        if said["raised"] is None:
            assert (stage.files(), stage.notes(), acts(stage.folder)) == ("new", 1, ["refund:o-1"]), context
        else:
            assert said["raised"] == "OutcomeUnknown", context
            assert (stage.files(), stage.notes()) == ("old", 0), context
        assert stage.records() == "", context


def test_a_living_owner_is_left_alone(tmp_path: Path) -> None:
    with staged(tmp_path, "large", "one") as stage:
        stage.live()
        journal = Journal(place_in(stage.folder))
        record = journal.transactions.find("t-1")[0]
        lease = journal.leases.acquire(record.txn)
        assert not isinstance(lease, str)
        stage.service.approve(record.txn)
        assert stage.live(resumes=True)["resumed"] == ["review"]
        assert acts(stage.folder) == []
        journal.leases.release(lease)
        journal.close()
        assert stage.live(resumes=True)["resumed"] == ["settled"]
        assert acts(stage.folder) == ["refund:o-1"]


def test_another_process_under_the_same_key_finds_the_result(tmp_path: Path) -> None:
    with staged(tmp_path, "one", "one") as stage:
        assert stage.live()["replayed"] is False
        assert stage.live()["replayed"] is True
        assert acts(stage.folder) == ["refund:o-1"]
