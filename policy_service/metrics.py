"""The metrics of the service. Their names are stable and listed in docs/reference/observability.md.

Label values are bounded: codes, states and names from the reviewed bundle or the settings, never caller input. Values
are those of one process. With several replicas, sum counters; a gauge about the database is the same on each.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

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


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    return Gauge(f"countersign_{name}", text, labels, registry=REGISTRY)


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
LOG_INDEX = _gauge("log_index", "The highest index of the audit log.")

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
STREAMS = _gauge("event_streams", "Open event streams.", "channel")
LONG_POLLS = _gauge("long_polls", "Requests that wait for people with Prefer: wait.")

# -- storage -------------------------------------------------------------------------------------------------------

UNITS_WAITING = _gauge("units_waiting", "Units of work submitted to the database and not finished.")
UNIT_TIME = _histogram(
    "unit_duration_seconds", "Time from submitting a unit of work to its commit.", _RESPONSE_BUCKETS
)
COMMIT_UNITS = _histogram("commit_units", "Units of work in one commit.", _BATCH_BUCKETS)
COMMIT_FAILURES = _counter("commit_failures_total", "Commits that failed; nothing in them was acknowledged.")

# -- jobs, deliveries and the active bundle ------------------------------------------------------------------------

JOB_FAILURES = _counter("job_failures_total", "Runs of a job that failed.", "job")
JOB_SUCCESS = _gauge("job_last_success_timestamp_seconds", "When a job last succeeded, Unix time.", "job")
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
BUNDLE = _gauge("bundle_info", "The active bundle: always 1.", "digest", "commit")
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
    "directory_read_timestamp_seconds", "When the directory's groups were last read, Unix time; 0 for never."
)
CHECK_FAILING = _gauge("check_failing", "1 while a check of /readyz fails.", "check")
SERVICE = _gauge("service_info", "The running version: always 1.", "version")


def set_active_bundle(digest: str, commit: str) -> None:
    """Record that another bundle is active."""
    BUNDLE.clear()
    BUNDLE.labels(digest, commit).set(1)


def render_metrics() -> bytes:
    """All metrics in Prometheus's text format."""
    return generate_latest(REGISTRY)
