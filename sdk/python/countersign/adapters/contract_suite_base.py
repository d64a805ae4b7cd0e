"""What the exam of live adapters needs: a resource to examine, and the few words its chapters are written in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from countersign.adapters.protocol import Change, LiveAdapter, LiveCall, LiveSession
from countersign.errors import NotStageable

CALL: Final = LiveCall("exam", {}, "e-1")
A: Final = "a-1"
TXN: Final = "t-1"


class ContractResource(ABC):
    """One resource under examination: text under keys. It begins empty."""

    detects_conflicts = False
    """Others may write meanwhile, and `verify_unmoved` finds out; off: others are kept out until the end."""

    reports_changes = False
    """`changes()` answers; off: it answers None."""

    survives_process = False
    """What was prepared can be finished by another process; off: it vanishes."""

    in_process_only = False
    """Even what was committed: a resource in memory. The chapters about other processes are then left out."""

    @abstractmethod
    def adapter(self) -> LiveAdapter:
        """The adapter, made anew as another process would; in memory the same one."""

    @abstractmethod
    def write(self, adapter: LiveAdapter, key: str, value: str) -> None:
        """What a tool does to set a key; inside an effect."""

    @abstractmethod
    def read(self, adapter: LiveAdapter, key: str) -> str | None:
        """What a tool does to read one; inside an effect."""

    @abstractmethod
    def remove(self, adapter: LiveAdapter, key: str) -> None:
        """What a tool does to remove one; inside an effect."""

    @abstractmethod
    def outside(self, key: str) -> str | None:
        """What everybody else sees of it now."""

    @abstractmethod
    def change_outside(self, key: str, value: str) -> bool:
        """Somebody else sets a key; False where the resource does not let them now."""

    def end(self, adapter: LiveAdapter) -> bool:
        """What a tool or somebody else does to end the transaction that the session is; inside an effect, and without
        raising. False where there is no such thing.
        """
        return False

    def change_irreversibly(self, adapter: LiveAdapter) -> bool:
        """What a tool does to something that no adapter could put back; inside an effect, and it has to be refused with
        `NotStageable`. False where there is no such thing.
        """
        return False

    def told(self, change: Change) -> tuple[str, object, object]:
        """A change in the words of the exam: key, value before, value after. For resources that tell of whole rows."""
        return change.key, text_of(change.before), text_of(change.after)

    @abstractmethod
    def away(self) -> LiveAdapter | None:
        """An adapter whose resource is not there, or cannot be reached; None where there is no such thing."""


class ContractBase(ABC):
    """Where an exam gets its resources from."""

    @abstractmethod
    def resource(self, folder: Path) -> ContractResource:
        """A fresh, empty resource in this folder."""

    def begun(self, folder: Path, **standing: str) -> tuple[ContractResource, LiveAdapter, LiveSession]:
        folder.mkdir(exist_ok=True)
        resource = self.resource(folder)
        for key, value in standing.items():
            assert_equal(resource.change_outside(key, value), True, "somebody could write before it began")
        adapter = resource.adapter()
        return resource, adapter, adapter.begin(TXN)

    def supports_savepoints(self, session: LiveSession) -> bool:
        """An adapter without them says so by the refusal of the protocol, and by no other."""
        try:
            session.savepoint().release()
        except NotStageable:
            return False
        return True

    def nothing_stands(self, resource: ContractResource) -> None:
        assert_equal((resource.outside("k"), resource.adapter().landed(A)), (None, False), "nothing stands")
        self.assert_another_commits(resource)

    def assert_another_commits(self, resource: ContractResource) -> None:
        adapter = resource.adapter()
        session = adapter.begin("t-9")
        with session.effect(CALL):
            resource.write(adapter, "k", "theirs")
        session.verify_isolation()
        session.prepare("a-9")
        session.commit("a-9")
        session.close()
        assert_equal(resource.outside("k"), "theirs", "what another transaction committed then")


@contextmanager
def nested_transaction(session: LiveSession) -> Iterator[None]:
    """A nested transaction."""
    savepoint = session.savepoint()
    try:
        yield
    except BaseException:
        savepoint.rollback()
        raise
    savepoint.release()


def commit(session: LiveSession) -> None:
    session.commit(A)
    session.close()
    session.undo()  # of a session that has ended: nothing


def text_of(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


def assert_equal(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what}: {found!r}, and it has to be {expected!r}")


def raise_interrupt(kind: type[BaseException]) -> None:
    raise kind


@contextmanager
def assert_raises(kind: type[BaseException]) -> Iterator[list[BaseException]]:
    caught: list[BaseException] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
        return
    raise AssertionError(f"nothing was raised, and it has to be {kind.__name__}")
