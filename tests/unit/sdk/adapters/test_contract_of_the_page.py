"""The adapter that the page shows passes the exam that the page asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from countersign.adapters import LiveAdapter
from countersign.adapters.contract import AdapterContract, Resource
from countersign.adapters.inside import Inside
from countersign.errors import Moved
from tests.house.documents import all_blocks
from tests.unit.sdk.adapters.test_contract_is_strict import _stays_open

PAGE = "sdk/python/countersign/adapters/README.md"


def _program() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    for block in all_blocks("python"):
        if block.document == PAGE:
            exec(compile(block.text, PAGE, "exec"), names)
    return names


class OnTheBoard(Resource):
    """Its tool sets keys; the rest is read where the tool would read."""

    dies_with_its_process = True

    def __init__(self) -> None:
        self._board = _program()["Board"]()

    def adapter(self) -> Any:
        return self._board

    def write(self, adapter: LiveAdapter, key: str, value: str) -> None:
        self._board.pin(key, value)

    def read(self, adapter: LiveAdapter, key: str) -> Any:
        with self._board.inside.use("outside") as session:
            return session.notes.get(key)

    def remove(self, adapter: LiveAdapter, key: str) -> None:
        with self._board.inside.use("outside") as session:
            session.notes.pop(key, None)

    def outside(self, key: str) -> Any:
        return self._board.notes.get(key)

    def change_outside(self, key: str, value: str) -> bool:
        try:
            session = self._board.begin("theirs")
        except Moved:
            return False
        session.notes[key] = value
        session.commit("theirs")
        return True

    def away(self) -> None:
        return None


class TestThePage(AdapterContract):
    def resource(self, folder: Path) -> Resource:
        return OnTheBoard()


def test_without_its_turns_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inside, "effect", _stays_open)
    with pytest.raises(AssertionError):
        TestThePage().test_what_an_effect_has_started_does_nothing_in_the_next_one(tmp_path)
