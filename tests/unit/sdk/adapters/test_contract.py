"""Every adapter passes the contract suite."""

from pathlib import Path

from countersign.adapters.contract_suite import AdapterContract, ContractResource
from tests.unit.sdk.adapters.resources import FilesBelow, MemoryValues, SQLiteRows


class TestSQLite(AdapterContract):
    def resource(self, folder: Path) -> ContractResource:
        return SQLiteRows(folder)


class TestFiles(AdapterContract):
    def resource(self, folder: Path) -> ContractResource:
        return FilesBelow(folder)


class TestMemory(AdapterContract):
    def resource(self, folder: Path) -> ContractResource:
        return MemoryValues()
