"""What leaves a block of live tools when an adapter raises: whatever it raises, the secrets it was given do not."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from countersign import (
    FilesAdapter,
    JournalError,
    LiveCommitFailed,
    MemoryAdapter,
    Moved,
    NotStageable,
    PostgresAdapter,
    Retry,
    SavepointLost,
    ToolRaised,
    run_transaction,
    tool,
    transaction,
)
from countersign.adapters.memory import MemorySession
from countersign.adapters.protocol import Savepoint
from countersign.integrations.conversation import ModelCall
from countersign.integrations.naming import OfferedTools
from countersign.integrations.taking import StepTaker
from countersign.waiting import run
from tests.counterparts import postgres, require
from tests.fakes.desk import Desk, refund_tool
from tests.unit.sdk.hunting import SECRET, found_in

Put = Callable[..., None]


def put_tool(desk: Desk, adapter: Any, write: Callable[[str], object], **options: Any) -> Put:
    live: dict[str, Any] = {"lane": "live", "adapter": adapter, "resource": ("Note", "const:n"), **options}

    @tool("put", registry=desk.registry, **live)
    def put(token: str) -> None:
        """Put it there."""
        write(token)

    return put


def secretly(desk: Desk, secret: tuple[str, ...] = ("token",)) -> Put:
    """A tool that keeps its secret in memory."""
    memory = MemoryAdapter(name="memory")
    return put_tool(desk, memory, lambda token: memory.__setitem__(token, 1), secret=[*secret])


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception with everything that it still holds."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def told_by(error: BaseException) -> list[str]:
    """Where the secret stands in what a program can print or look at."""
    places = {f"chain {number}": f"{one}{one!r}{vars(one)}" for number, one in enumerate(chain(error))}
    places["traceback"] = "".join(traceback.format_exception(error))
    return found_in({name: text.encode("utf-8", "backslashreplace") for name, text in places.items()})


def raising(error: Exception) -> Callable[..., None]:
    """As a database does: it quotes the value, and was told so by another."""

    def fails(*_: object) -> None:
        try:
            raise KeyError(SECRET)
        except KeyError as cause:
            raise error from cause

    return fails


RAISED: dict[str, tuple[Callable[[], Exception], type[Exception]]] = {
    "an error of the database": (lambda: ValueError(f"{SECRET} is no account"), ToolRaised),
    "what cannot be snapshotted": (lambda: NotStageable(f"{SECRET!r} is a folder"), ToolRaised),
    "a conflict": (lambda: Moved("memory", SECRET, read=True, expected=SECRET, now=SECRET), Moved),
    "a record that is damaged": (lambda: JournalError("the record in 'x' is damaged"), JournalError),
}


@pytest.mark.parametrize("staged", [True, False], ids=["beside what is staged", "alone"])
@pytest.mark.parametrize("method", ["verify_unmoved", "prepare"])
@pytest.mark.parametrize(("error", "kind"), RAISED.values(), ids=RAISED.keys())
def test_what_an_adapter_raises_before_the_redemption_leaves_the_block_without_the_secret(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, method: str, error: Any, kind: type[Exception], staged: bool
) -> None:
    put, refund = secretly(desk), refund_tool(desk)
    monkeypatch.setattr(MemorySession, method, raising(error()))
    with pytest.raises(kind) as told, desk.step():
        put(SECRET)
        if staged:
            refund("o-1", 5)
    assert told_by(told.value) == []
    assert type(told.value) is kind
    assert desk.done == []


@pytest.mark.parametrize("method", ["verify_unmoved", "prepare"])
def test_of_a_tool_without_secrets_it_leaves_as_it_is(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    put, error = secretly(desk, secret=()), ValueError("no account")
    monkeypatch.setattr(MemorySession, method, raising(error))
    with pytest.raises(ValueError, match="no account") as told, desk.step():
        put("a")
    assert told.value is error and isinstance(error.__cause__, KeyError)


def test_a_commit_that_fails_tells_kind_and_place_alone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    put = secretly(desk)
    monkeypatch.setattr(MemorySession, "commit", raising(ValueError(SECRET)))
    with pytest.raises(LiveCommitFailed, match="commit: ValueError") as told, desk.step():
        put(SECRET)
    assert told_by(told.value) == []
    assert isinstance(told.value.__cause__, ToolRaised)
    assert (told.value.__cause__.kind, __file__ in told.value.__cause__.at) == ("ValueError", True)


@pytest.mark.parametrize("body", ["raises", "ends well"])
def test_an_undo_that_fails_tells_it_without_the_secret_and_is_not_noted_as_done(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    put = secretly(desk)
    monkeypatch.setattr(MemorySession, "undo", raising(ValueError(SECRET)))
    if body == "ends well":
        monkeypatch.setattr(MemorySession, "commit", raising(ValueError(SECRET)))
    with pytest.raises(ToolRaised) as told, desk.step():
        put(SECRET)
        if body == "raises":
            raise ZeroDivisionError
    assert told_by(told.value) == []
    transactions = desk.runtime.journal.transactions
    (record,) = transactions.find("t-1")
    assert transactions.live_tools(record.txn) == ("put",)


@pytest.mark.parametrize("how", ["release", "rollback", "savepoint"])
def test_an_inner_block_that_cannot_be_ended_or_begun_tells_it_without_the_secret(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    put, fails = secretly(desk), raising(ValueError(SECRET))
    broken = fails if how == "savepoint" else lambda _: Savepoint(fails, fails)
    with pytest.raises((SavepointLost, ToolRaised)) as told, desk.step():
        put(SECRET)
        monkeypatch.setattr(MemorySession, "savepoint", broken)
        with transaction():
            if how == "rollback":
                raise ZeroDivisionError
    assert told_by(told.value) == []
    assert "ValueError" in str(told.value)


def test_what_closing_raises_is_logged_without_the_secret(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put = secretly(desk)
    monkeypatch.setattr(MemorySession, "close", raising(ValueError(SECRET)))
    with desk.step():
        put(SECRET)
    assert "could not tidy up" in caplog.text and "ValueError" in caplog.text
    assert found_in({"log": f"{caplog.text}{[vars(one) for one in caplog.records]}".encode()}) == []


@pytest.mark.parametrize("method", ["changes", "verify_unmoved"])
def test_a_dry_run_tells_what_an_adapter_raises_without_the_secret(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    put = secretly(desk)
    monkeypatch.setattr(MemorySession, method, raising(ValueError(SECRET)))
    with pytest.raises(ToolRaised) as told, desk.step(dry_run=True):
        put(SECRET)
    assert told_by(told.value) == []


def test_a_rerun_tells_what_recovering_the_run_before_it_raises_without_the_secret(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = secretly(desk)
    monkeypatch.setattr(MemorySession, "undo", raising(ValueError(SECRET)))
    with pytest.raises(ToolRaised), desk.step():
        put(SECRET)
        raise ZeroDivisionError
    monkeypatch.undo()
    monkeypatch.setattr(MemoryAdapter, "recover", raising(ValueError(SECRET)))
    with pytest.raises(ToolRaised, match="ValueError") as told, desk.step():
        put(SECRET)
    assert told_by(told.value) == []


# --------------------------------------------------------------------------------------- the adapters that ship


@pytest.fixture
def conninfo() -> Iterator[str]:
    require("PostgreSQL", postgres.is_at_hand(), postgres.WAY_TO_GET)
    with postgres.server() as server, postgres.database(server) as url:
        yield url.replace("+psycopg", "")


@pytest.mark.long
def test_a_deferred_constraint_of_postgresql_quotes_a_secret_to_nobody(desk: Desk, conninfo: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as server:
        server.execute("CREATE TABLE token (t text PRIMARY KEY)")
        server.execute("CREATE TABLE use (t text REFERENCES token (t) DEFERRABLE INITIALLY DEFERRED)")
    bank = PostgresAdapter(conninfo, name="bank")
    insert = "INSERT INTO use VALUES (%s)"
    put = put_tool(desk, bank, lambda token: bank.execute(insert, (token,)), secret=["token"])
    with pytest.raises(ToolRaised, match="'bank' raised ForeignKeyViolation") as told, desk.step():
        put(SECRET)
    assert told_by(told.value) == []


@pytest.fixture
def files(desk: Desk) -> FilesAdapter:
    (desk.folder / "root").mkdir()
    return FilesAdapter(desk.folder / "root", name="files")


def moving(desk: Desk, files: FilesAdapter, **options: Any) -> Put:
    """A tool whose file somebody else makes as well."""

    def write(token: str) -> None:
        name = token.replace("/", "-")
        files.write(name, "1")
        (desk.folder / "root" / name).write_text("other")

    return put_tool(desk, files, write, **options)


def test_a_file_that_is_named_by_a_secret_and_has_moved_is_named_to_nobody(
    desk: Desk, files: FilesAdapter
) -> None:
    put = moving(desk, files, secret=["token"])
    with pytest.raises(Moved, match=r"'\(secret\)' met another transaction in 'files'") as told, desk.step():
        put(SECRET)
    assert told_by(told.value) == []
    assert (told.value.key, told.value.expected, told.value.now) == ("(secret)", None, None)


def test_without_secrets_it_is_named_with_its_versions(desk: Desk, files: FilesAdapter) -> None:
    put = moving(desk, files)
    with pytest.raises(Moved, match="'rent' of 'files' was overwritten at no version"), desk.step():
        put("rent")


def test_retry_knows_a_conflict_that_names_nothing(desk: Desk, files: FilesAdapter) -> None:
    put = moving(desk, files, secret=["token"])
    for name in desk.folder.joinpath("root").iterdir():
        name.unlink()
    runs: list[object] = []

    def step(txn: object) -> None:
        runs.append(txn)
        put(f"{SECRET}{len(runs) if len(runs) < 3 else 2}")

    with pytest.raises(Moved) as told:
        run_transaction(step, key="t-1", isolation=Retry(attempts=2), runtime=desk.runtime)
    assert (len(runs), told.value.attempts, told_by(told.value)) == (2, 2, [])


def test_a_model_is_told_of_a_conflict_without_the_secret(desk: Desk, files: FilesAdapter) -> None:
    put = moving(desk, files, secret=["token"])
    offered = OfferedTools([put])
    taker = StepTaker(offered, awaits=False, runtime=desk.runtime)
    call = ModelCall("c-1", offered.names[0], {"token": SECRET})
    (answer,) = run(taker.take([call], key="t-1", said=""))
    assert answer.text.startswith("not done: '(secret)' met another transaction in 'files'")
    assert found_in({"answer": answer.text.encode()}) == []
