"""Base classes and helpers of the adapter contract suite."""

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
    """A resource under test: text under keys. It is empty at first."""

    detects_conflicts = False
    """Others may write meanwhile, and `verify_isolation` detects it; off: others are locked out until the end."""

    reports_changes = False
    """`changes()` returns changes; off: it returns None."""

    survives_process = False
    """Prepared work can be finished by another process; off: it vanishes with the process."""

    in_process_only = False
    """Even committed work vanishes with the process: a resource in memory. Tests with other processes are skipped."""

    @abstractmethod
    def adapter(self) -> LiveAdapter:
        """A new adapter, as another process would create it; in memory always the same one."""

    @abstractmethod
    def write(self, adapter: LiveAdapter, key: str, value: str) -> None:
        """Set a key as a tool does; called inside an effect."""

    @abstractmethod
    def read(self, adapter: LiveAdapter, key: str) -> str | None:
        """Read a key as a tool does; called inside an effect."""

    @abstractmethod
    def remove(self, adapter: LiveAdapter, key: str) -> None:
        """Remove a key as a tool does; called inside an effect."""

    @abstractmethod
    def outside(self, key: str) -> str | None:
        """The committed value, as others see it now."""

    @abstractmethod
    def change_outside(self, key: str, value: str) -> bool:
        """Set a key from outside; False if the resource is locked."""

    def end(self, adapter: LiveAdapter) -> bool:
        """End the session's transaction as a tool or another client could; called inside an effect, and does not raise.
        False if that is impossible.
        """
        return False

    def change_irreversibly(self, adapter: LiveAdapter) -> bool:
        """Change something that no adapter could restore; called inside an effect, and must be refused with
        `NotStageable`. False if there is nothing of the kind.
        """
        return False

    def normalize(self, change: Change) -> tuple[str, object, object]:
        """A change as (key, value before, value after), for resources that report whole rows."""
        return change.key, text_of(change.before), text_of(change.after)

    @abstractmethod
    def away(self) -> LiveAdapter | None:
        """An adapter whose resource is missing or unreachable; None if that is impossible."""


class ContractBase(ABC):
    """Creates resources for the tests."""

    @abstractmethod
    def resource(self, folder: Path) -> ContractResource:
        """A fresh, empty resource in this folder."""

    def begun(self, folder: Path, **existing: str) -> tuple[ContractResource, LiveAdapter, LiveSession]:
        folder.mkdir(exist_ok=True)
        resource = self.resource(folder)
        for key, value in existing.items():
            assert_equal(
                resource.change_outside(key, value), True, "a write from outside before the session began"
            )
        adapter = resource.adapter()
        return resource, adapter, adapter.begin(TXN)

    def supports_savepoints(self, session: LiveSession) -> bool:
        """Whether it has savepoints; an adapter without them must raise the protocol's refusal and no other error."""
        try:
            session.savepoint().release()
        except NotStageable:
            return False
        return True

    def assert_nothing_kept(self, resource: ContractResource) -> None:
        assert_equal((resource.outside("k"), resource.adapter().landed(A)), (None, False), "nothing is kept")
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
    session.undo()  # no effect on a session that has ended


def text_of(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


def assert_equal(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what}: {found!r}, expected {expected!r}")


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
    raise AssertionError(f"nothing was raised, expected {kind.__name__}")
