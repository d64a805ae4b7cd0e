"""docs/reference/observability.md lists every metric, log event and health check, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.metrics import MetricWrapperBase

from policy_service import metrics
from policy_service.health import CHECKS
from tests.conventions.imports import imports_of
from tests.conventions.repository import ROOT

PAGE = (ROOT / "docs/reference/observability.md").read_text()
UNITS = ("_seconds", "_total", "_info", "_bytes")
OF_THE_LIBRARY = {"process_"}
LEVELS = {"debug", "info", "warning", "error", "exception", "say"}


def rows(page: str, heading: str) -> dict[str, list[str]]:
    """The table that begins with this heading: first cell -> the others."""
    table = page.partition(f"| {heading} |")[2].partition("\n\n")[0]
    lines = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in table.splitlines()[2:]]
    return {cells[0].strip("`"): [cell.strip() for cell in cells[1:]] for cells in lines}


def exported() -> dict[str, list[str]]:
    """name -> kind and labels of each metric of ours."""
    found = {}
    for collector in metrics.REGISTRY._collector_to_names:
        if isinstance(collector, MetricWrapperBase):
            total = "_total" if collector._type == "counter" else ""
            labels = ", ".join(f"`{label}`" for label in collector._labelnames)
            found[collector._name + total] = [collector._type, labels]
    return found


def test_the_page_has_every_metric_with_its_kind_and_labels_and_no_other() -> None:
    documented = {name: [cells[0], cells[1].strip("| ")] for name, cells in rows(PAGE, "metric").items()}
    assert len(documented) > 30, "too few rows were found; the parser is broken"
    assert documented == exported()


def test_names_follow_prometheus() -> None:
    for name, (kind, _) in exported().items():
        assert re.fullmatch(r"countersign_[a-z_]+", name)
        assert name.endswith("_total") is (kind == "counter"), name
        assert name.endswith(UNITS) or kind in {"gauge", "histogram"}, name


def test_nothing_else_is_exported() -> None:
    names = {
        line.split()[2]
        for line in metrics.render_metrics().decode().splitlines()
        if line.startswith("# TYPE")
    }
    foreign = {name for name in names if not name.startswith("countersign_")}
    assert {name[: name.index("_") + 1] for name in foreign} <= OF_THE_LIBRARY


def test_no_metric_is_made_elsewhere() -> None:
    imports = imports_of(ROOT, "policy_service")
    makers = {one.importer for one in imports if "prometheus_client" in one.imported}
    assert makers == {"policy_service.metrics", "policy_service.channels.http.wellknown"}


def events_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in LEVELS and isinstance(node.args[0].value, str) and "_" in f"_{node.args[0].value}":
            yield node.args[0].value


def test_the_page_has_every_event_of_the_log_and_no_other() -> None:
    layers = ROOT / "policy_service"
    paths = [path for path in layers.rglob("*.py") if path.name not in {"cli.py", "health.py"}]
    events = {event for path in paths for event in events_in(path)} - set(CHECKS)
    said = {event for event in events if re.fullmatch(r"[a-z_]+", event)}
    assert len(said) > 20, "too few rows were found; the parser is broken"
    assert set(rows(PAGE, "event")) == said


def test_the_page_has_every_check_and_whether_it_stops_the_service() -> None:
    documented = {name: cells[0] for name, cells in rows(PAGE, "check").items()}
    assert documented == {name: "down" if check.stops else "degraded" for name, check in CHECKS.items()}


@pytest.mark.parametrize("name", ["README.md", "deploy/README.md"])
def test_the_page_is_linked_for_operators(name: str) -> None:
    assert "docs/reference/observability.md" in (ROOT / name).read_text()


def test_alerts_name_metrics_that_exist() -> None:
    alerts = PAGE.partition("## Alerts")[2]
    named = set(re.findall(r"countersign_[a-z_]+", alerts))
    assert named
    assert {re.sub(r"_bucket$", "", name) for name in named} <= set(exported())
