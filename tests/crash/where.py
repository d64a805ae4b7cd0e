"""Which fault point is passed in which chapter. A point of the code that stands nowhere makes a test fail."""

from __future__ import annotations

from collections.abc import Callable

from tests.crash.chapters import (
    activates,
    asks,
    edits,
    errs,
    expires,
    finds_out,
    fires,
    settles,
    shadows,
    starts_over,
    takes_back,
    talks,
    tears,
    works_live,
)
from tests.crash.holders import steps_up
from tests.crash.operators import operated, operated_alone
from tests.crash.pressers import asks_in_slack, is_let_in_no_more
from tests.crash.story import Story
from tests.crash.visitors import brings_a_key, sets_up, signs_in, stops, tells

Chapter = Callable[[Story], None]

WHERE: dict[str, Chapter] = {
    "app:release": fires,
    "audit.sequencer:": fires,
    "channels.http.agent_keys:": brings_a_key,
    "channels.operator.socket:VERBS[": operated_alone,
    "channels.operator.socket:verb[": operated,
    "channels.operator.socket:open_database>migrate": sets_up,
    "channels.web.passkey_source:": steps_up,
    "channels.web.source:_open": signs_in,
    "channels.web.source:spend": asks,
    "cli:_make_key>create_secret": sets_up,
    "identity.sessions:_end_all": signs_in,
    "identity.sessions:_touch": asks,
    "jobs.marking:EpochMark._write>": fires,
    "jobs.marking:first_epoch": sets_up,
    "jobs.marking:settle_epoch>write_mark#1": sets_up,
    "jobs.marking:settle_epoch>write_mark#2": starts_over,
    "storage.outbox:claim": asks,
    "storage.outbox:mark_sent": asks,
    "tokens.epoch:": fires,
    "tokens.files:": sets_up,
    "tokens.keys:": sets_up,
    "workflow.edits.accept:": edits,
    "tokens.webhook_keys:": sets_up,
    "workflow.effects.activate:": activates,
    "workflow.reviews.answer:": talks,
    "workflow.reviews.comment:": talks,
    "workflow.releases.compensate:": takes_back,
    "workflow.passkeys.managing:": steps_up,
    "workflow.edits.decline:": edits,
    "workflow.edits.propose:": edits,
    "workflow.releases.redeem:": asks,
    "workflow.releases.release:": asks,
    "workflow.releases.renew:": fires,
    "workflow.releases.report:": fires,
    "workflow.reviews.impossible:_move#1": settles,
    "workflow.reviews.impossible:_move#2": talks,
    "workflow.tasks.settle:": settles,
    "workflow.trials.shadow:": shadows,
    "workflow.oversight.stopping:": stops,
    "workflow.passkeys.stepping_up:": steps_up,
    "workflow.releases.submit_and_redeem:": fires,
    "workflow.due.sweep:_forget": fires,
    "workflow.due.sweep:_move[LAPSED]": tears,
    "workflow.due.sweep:_move[TORN]": tears,
    "workflow.due.sweep:_move[TO_ESCALATE]": talks,
    "workflow.due.sweep:_move[TO_REMIND]": talks,
    "workflow.due.sweep:_move[UNANSWERED]": expires,
    "workflow.due.sweep:_move[UNREPORTED]": expires,
    "workflow.due.sweep:_move[UNUSED]": expires,
    "workflow.reviews.vote:": asks,
    "workflow.told.webhooks:": tells,
    "workflow.effects.withdraw:": errs,
    "workflow.slack.acting:_remember": asks_in_slack,
    "workflow.slack.deliveries:note_in": asks_in_slack,
    "workflow.slack.following:": asks_in_slack,
    "workflow.slack.sending:_note": asks_in_slack,
    "workflow.slack.sending:_take": asks_in_slack,
    "workflow.slack.sending:acquire": asks_in_slack,
    "workflow.slack.sending:change": asks_in_slack,
    "workflow.slack.sending:release": is_let_in_no_more,
    "workflow.slack.sending:_slack_failed": is_let_in_no_more,
    "workflow.slack.sending:_answered": is_let_in_no_more,
}
OPERATORS = frozenset({operated_alone, sets_up})
"""Chapters in which the one who dies is the operator's own command."""

_DEV = "a developer's own terminal: what it did not finish it does at its next start"
_RESTORED = "killed after each of its writes by tests/integration/service/test_restored.py, on both engines"
_FROM_GIT = (
    "a folder has no commits to record; stopped after it in integration/service/test_policies_from_git.py"
)
_BY_SLACK = "one unit that touches no effect and sends nothing; whoever saw no answer looks at the page and repeats it"
NEVER = {
    "workflow.effects.evaluate:_note": "no story asks about a live effect: one unit, before its answer",
    "channels.operator.dev.serving:enrol": _DEV,
    "channels.operator.dev.session:mint_link": _DEV,
    "channels.operator.restoring:_restore>write_mark#1": _RESTORED,
    "channels.operator.restoring:_restore>write_mark#2": _RESTORED,
    "channels.operator.restoring:doubt_transaction": _RESTORED,
    "channels.operator.restoring:go_on_above": _RESTORED,
    "jobs.watching:?": "it looks whether a unit comes back, and what that one writes nobody reads",
    "channels.http.signing_out:obey": "only an identity provider sends it; it is one unit, and is sent again",
    "workflow.slack.inviting:_invite": _BY_SLACK,
    "workflow.slack.linking:_link": _BY_SLACK,
    "workflow.slack.linking:unlink_in": _BY_SLACK,
    "workflow.slack.linking:_set_direct": _BY_SLACK,
    "workflow.looking:put_in_force": _FROM_GIT,
    "workflow.looking:note_refused": _FROM_GIT,
    "storage.outbox:mark_failed": "the one who is told is the service's own log, which never refuses",
}
"""Points that no chapter reaches, each with its reason."""

SQLITE_ONLY = {
    "channels.operator.socket:verb[": "a database server has no socket: verbs are always run alone there"
}


def chapter_of(point: str) -> Chapter | None:
    """The chapter in which a point of the service is passed."""
    found = [chapter for start, chapter in WHERE.items() if point.startswith(start)]
    assert len(found) <= 1, f"{point} stands in WHERE twice"
    return found[0] if found else None


_SERVICE, _FIRING_J, _TXN = (
    "service.client.Service",
    "journal.firing:Firing",
    "journal.transactions:Transactions",
)
AGENT_WHERE: dict[str, Chapter] = {
    f"{_SERVICE}.accept_proposal": edits,
    "commit.answering:_ask": talks,
    f"{_SERVICE}.answer": talks,
    f"{_SERVICE}.compensate": takes_back,
    f"{_SERVICE}.decline_proposal": edits,
    f"{_SERVICE}.jwks": fires,
    f"{_SERVICE}.manifest": fires,
    f"{_SERVICE}.redeem": asks,
    f"{_SERVICE}.release": asks,
    f"{_SERVICE}.renew": fires,
    f"{_SERVICE}.report": fires,
    f"{_SERVICE}.submit": fires,
    f"{_SERVICE}.view": asks,
    f"{_SERVICE}.withdraw": errs,
    "commit.firing:FireRun._call": fires,
    "commit.probing:_asked": finds_out,
    f"{_FIRING_J}.begin": fires,
    f"{_FIRING_J}.begin_compensation": takes_back,
    f"{_FIRING_J}.compensation_redeemed": takes_back,
    f"{_FIRING_J}.learn": settles,
    f"{_FIRING_J}.redeemed": fires,
    f"{_FIRING_J}.settle_compensated": takes_back,
    f"{_FIRING_J}.write": fires,
    "journal.receipts:Epochs.meet": fires,
    "journal.receipts:Receipts.keep": fires,
    f"{_SERVICE}.epoch": fires,
    "transactions.step:Step._end": fires,
    "transactions.step:Step.open": fires,
    "journal.manifests:KeptManifests.keep": fires,
    "journal.meta:TakenEdits.keep": edits,
    "journal.meta:TakenEdits.note": edits,
    "journal.leases:Leases.acquire": fires,
    "journal.leases:Leases.release": fires,
    "journal.leases:Leases.renew": asks,
    "journal.outbox:Outbox.reported": fires,
    "journal.verifying:damage_of": fires,
    f"{_TXN}.abort": errs,
    f"{_TXN}.abort_all": errs,
    f"{_TXN}.adopt": edits,
    f"{_TXN}.begin_staging": fires,
    f"{_TXN}.end": fires,
    f"{_TXN}.end_live": works_live,
    f"{_TXN}.explain": takes_back,
    f"{_TXN}.freeze": fires,
    f"{_TXN}.note": takes_back,
    f"{_TXN}.open": fires,
    f"{_TXN}.see": asks,
    f"{_TXN}.stage": fires,
    "live.work.LiveWork.commit": works_live,
    "live.work.LiveWork.prepare": works_live,
    "live.work.LiveWork.run": works_live,
    "live.work.LiveWork.undo": works_live,
}
AGENT_NEVER = {
    "journal.receipts:Epochs.tell": "only after a restore of the service's database; what it tells is told again",
    "journal.meta:Traces.keep": "only where the agent is traced; what is lost is a link between two spans",
    "journal.outbox:Outbox.tell_again": "only after a restore; a repeat does the same again",
    **dict.fromkeys(
        [f"journal.spending:Spending.{verb}" for verb in ("_changing", "record")],
        "no story calls a model; what a killed process had reserved is in tests/unit/sdk/llm/test_processes.py",
    ),
    "journal.conversations:Conversations.deciding": (
        "no story talks with a model; tests/integration/sdk/test_loops.py kills one that does before each message"
    ),
    **dict.fromkeys(
        ["journal.transactions:Transactions.relist", "transactions.listing:Listing._begin_again"],
        "no story nests; what was never frozen is forgotten",
    ),
    "journal.sent:SentRequests.keep": (
        "no story calls a REST service; what a later try finds of one that was cut off is in "
        "tests/unit/sdk/tools/test_sending_again.py"
    ),
    "journal.transactions:Transactions.close": (
        "a person's word, in one commit: before it the transaction is unsettled as it was, after it `closed`"
    ),
    "journal.rerunning:Reruns.take_in": (
        "no story does live work in its rerun alone; one that is cut off there is in "
        "tests/unit/sdk/recovery/test_rerun_live_work.py"
    ),
    "journal.transactions:Transactions.note_returned": (
        "no story does live work in its rerun; what is lost of it is an answer that a replay says it cannot compare"
    ),
    "journal.transactions:Transactions.undone_alone": (
        "no story catches what a live call raised; what recovery makes of one is in tests/unit/sdk/live/test_raised.py"
    ),
    **dict.fromkeys(
        ["journal.stopping:Stops.stop", "journal.stopping:Stops.go_on"],
        "no story is interrupted; a worker that dies over one that was is in tests/unit/sdk/recovery/test_stopped.py",
    ),
    **dict.fromkeys(
        ["journal.claims:Claims.take", "journal.claims:Claims.drop"],
        "no story serializes; that a killed holder is succeeded at once is in tests/unit/sdk/live/test_isolation.py",
    ),
    f"{_SERVICE}.transactions": "a list to look at: it records nothing on either side",
    f"{_SERVICE}.evaluate": "a dry run: it records nothing on either side",
    "journal.outbox:Outbox.refused": "the service refuses a report only when somebody settled the effect otherwise",
}
"""Points of the SDK that no story reaches, each with its reason."""
