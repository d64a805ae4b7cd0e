"""The metrics of the service. Their names are stable and listed in docs/reference/observability.md.

Label values are bounded: codes, states and names from the reviewed bundle or the settings, never caller input. Values
are those of one process, or of all workers of ``serve --workers``. With several replicas, sum counters; a gauge about
the database is the same on each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

REGISTRY: Final = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

_MINUTE, _HOUR, _DAY = 60.0, 3_600.0, 86_400.0
_RESPONSE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_REVIEW_BUCKETS = (
    10.0,
    _MINUTE,
    5 * _MINUTE,
    15 * _MINUTE,
    _HOUR,
    4 * _HOUR,
    8 * _HOUR,
    _DAY,
    3 * _DAY,
    7 * _DAY,
)
_BATCH_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0)


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"countersign_{name}", text, labels, registry=REGISTRY)


def _gauge(
    name: str,
    text: str,
    *labels: str,
    workers: Literal["livemostrecent", "livesum", "livemax", "livemin"] = "livemostrecent",
) -> Gauge:
    """``workers``: how the values of several workers become one. The default fits what is read from the database."""
    return Gauge(f"countersign_{name}", text, labels, registry=REGISTRY, multiprocess_mode=workers)


def _histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
    return Histogram(f"countersign_{name}", text, labels, registry=REGISTRY, buckets=buckets)


# -- decisions, votes and outcomes; counted when they are committed ------------------------------------------------

EFFECTS_SUBMITTED = _counter(
    "effects_submitted_total", "Effects submitted, by tool and initial state.", "tool", "state"
)
DECISIONS = _counter(
    "decisions_total", "Decisions of the policy, and why it was evaluated.", "outcome", "cause"
)
EFFECT_TRANSITIONS = _counter("effect_moves_total", "Effects that entered a state.", "state")
VOTES = _counter("votes_total", "Votes recorded; a late vote has no effect.", "verdict", "late")
BREAK_GLASS = _counter(
    "break_glass_total",
    "Effects released by break-glass, without the approvals their gates require.",
    "people",
)
REVIEW_TIME = _histogram(
    "review_duration_seconds", "Time from opening a review to its end.", _REVIEW_BUCKETS, "result"
)
TASKS_OPENED = _counter("tasks_opened_total", "Tasks opened.", "task")
POLICY_ERRORS = _counter("policy_errors_total", "Denials because of an evaluation error, including dry runs.")

# -- queues; read from the database by the health monitor ----------------------------------------------------------

REVIEWS_OPEN = _gauge("reviews_open", "Open reviews; 10,000 means that many or more.")
OLDEST_REVIEW = _gauge(
    "oldest_open_review_age_seconds", "Age of the oldest open review; 0 when there is none."
)
TASKS_OPEN = _gauge("tasks_open", "Open tasks.", "task")
FROZEN = _gauge("frozen", "Active emergency stops: 1 for everything, the number of tools.", "what")
OUTBOX_WAITING = _gauge("outbox_waiting", "Messages not yet sent; 10,000 means that many or more.")
OUTBOX_DEAD = _gauge("outbox_dead", "Messages of the last day that were abandoned.")
OLDEST_MESSAGE = _gauge(
    "oldest_outbox_message_age_seconds", "Age of the oldest unsent message; 0 when there is none."
)
WEBHOOK_WAITING = _gauge(
    "webhook_events_waiting", "Webhook events not yet sent; 10,000 means that many or more.", "webhook"
)
WEBHOOK_DEAD = _gauge("webhook_events_given_up", "Events that were abandoned.", "webhook")
SLACK_WAITING = _gauge(
    "slack_messages_waiting", "Messages to Slack not yet sent; 10,000 means that many or more."
)
SLACK_OLDEST = _gauge(
    "oldest_slack_message_age_seconds", "Age of the oldest unsent message to Slack; 0 when there is none."
)
WEBHOOK_OLDEST = _gauge(
    "oldest_webhook_event_age_seconds", "Age of the oldest unsent message; 0 when there is none.", "webhook"
)
LOG_UNNUMBERED = _gauge("log_unnumbered", "Audit rows without an index; 10,000 means that many or more.")
LOG_LAG = _gauge("log_lag_seconds", "Age of the oldest audit row without an index; 0 when there is none.")
LOG_INDEX = _gauge("log_index", "The highest index of the audit log.", workers="livemax")

# -- HTTP ----------------------------------------------------------------------------------------------------------

REQUESTS = _histogram(
    "http_request_duration_seconds",
    "Requests by route template; a long poll counts until its response.",
    _RESPONSE_BUCKETS,
    "method",
    "route",
    "status",
)
REFUSALS = _counter("refusals_total", "Requests refused, by error code.", "code")
QUOTA_REFUSALS = _counter(
    "quota_refusals_total", "Requests of agents that reached a limit, by its setting.", "setting"
)
STREAMS = _gauge("event_streams", "Open event streams.", "channel", workers="livesum")
LONG_POLLS = _gauge("long_polls", "Requests that wait for people with Prefer: wait.", workers="livesum")

# -- storage -------------------------------------------------------------------------------------------------------

UNITS_WAITING = _gauge(
    "units_waiting", "Units of work submitted to the database and not finished.", workers="livesum"
)
UNIT_TIME = _histogram(
    "unit_duration_seconds", "Time from submitting a unit of work to its commit.", _RESPONSE_BUCKETS
)
COMMIT_UNITS = _histogram("commit_units", "Units of work in one commit.", _BATCH_BUCKETS)
COMMIT_FAILURES = _counter("commit_failures_total", "Commits that failed; nothing in them was acknowledged.")

# -- jobs, deliveries and the active bundle ------------------------------------------------------------------------

JOB_FAILURES = _counter("job_failures_total", "Runs of a job that failed.", "job")
JOB_SUCCESS = _gauge(
    "job_last_success_timestamp_seconds",
    "When a job last succeeded, Unix time.",
    "job",
    workers="livemin",  # the worker whose job hangs shows
)
ROW_FAILURES = _counter(
    "sweep_row_failures_total", "Rows a sweep could not process; the next run retries them."
)
ROWS_BROKEN = _counter("rows_broken_total", "Reads of a corrupt review; the log names it.")
DELIVERIES = _counter("outbox_deliveries_total", "Attempts to deliver a message.", "result")
WEBHOOK_DELIVERIES = _counter(
    "webhook_deliveries_total",
    "Requests to a webhook receiver: sent, failed; and abandoned events: given_up.",
    "webhook",
    "result",
)
SLACK_MESSAGES = _counter(
    "slack_messages_total",
    "Messages to Slack: sent, nothing_to_say, or why not: patience, place, app, world, refused, gone, lost.",
    "result",
)
SLACK_DELIVERIES = _counter(
    "slack_deliveries_total", "Payloads from Slack, over http or socket: taken or refused.", "way", "result"
)
BUNDLE = _gauge("bundle_info", "The active bundle: always 1.", "digest", "commit", workers="livemax")
BUNDLE_REFUSED = _counter("bundle_refusals_total", "Refused activations of a bundle.")
ISSUER_FAILURES = _counter("issuer_failures_total", "Requests to an identity provider that failed.", "host")
FACT_READS = _counter(
    "fact_reads_total",
    "Reads of fact sources: ok, kept (an earlier value), nothing, failed.",
    "source",
    "result",
)
FACT_TIME = _histogram(
    "fact_read_duration_seconds", "Time to read a fact source.", _RESPONSE_BUCKETS, "source"
)
DIRECTORY_READ = _gauge(
    "directory_read_timestamp_seconds",
    "When the directory's groups were last read, Unix time.",
    "host",  # a gauge without a label is 0 in a worker that has not read yet, and so is the lowest of all
    workers="livemin",
)
CHECK_FAILING = _gauge("check_failing", "1 while a check of /readyz fails.", "check", workers="livemax")
SERVICE = _gauge("service_info", "The running version: always 1.", "version", workers="livemax")


def set_active_bundle(digest: str, commit: str) -> None:
    """Record that another bundle is active."""
    if _workers:
        _workers[0].set_bundle(digest, commit)
        return
    BUNDLE.clear()
    BUNDLE.labels(digest, commit).set(1)


class _Workers(CollectorRegistry):
    """The metrics of all workers, from the files in which each of them keeps its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._files = MultiProcessCollector(None, str(folder))  # type: ignore[no-untyped-call]
        self._bundle: tuple[str, str] | None = None

    def set_bundle(self, digest: str, commit: str) -> None:
        # A file keeps every label it ever had, so an inactive bundle has the value 0 there, and is left out below.
        if self._bundle is not None:
            BUNDLE.labels(*self._bundle).set(0)
        BUNDLE.labels(digest, commit).set(1)
        self._bundle = digest, commit

    def collect(self) -> Iterator[Metric]:
        for metric in self._files.collect():  # type: ignore[no-untyped-call]
            if metric.name == "countersign_bundle_info":
                metric.samples = [sample for sample in metric.samples if sample.value]
            yield metric


_workers: Final[list[_Workers]] = []  # the one of this process, if it is a worker


def share_with_workers(folder: Path) -> None:
    """Render the metrics of all workers from now on. ``PROMETHEUS_MULTIPROC_DIR`` named the folder from the start."""
    _workers[:] = [_Workers(folder)]


def forget_worker(folder: Path, pid: int) -> None:
    """Delete the gauges of a worker that has ended. Its counters continue to count."""
    mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]


def render_metrics() -> bytes:
    """All metrics in Prometheus's text format."""
    return generate_latest(_workers[0] if _workers else REGISTRY)
