"""What a stranger must read to trust the service and the SDK is listed, and stays within its size."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.audit_set import PAGE, Trace, lines_of_code, page, service_files, trace_sdk, trace_service

pytestmark = pytest.mark.anyio

# At most so many files and lines of code. Lower them with every step towards 60 and 9,200, 40 and 6,800.
SERVICE_FILES, SERVICE_LINES = 112, 11_500
SDK_FILES, SDK_LINES = 78, 11_200


async def test_one_effects_life_runs_through_the_listed_files_and_no_more(tmp_path: Path) -> None:
    service, sdk = await trace_service(tmp_path / "service"), trace_sdk(tmp_path / "sdk")
    assert page(service, sdk) == PAGE.read_text(), "`make pages` lists the files again; look at what came in"
    for files, most, most_lines in (
        (service_files(service), SERVICE_FILES, SERVICE_LINES),
        (sdk.files, SDK_FILES, SDK_LINES),
    ):
        assert len(files) <= most and sum(map(lines_of_code, files)) <= most_lines


def test_a_file_that_is_called_is_seen_and_one_that_is_only_imported_is_not() -> None:
    trace = Trace((Path(__file__).parent,))
    with trace.watching(), trace.step("here"):
        lines_of_code("tests/house/audit_set.py")
    assert trace.files == {"tests/house/audit_set.py"}
