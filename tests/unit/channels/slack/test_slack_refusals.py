"""Every refused payload is counted, but logged at most once per interval."""

import pytest
from structlog.testing import capture_logs

from policy_service import metrics
from policy_service.channels.slack import payloads
from policy_service.channels.slack.payloads import ForeignPayloadError, RefusalLog
from policy_service.errors import InvalidRequestError


def counted() -> float:
    labels = {"way": "http", "result": "refused"}
    return metrics.REGISTRY.get_sample_value("countersign_slack_deliveries_total", labels) or 0.0


def test_refusals_are_logged_once_per_check_and_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    monkeypatch.setattr(payloads.time, "monotonic", lambda: now[0])
    kept, before = RefusalLog("http"), counted()
    with capture_logs() as output:
        for _ in range(1_000):
            kept.note(ForeignPayloadError("not signed", "signature"))
        kept.note(ForeignPayloadError("of another", "team_or_app", team_id="T0RIVAL"))
        kept.note(InvalidRequestError("unreadable"))
        now[0] += payloads.LOG_INTERVAL_S
        kept.note(ForeignPayloadError("not signed", "signature"))
    assert [(one["check"], one["code"], one["more"], one.get("team_id")) for one in output] == [
        ("signature", "unauthenticated", 0, None),
        ("team_or_app", "unauthenticated", 0, "T0RIVAL"),
        ("content", "invalid_request", 0, None),
        ("signature", "unauthenticated", 999, None),
    ]
    assert counted() - before == 1_003
