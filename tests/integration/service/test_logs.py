"""What the service prints when something breaks: what went wrong, never the values it happened to hold."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from policy_service.app import create_app
from policy_service.logs import set_up_logs
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
    """Fail with a secret among the local variables, and log that."""
    try:
        raise RuntimeError(f"no luck with {len(token)} characters")
    except RuntimeError:
        structlog.get_logger("test").exception("job_failed")


def test_a_program_that_embeds_the_service_prints_no_local_variables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(fresh_data(), tmp_path / "data")
    create_app(Settings(data_dir=tmp_path / "data", bundle_dir=Payments(tmp_path / "bundle").path))
    broken(SECRET)
    told = capsys.readouterr()
    assert "no luck with 14 characters" in told.err
    assert SECRET not in told.err + told.out


def test_the_logs_of_a_program_that_has_its_own_are_left_alone() -> None:
    lines: list[str] = []

    def keep(_: object, name: str, event: structlog.typing.EventDict) -> str:
        lines.append(f"{name} {event['event']}")
        raise structlog.DropEvent

    structlog.configure(processors=[keep])
    set_up_logs()
    broken(SECRET)
    assert lines == ["error job_failed"]
