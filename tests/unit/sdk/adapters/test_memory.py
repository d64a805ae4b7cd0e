"""Values in this process as a live resource, and what an agent remembers."""

import gc
import threading
from contextlib import contextmanager, nullcontext

import pytest

from countersign.adapters import LiveCall
from countersign.adapters.agent_memory import AgentMemory, Memory
from countersign.adapters.memory import MemoryAdapter, MemorySession
from countersign.errors import IsolationConflict, MisuseError, NotStageable

CALL = LiveCall("act", {}, "e-1")


@contextmanager
def working(memory: MemoryAdapter, *, commits: bool = True):
    """A transaction of one effect."""
    session = memory.begin("t-1")
    try:
        with session.effect(CALL):
            yield
        if commits:
            session.prepare("a-1")
            session.commit("a-1")
            session.close()
    finally:
        session.undo()


def test_values_are_copied_on_their_way_in_and_out() -> None:
    mine = {"n": [1]}
    memory = MemoryAdapter({"k": mine})
    mine["n"].append(2)
    with working(memory):
        memory["k"]["n"].append(3)
        kept = memory["other"] = [1]
        kept.append(2)
    memory.snapshot()["k"]["n"].append(4)
    assert memory.snapshot() == {"k": {"n": [1]}, "other": [1]}


def test_it_is_used_like_a_dict() -> None:
    memory = MemoryAdapter({"a": 1, "b": 2})
    with working(memory):
        del memory["a"]
        memory["c"] = None
        assert (memory.keys(), memory.get("a", "none"), memory["c"]) == (("b", "c"), "none", None)
        assert "a" not in memory and "c" in memory
        with pytest.raises(KeyError):
            _ = memory["a"]
    assert memory.snapshot() == {"b": 2, "c": None}


@pytest.mark.parametrize("key", [1, None, "/"])
def test_what_is_no_key_is_refused(key: object) -> None:
    memory = MemoryAdapter()
    with pytest.raises(NotStageable, match="is not a key"), working(memory):
        memory[key] = 1  # type: ignore[index]


def test_what_cannot_be_copied_or_is_not_there_is_refused() -> None:
    memory = MemoryAdapter()
    with working(memory):
        with pytest.raises(NotStageable, match="cannot be copied"):
            memory["k"] = threading.Lock()
        with pytest.raises(NotStageable, match="to remove"):
            del memory["k"]
    assert memory.snapshot() == {}


def acted(memory: MemoryAdapter, key: str | None = None, txn: str = "t-1") -> MemorySession:
    """A session that has set this key, or listed all."""
    session = memory.begin(txn)
    with session.effect(CALL):
        if key is None:
            memory.keys()
        else:
            memory[key] = memory.get(key, 0) + 1
    return session


def prepared(memory: MemoryAdapter, key: str) -> MemorySession:
    session = acted(memory, key)
    session.prepare("a-1")
    return session


def committed(memory: MemoryAdapter, key: str) -> MemorySession:
    session = prepared(memory, key)
    session.commit("a-1")
    return session


def test_the_keys_that_were_listed_may_not_gain_or_lose_one() -> None:
    for change in (lambda memory: memory.__setitem__("new", 1), lambda memory: memory.__delitem__("k")):
        memory = MemoryAdapter({"k": 1})
        session = acted(memory, txn="t-2")
        with working(memory):
            change(memory)
        with pytest.raises(IsolationConflict) as moved:
            session.verify_isolation()
        assert (moved.value.key, moved.value.read) == ("/", True)


ADDED = [("p", "a", True), ("c", "new", True), ("c", "n", False)]


@pytest.mark.parametrize(("make", "key", "refused"), ADDED)
def test_listed_keys_depend_on_keys_that_others_add(make: str, key: str, refused: bool) -> None:
    """By a prepared change, or by a commit that is not closed."""
    memory = MemoryAdapter({"n": 0})
    first = (prepared if make == "p" else committed)(memory, key)
    own, listing = acted(memory, "b", "t-2"), acted(memory, txn="t-3")
    own.prepare("a-2")  # a key of its own
    own.undo()
    with pytest.raises(IsolationConflict, match="t-1, which") if refused else nullcontext():
        listing.prepare("a-3")
    listing.undo()
    first.undo()


def test_a_commit_that_was_not_prepared_for_is_refused() -> None:
    memory = MemoryAdapter()
    session = prepared(memory, "k")
    with pytest.raises(MisuseError, match="not prepared for this attempt"):
        session.commit("a-2")
    session.undo()
    assert memory.snapshot() == {}


def test_a_commit_that_can_no_longer_be_closed_blocks_no_other() -> None:
    """Two interrupts in a row leave it committed."""
    memory = MemoryAdapter({"n": 0})
    committed(memory, "n")
    gc.collect()
    second = acted(memory, "n", "t-2")
    second.prepare("a-2")
    second.commit("a-2")
    second.close()
    assert memory.snapshot() == {"n": 2}


def test_an_agent_remembers_recalls_and_forgets() -> None:
    mine = AgentMemory()
    with working(mine.adapter):
        mine.remember("The customer likes green tea", key="tea")
        named = mine.remember("Orders over 50 ship free")
        mine.remember("The customer moved to Lyon", key="city")
    with working(mine.adapter):
        assert [one.key for one in mine.recall("the CUSTOMER moved")] == ["city", "tea"]
        assert [one.key for one in mine.recall(limit=2)] == ["city", named]
        assert mine.recall("ship") == (Memory(named, "Orders over 50 ship free"),)
        assert mine.recall("nothing of that") == ()
        mine.forget("tea")
        with pytest.raises(NotStageable):
            mine.forget("tea")
    assert mine.adapter.snapshot().keys() == {"city", named}
