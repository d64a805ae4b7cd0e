"""The adapter shown in the README passes the contract suite."""

from pathlib import Path

from countersign.adapters import LiveAdapter
from countersign.adapters.contract_suite import AdapterContract, ContractResource
from countersign.errors import IsolationConflict
from tests.conventions.documents import all_blocks

PAGE = "docs/how-to/write-an-adapter.md"


def _program() -> dict:
    names = {"__name__": "page"}
    for block in all_blocks("python"):
        if block.document == PAGE:
            exec(compile(block.text, PAGE, "exec"), names)
    return names


class OnTheBoard(ContractResource):
    """Its tool sets keys; the rest is read where the tool would read."""

    in_process_only = True

    def __init__(self) -> None:
        self._board = _program()["Board"]()

    def adapter(self):
        return self._board

    def write(self, adapter: LiveAdapter, key: str, value: str) -> None:
        self._board.pin(key, value)

    def read(self, adapter: LiveAdapter, key: str):
        with self._board.inside.use("outside") as session:
            return session.notes.get(key)

    def remove(self, adapter: LiveAdapter, key: str) -> None:
        with self._board.inside.use("outside") as session:
            session.notes.pop(key, None)

    def outside(self, key: str):
        return self._board.notes.get(key)

    def change_outside(self, key: str, value: str) -> bool:
        try:
            session = self._board.begin("theirs")
        except IsolationConflict:
            return False
        session.notes[key] = value
        session.commit("theirs")
        return True

    def away(self) -> None:
        return None


class TestThePage(AdapterContract):
    def resource(self, folder: Path) -> ContractResource:
        return OnTheBoard()
