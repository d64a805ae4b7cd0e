"""`serve --workers`: what it refuses, when a worker is started again, and how metrics of workers become one."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from prometheus_client import Gauge
from structlog.testing import capture_logs
from typer.testing import CliRunner

from policy_service import metrics
from policy_service.channels.admin.worker_channel import generation, require_generation
from policy_service.channels.admin.workers import pause_before_restart
from policy_service.cli import app
from policy_service.logs import _JsonLines, _numbered
from policy_service.settings import Settings, load_settings
from policy_service.tokens.keys import make_keys, rotate_keys
from tests.conventions.repository import ROOT

WORKER = """
import sys
from pathlib import Path
from policy_service import metrics

folder, bundles, waiting, failing = Path(sys.argv[1]), sys.argv[2].split(), *map(float, sys.argv[3:5])
metrics.share_with_workers(folder)
for bundle in bundles:
    metrics.set_active_bundle(bundle, "c")
metrics.VOTES.labels("approve", "no").inc()
metrics.UNITS_WAITING.inc(waiting)
metrics.CHECK_FAILING.labels("bundle").set(failing)
metrics.JOB_SUCCESS.labels("forget").set(100 + waiting)
if waiting > 1:
    metrics.DIRECTORY_READ.labels("idp").set(100 + waiting)
metrics.REVIEWS_OPEN.set(7)
print(metrics.render_metrics().decode())
"""


@pytest.mark.parametrize(
    ("words", "env"),
    [(["--workers", "2"], {}), ([], {"COUNTERSIGN_WORKERS": "2"})],
    ids=["the option", "the setting"],
)
def test_sqlite_refuses_workers_before_anything_is_created(
    words: list[str], env: dict[str, str], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    result = CliRunner().invoke(app, ["serve", *words], env={"COUNTERSIGN_DATA_DIR": str(data), **env})
    assert result.exit_code == 1
    assert result.stderr == (
        "policy-service: 2 workers need PostgreSQL, because an SQLite database belongs to one process: set "
        "COUNTERSIGN_DATABASE_URL to postgresql://... (docs/how-to/postgresql.md), or use one worker\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", ["0", "-1", "65", "two"])
def test_a_number_of_workers_out_of_range_is_wrong_usage(count: str, tmp_path: Path) -> None:
    env = {"COUNTERSIGN_DATA_DIR": str(tmp_path / "data")}
    assert CliRunner().invoke(app, ["serve", f"--workers={count}"], env=env).exit_code == 2
    result = CliRunner().invoke(app, ["serve"], env={**env, "COUNTERSIGN_WORKERS": count})
    assert (result.exit_code, "workers" in result.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("deaths", "pause_s"), [(0, 0), (1, 0), (2, 0.5), (3, 1), (4, 2), (9, 30), (9_999, 30)]
)
def test_a_worker_that_dies_again_is_started_after_a_longer_pause(deaths: int, pause_s: float) -> None:
    assert pause_before_restart(deaths) == pause_s


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    make_keys(tmp_path / "data/keys")
    return load_settings(data_dir=tmp_path / "data")


def test_a_generation_is_a_version_settings_and_keys(settings: Settings) -> None:
    first = generation(settings, "1")
    assert generation(load_settings(data_dir=settings.data_dir), "1") == first
    assert generation(settings, "2") != first
    assert generation(settings.model_copy(update={"fire_window_s": 7}), "1") != first
    rotate_keys(settings.key_dir, now=0, compromised=True)
    assert generation(settings, "1") != first


@pytest.mark.parametrize("same", [True, False])
def test_a_worker_of_another_generation_ends(settings: Settings, same: bool) -> None:
    expected = generation(settings, "1" if same else "2")
    with capture_logs() as logged, nullcontext() if same else pytest.raises(SystemExit, match="3"):
        require_generation(settings, "1", expected)
    assert [line["event"] for line in logged] == ["worker_of_another_generation"] * (not same)


def run_worker(folder: Path, *words: str) -> tuple[int, list[str]]:
    """The pid of a worker that has ended, and the metrics that it rendered."""
    env = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(folder)}
    command = [sys.executable, "-W", "error", "-c", WORKER, str(folder), *words]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return process.pid, [line for line in out.splitlines() if not line.startswith("#")]


def test_metrics_of_workers_become_one(tmp_path: Path) -> None:
    first, _ = run_worker(tmp_path, "old new", "1", "1")
    _, rendered = run_worker(tmp_path, "new", "2", "0")
    expected = {
        'countersign_bundle_info{commit="c",digest="new"} 1.0',
        'countersign_votes_total{late="no",verdict="approve"} 2.0',
        "countersign_units_waiting 3.0",
        'countersign_check_failing{check="bundle"} 1.0',
        'countersign_job_last_success_timestamp_seconds{job="forget"} 101.0',
        "countersign_reviews_open 7.0",
        'countersign_directory_read_timestamp_seconds{host="idp"} 102.0',  # the first worker has not read yet
    }
    assert expected <= set(rendered)
    assert sum("bundle_info" in line for line in rendered) == 1, "the old bundle is left out"
    metrics.forget_worker(tmp_path, first)
    _, rendered = run_worker(tmp_path, "new", "4", "0")
    assert {
        'countersign_votes_total{late="no",verdict="approve"} 3.0',
        "countersign_units_waiting 6.0",
        'countersign_check_failing{check="bundle"} 0.0',
    } <= set(rendered)


def test_only_a_gauge_of_the_database_takes_the_latest_value_of_any_worker() -> None:
    page = (ROOT / "docs/reference/observability.md").read_text().splitlines()
    from_database = {line.split("`")[1] for line in page if line.startswith("| `") and "*db*" in line}
    gauges = [one for one in metrics.REGISTRY._collector_to_names if isinstance(one, Gauge)]
    latest = {one._name for one in gauges if one._multiprocess_mode == "livemostrecent"}
    assert latest == from_database - {"countersign_log_index"}
    assert {one._multiprocess_mode for one in gauges} <= {"livemostrecent", "livemax", "livemin", "livesum"}


def test_a_line_of_the_log_names_its_worker() -> None:
    assert _numbered(2)(None, "", {"event": "ready"}) == {"event": "ready", "worker": 2}
    record = logging.LogRecord("library", logging.WARNING, "", 1, "slow", (), None)
    assert json.loads(_JsonLines(2).format(record))["worker"] == 2
    assert "worker" not in json.loads(_JsonLines(None).format(record))
