"""What the service prints when something breaks: what went wrong and where, never what it happened to hold.

That no secret is in it is said in `test_canaries.py`; here, that what is left is enough to find the fault.
"""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from policy_service.app import create_app
from policy_service.errors import StorageUnavailableError
from policy_service.logs import log_loop_exception, set_up_foreign_logs, set_up_logs
from policy_service.settings import Settings
from tests.fakes.payments import Payments
from tests.fakes.world import fresh_data

SECRET = "sk-of-somebody"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """As in a program that has configured nothing; afterwards as it was."""
    before = structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.configure(**before)


def broken(token: str) -> None:
    """Fail with a secret among the local variables and in the message, and log that."""
    try:
        try:
            Path(f"/nowhere/{token}").read_text()
        except OSError as error:
            raise StorageUnavailableError(f"no luck with {token}") from error
    except StorageUnavailableError:
        structlog.get_logger("test").exception("job_failed")


def test_an_embedding_program_prints_no_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(fresh_data(), tmp_path / "data")
    create_app(Settings(data_dir=tmp_path / "data", bundle_dir=Payments(tmp_path / "bundle").path))
    broken(SECRET)
    output = capsys.readouterr()
    assert SECRET not in output.err + output.out
    line = json.loads(output.err.splitlines()[-1])
    assert (line["event"], line["level"]) == ("job_failed", "error")
    ours, cause = line["exception"]
    assert ours["kind"] == "policy_service.errors.StorageUnavailableError"
    assert (ours["code"], cause["code"]) == ("storage_unavailable", "No such file or directory")
    assert cause["kind"] == "FileNotFoundError"
    assert any(place.endswith(" broken") for place in cause["at"])


def test_lines_of_other_libraries_lose_what_was_filled_in(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    set_up_foreign_logs()
    try:
        raise ValueError(SECRET)
    except ValueError:
        logging.getLogger("some.library").exception("it broke on %s", SECRET)
        logging.getLogger("some.library").info("not even this")
        logging.getLogger("some.library").warning(ValueError(SECRET))
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        logging.captureWarnings(False)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["it broke on %s", "ValueError"]
    assert lines[0]["exception"][0]["kind"] == "ValueError"
    assert SECRET not in str(lines)
    file = io.StringIO()
    set_up_foreign_logs(file)
    file.close()
    logging.getLogger("some.library").warning("it broke on %s", SECRET)
    assert capsys.readouterr().err == "", "what cannot be written is not printed another way"


async def failed() -> None:
    raise ValueError(SECRET)


def test_a_failed_background_task_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(log_loop_exception)
        task = asyncio.create_task(failed())
        await asyncio.wait([task])
        del task
        gc.collect()

    asyncio.run(main())
    output = capsys.readouterr().err
    line = json.loads(output.splitlines()[-1])
    assert (line["event"], line["exception"][0]["kind"]) == ("fault_of_the_loop", "ValueError")
    assert SECRET not in output


def test_the_logs_of_a_program_that_has_its_own_are_left_alone() -> None:
    lines: list[str] = []

    def keep(_: object, name: str, event: structlog.typing.EventDict) -> str:
        lines.append(f"{name} {event['event']}")
        raise structlog.DropEvent

    structlog.configure(processors=[keep])
    set_up_logs()
    broken(SECRET)
    assert lines == ["error job_failed"]
