"""Errors of live adapters leave the block without the secrets that the adapter was given."""

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from countersign import FilesAdapter, MemoryAdapter, errors, tool, transaction
from countersign.adapters.memory import MemorySession
from countersign.adapters.protocol import Savepoint
from countersign.concurrency import run_sync
from countersign.integrations.conversation import ModelCall
from countersign.integrations.tool_definitions import OfferedTools
from countersign.integrations.tool_execution import StepExecutor
from tests.fakes.desk import Desk, refund_tool
from tests.fakes.running import fails
from tests.unit.sdk.hunting import SECRET, found_in


def put_tool(desk: Desk, adapter: Any, write: Callable[[str], object], secret: bool = True) -> Any:
    options: dict[str, Any] = {"resource": ("Note", "const:n"), "secret": ["token"] if secret else []}

    @tool("put", lane="live", adapter=adapter, registry=desk.registry, **options)
    def put(token: str) -> None:
        """Put it there."""
        write(token)

    return put


def in_memory(desk: Desk, secret: bool = True) -> Any:
    memory = MemoryAdapter(name="memory")
    return put_tool(desk, memory, lambda token: memory.__setitem__(token, 1), secret)


@pytest.fixture
def put(desk: Desk) -> Any:
    """A tool that keeps its secret in memory."""
    return in_memory(desk)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception with everything that it still holds."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def secrets_in(error: BaseException) -> list[str]:
    """Where the secret occurs in what a program can print or inspect."""
    places = {f"chain {number}": f"{one}{one!r}{vars(one)}" for number, one in enumerate(chain(error))}
    places["traceback"] = "".join(traceback.format_exception(error))
    return found_in({name: text.encode("utf-8", "backslashreplace") for name, text in places.items()})


def raising(error: Exception) -> Callable[..., None]:
    """As a database does: it quotes the value, and its cause does too."""

    def fails(*_: object) -> None:
        try:
            raise KeyError(SECRET)
        except KeyError as cause:
            raise error from cause

    return fails


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let methods of the sessions fail so."""

    def fail(*methods: str, error: Exception | None = None) -> None:
        for method in methods:
            monkeypatch.setattr(MemorySession, method, raising(error or ValueError(SECRET)))

    return fail


SEEN: Any = {"read": True, "expected": SECRET, "now": SECRET}
RAISED: dict[str, tuple[Callable[[], Exception], type[Exception]]] = {
    "an error of the database": (lambda: ValueError(f"{SECRET} is no account"), errors.ToolRaised),
    "what cannot be snapshotted": (lambda: errors.NotStageable(f"{SECRET!r} is a folder"), errors.ToolRaised),
    "a conflict": (lambda: errors.IsolationConflict("memory", SECRET, **SEEN), errors.IsolationConflict),
    "a record that is damaged": (lambda: errors.JournalError("the record is damaged"), errors.JournalError),
}


@pytest.mark.parametrize("staged", [True, False], ids=["with staged effects", "alone"])
@pytest.mark.parametrize("method", ["verify_isolation", "prepare"])
@pytest.mark.parametrize(("error", "kind"), RAISED.values(), ids=RAISED.keys())
def test_errors_before_the_redemption_hide_secrets(
    desk: Desk, put: Any, breaks: Any, method: str, error: Any, kind: type[Exception], staged: bool
) -> None:
    refund = refund_tool(desk)
    breaks(method, error=error())
    reported = fails(desk, kind, (put, SECRET), *[(refund, "o-1", 5)] * staged).error
    assert (secrets_in(reported), type(reported), desk.done) == ([], kind, [])


@pytest.mark.parametrize("method", ["verify_isolation", "prepare"])
def test_of_a_tool_without_secrets_it_leaves_as_it_is(desk: Desk, breaks: Any, method: str) -> None:
    put, error = in_memory(desk, secret=False), ValueError("no account")
    breaks(method, error=error)
    assert fails(desk, ValueError, (put, "a")).error is error and isinstance(error.__cause__, KeyError)


def test_a_failed_commit_reports_type_and_location_only(desk: Desk, put: Any, breaks: Any) -> None:
    breaks("commit")
    reported = fails(desk, errors.LiveCommitFailed, (put, SECRET), match="commit: ValueError").error
    cause = reported.__cause__
    assert secrets_in(reported) == [] and isinstance(cause, errors.ToolRaised)
    assert (cause.kind, __file__ in cause.at) == ("ValueError", True)
    assert SECRET not in str(desk.runtime.journal.transactions.find("t-1")[0].note)


@pytest.mark.parametrize("methods", [["undo"], ["undo", "commit"]], ids=["the body raises", "it ends well"])
def test_an_undo_that_fails_is_not_noted_as_done(desk: Desk, put: Any, breaks: Any, methods: Any) -> None:
    breaks(*methods)
    with pytest.raises(errors.ToolRaised) as reported, desk.step() as txn:
        put(SECRET)
        if methods == ["undo"]:
            raise ZeroDivisionError
    assert secrets_in(reported.value) == []
    assert desk.runtime.journal.transactions.live_tools(txn.txn) == ("put",)


@pytest.mark.parametrize("how", ["release", "rollback", "savepoint"])
def test_a_lost_savepoint_reports_no_secret(desk: Desk, put: Any, monkeypatch: Any, how: str) -> None:
    cannot = raising(ValueError(SECRET))
    broken = cannot if how == "savepoint" else lambda _: Savepoint(cannot, cannot)
    lost = pytest.raises((errors.SavepointLost, errors.ToolRaised), match="ValueError")
    with lost as reported, desk.step():
        put(SECRET)
        monkeypatch.setattr(MemorySession, "savepoint", broken)
        with transaction():
            if how == "rollback":
                raise ZeroDivisionError
    assert secrets_in(reported.value) == []


def test_closing_logs_without_the_secret(desk: Desk, put: Any, breaks: Any, caplog: Any) -> None:
    breaks("close")
    desk.run((put, SECRET))
    assert "could not clean up" in caplog.text and "ValueError" in caplog.text
    assert found_in({"log": f"{caplog.text}{[vars(one) for one in caplog.records]}".encode()}) == []


@pytest.mark.parametrize("method", ["changes", "verify_isolation"])
def test_a_dry_run_reports_it_without_the_secret(desk: Desk, put: Any, breaks: Any, method: str) -> None:
    breaks(method)
    assert secrets_in(fails(desk, errors.ToolRaised, (put, SECRET), dry_run=True).error) == []


# -------------------------------------------------------------------------- a file that somebody else makes as well


def test_a_moved_file_of_a_secret_name_is_not_named(desk: Desk, root: Any, files: FilesAdapter) -> None:
    def write(token: str) -> None:
        name = token.replace("/", "-")
        files.write(name, "1")
        (root / name).write_text("other")

    put = put_tool(desk, files, write)
    met = r"'\(secret\)' met another transaction in 'root'"
    reported = fails(desk, errors.IsolationConflict, (put, SECRET), match=met).error
    assert secrets_in(reported) == []
    assert (reported.key, reported.expected, reported.now) == ("(secret)", None, None)
    taker = StepExecutor(OfferedTools([put]), awaits=False, runtime=desk.runtime)
    call = ModelCall("c-1", OfferedTools([put]).names[0], {"token": f"{SECRET}2"})
    (answer,) = run_sync(taker.take([call], key="t-2", said=""))  # a model gets no more
    assert answer.text.startswith("not done: '(secret)' met another transaction in 'root'")
    assert found_in({"answer": answer.text.encode()}) == []
