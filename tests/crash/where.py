"""Which fault point is passed in which chapter. A point of the code without a chapter makes a test fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.crash import chapters, holders, operators, pressers, visitors
from tests.crash.story import Story

Chapter = Callable[[Story], None]


def _passed(by_chapter: Mapping[Chapter, str]) -> dict[str, Chapter]:
    """The chapter of each point, from the points of each chapter."""
    found = [(point, chapter) for chapter, points in by_chapter.items() for point in points.split()]
    assert len(found) == len(dict(found)), "a point has two chapters"
    return dict(found)


WHERE: dict[str, Chapter] = _passed(
    {
        chapters.fires: """
            app:release_lease audit.log: jobs.epoch_mark:EpochMarkWriter._write> tokens.epoch:
            workflow.releases.renew: workflow.releases.report: workflow.releases.submit:
            workflow.expiry.sweep:_delete_expired
        """,
        visitors.brings_a_key: "channels.http.agent_keys:",
        operators.operated_alone: "channels.admin.socket:COMMANDS[",
        operators.operated: "channels.admin.socket:verb[",
        visitors.sets_up: """
            channels.admin.socket:open_database>migrate cli:_make_key>create_secret
            workflow.revocation.restore:ensure_epoch workflow.revocation.restore:reconcile_epoch>write_mark#1
            tokens.secret_files: tokens.keys:
        """,
        holders.steps_up: """
            channels.web.passkeys: workflow.passkeys.manage: workflow.passkeys.step_up:
        """,
        visitors.signs_in: "channels.web.sign_in:_open identity.sessions:_end_all",
        chapters.asks: """
            channels.web.sign_in:spend identity.sessions:_touch storage.outbox:claim storage.outbox:mark_sent
            workflow.releases.redeem: workflow.releases.release: workflow.reviews.vote:
        """,
        chapters.starts_over: "workflow.revocation.restore:reconcile_epoch>write_mark#2",
        chapters.edits: "workflow.edits.proposals:",
        chapters.activates: "workflow.effects.activate:",
        chapters.talks: """
            workflow.reviews.comment: workflow.reviews.unsatisfiable:_move#2
            workflow.expiry.sweep:_move[TO_ESCALATE] workflow.expiry.sweep:_move[TO_REMIND]
        """,
        chapters.takes_back: "workflow.releases.compensate:",
        chapters.settles: "workflow.reviews.unsatisfiable:_move#1 workflow.tasks.settle:",
        chapters.shadows: "workflow.shadow.comparison:",
        visitors.stops: "workflow.revocation.stops_by_people:",
        chapters.tears: """
            workflow.expiry.sweep:_move[EXPIRED_COMPENSATIONS] workflow.expiry.sweep:_move[UNCOMPENSATED]
        """,
        chapters.expires: """
            workflow.expiry.sweep:_move[UNANSWERED] workflow.expiry.sweep:_move[UNREPORTED]
            workflow.expiry.sweep:_move[UNUSED]
        """,
        visitors.sends_webhooks: "workflow.webhooks:",
        chapters.errs: "workflow.effects.withdraw:",
        pressers.asks_in_slack: """
            workflow.slack.interactions:_remember workflow.slack.enqueue:record_delivery
            channels.slack.projection: channels.slack.send_queue:_record_result
            channels.slack.send_queue:_claim_message channels.slack.send_queue:acquire_lease
            channels.slack.send_queue:update_rows
        """,
        pressers.is_let_in_no_more: """
            channels.slack.send_queue:release_lease channels.slack.send_queue:_record_slack_failure
            channels.slack.send_queue:_record_auth_test
        """,
    }
)
OPERATORS = frozenset({operators.operated_alone, visitors.sets_up})
"""Chapters in which the one who dies is the operator's own command."""

_DEV = "a developer's own terminal: what it did not finish it does at its next start"
_RESTORED = "killed after each of its writes by tests/integration/service/test_restored.py, on both engines"
_FROM_GIT = "a folder records no commits; stopped after it in integration/service/test_policies_from_git.py"
_ARCHIVED = "no story is days old; killed at each step by tests/integration/sdk/test_archived.py"
_BY_SLACK = "one unit that touches no effect and sends nothing; a person without an answer repeats it"
NEVER = {
    "workflow.effects.evaluation_requests:_audit": "no story asks about a live effect: one unit, before its answer",
    "workflow.expiry.archive:acquire_lease": _ARCHIVED,
    "workflow.expiry.archive:_archive_page>append_lines": _ARCHIVED,
    "workflow.expiry.archive:_move": _ARCHIVED,
    "channels.admin.dev.server:enrol": _DEV,
    "channels.admin.dev.session:create_link": _DEV,
    "channels.admin.backup:_restore>write_mark#1": _RESTORED,
    "channels.admin.backup:_restore>write_mark#2": _RESTORED,
    "channels.admin.backup:mark_transaction_unknown": _RESTORED,
    "channels.admin.backup:begin_restored_epoch": _RESTORED,
    "jobs.health_monitor:?": "it looks whether a unit comes back, and what that one writes is never read",
    "channels.http.backchannel_logout:apply_logout": "sent by an identity provider only; one unit, and it is retried",
    "workflow.slack.account_links:_invite": _BY_SLACK,
    "workflow.slack.account_links:_link": _BY_SLACK,
    "workflow.slack.account_links:unlink_in": _BY_SLACK,
    "workflow.slack.account_links:_set_direct": _BY_SLACK,
    "workflow.active_commit:_activate": _FROM_GIT,
    "workflow.active_commit:_record_refusal": _FROM_GIT,
    "storage.outbox:mark_failed": "the receiver is the service's own log, which never refuses",
}
"""Points that no chapter reaches, each with its reason."""

ONE_ENGINE = {
    "channels.admin.socket:verb[": "sqlite",  # a database server has no socket: verbs always run alone
    "audit.log:": "postgresql",  # SQLite numbers a line as it inserts it
    "app:release_lease": "postgresql",  # the sequencer's
}
"""Points that are passed on one engine only."""


def chapter_of(point: str) -> Chapter | None:
    """The chapter in which a point of the service is passed."""
    found = [chapter for start, chapter in WHERE.items() if point.startswith(start)]
    assert len(found) <= 1, f"{point} has two chapters"
    return found[0] if found else None


AGENT_WHERE: dict[str, Chapter] = _passed(
    {
        chapters.edits: """
            service.client.Service.accept_proposal service.client.Service.decline_proposal
            journal.meta:AcceptedEdits.keep journal.meta:AcceptedEdits.note
            journal.stops_and_reruns:Transactions.adopt
        """,
        chapters.talks: "commit.review:_call_on_question service.client.Service.answer",
        chapters.takes_back: """
            service.client.Service.compensate journal.settlements:Settlements.begin_compensation
            journal.settlements:Settlements.compensation_redeemed journal.settlements:Settlements.settle_compensated
            journal.stops_and_reruns:Transactions.explain journal.stops_and_reruns:Transactions.note
        """,
        chapters.fires: """
            service.client.Service.jwks service.client.Service.manifest service.client.Service.renew
            service.client.Service.report service.client.Service.submit commit.executor:EffectExecutor._call
            journal.effects:EffectLog.begin journal.effects:EffectLog.redeemed journal.effects:EffectLog.write
            journal.meta:Epochs.observe journal.meta:Receipts.keep service.client.Service.epoch
            transactions.step:Step._end transactions.step:Step.open journal.meta:StoredManifests.keep
            journal.leases:Leases.acquire journal.leases:Leases.release journal.meta:Outbox.reported
            journal.chain:find_damage journal.transactions:TransactionRows.begin_staging
            journal.transactions:TransactionRows.end journal.transactions:TransactionRows.freeze
            journal.transactions:TransactionRows.open journal.transactions:TransactionRows.stage
        """,
        chapters.asks: """
            service.client.Service.redeem service.client.Service.release service.client.Service.view
            journal.leases:Leases.renew journal.transactions:TransactionRows.see
        """,
        chapters.errs: """
            service.client.Service.withdraw journal.stops_and_reruns:Transactions.abort
            journal.stops_and_reruns:Transactions.abort_all
        """,
        chapters.finds_out: "commit.probes:_call_probe",
        chapters.settles: "journal.settlements:Settlements.learn",
        chapters.works_live: """
            journal.transactions:TransactionRows.end_live live.work.LiveWork.commit live.work.LiveWork.prepare
            live.work.LiveWork.run live.work.LiveWork.undo
        """,
    }
)
AGENT_NEVER = {
    "journal.meta:Epochs.mark_reported": "only after a restore of the service's database; its reports are repeated",
    "journal.meta:Traces.keep": "only where the agent is traced; what is lost is a link between two spans",
    "journal.meta:Outbox.requeue": "only after a restore; a repeat does the same again",
    **dict.fromkeys(
        [f"journal.spending:Spending.{verb}" for verb in ("_changing", "record")],
        "no story calls a model; what a killed process had reserved is in tests/unit/sdk/llm/test_calls.py",
    ),
    "journal.steps:RecordedSteps.keep": (
        "only of a registered step, before anything of it happens: without the record its own program must run it again"
    ),
    "journal.conversations:Conversations.deciding": (
        "no story talks with a model; tests/integration/sdk/test_loops.py kills one that does before each message"
    ),
    **dict.fromkeys(
        [
            *(f"journal.stops_and_reruns:Transactions.relist#{n}" for n in (1, 2)),
            "transactions.call_list:CallList._begin_again",
        ],
        "no story nests; what was never frozen is forgotten",
    ),
    "journal.request_log:RequestLog.keep": (
        "no story calls a REST service; what a later try finds of one that was cut off is in "
        "tests/unit/sdk/tools/test_sending_again.py"
    ),
    "journal.stops_and_reruns:Transactions.close": (
        "a person's word, in one commit: before it the transaction is unsettled as it was, after it `closed`"
    ),
    "journal.stops_and_reruns:Transactions.adopt_rerun": (
        "no story does live work in its rerun alone; one that is cut off there is in "
        "tests/unit/sdk/recovery/test_rerun_live_work.py"
    ),
    "journal.stops_and_reruns:Transactions.note_returned": (
        "no story does live work in its rerun; what is lost of it is an answer that a replay says it cannot compare"
    ),
    "journal.stops_and_reruns:Transactions.mark_undone": (
        "no story catches what a live call raised; what recovery makes of one is in tests/unit/sdk/live/test_raised.py"
    ),
    **dict.fromkeys(
        [
            "journal.stops_and_reruns:Transactions.stop",
            "journal.stops_and_reruns:Transactions.continue_stopped",
        ],
        "no story is interrupted; a worker that dies over one that was is in tests/unit/sdk/recovery/test_stopped.py",
    ),
    **dict.fromkeys(
        ["journal.resource_locks:ResourceLocks.take", "journal.resource_locks:ResourceLocks.drop"],
        "no story serializes; that a killed holder is succeeded at once is in tests/unit/sdk/live/test_isolation.py",
    ),
    "service.client.Service.transactions": "a list to look at: it records nothing on either side",
    "service.client.Service.evaluate": "a dry run: it records nothing on either side",
    "journal.meta:Outbox.refused": "the service refuses a report only when somebody settled the effect otherwise",
}
"""Points of the SDK that no story reaches, each with its reason."""
