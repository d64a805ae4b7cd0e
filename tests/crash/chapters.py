"""What happens in a story, in chapters: each is short, begins on a fresh service and ends with everything at rest.

A chapter asserts the end of a run in which no process was killed. Where the agent is killed, the invariants decide.
`where.py` lists which fault point is passed in which chapter.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from typing import Any

from countersign.contract import digests as names
from policy_service.storage.core import find
from policy_service.storage.system_tables import AuditRow, ShadowRow
from policy_service.storage.tables import CommentRow, EffectRow, ReviewRow, TaskRow
from tests.crash.agent import AGENT, lines
from tests.crash.dying import Death
from tests.crash.invariants import counted
from tests.crash.story import SLOW, STRICTER, Story

RENEWING = "workflow.releases.renew:"
BACKGROUND = ("audit.log:", "jobs.epoch_mark:", "tokens.epoch:", "workflow.expiry.sweep:")
_STAGED = Death("journal.transactions:TransactionRows.stage", "after")
_FIRING = Death("commit.executor:EffectExecutor._call", "before")
_PAYING = Death("commit.executor:EffectExecutor._call", "after", 2)  # the charge goes before
_TAKING_BACK = Death("service.client.Service.compensate", "before")


def fires(story: Story) -> None:
    """A small refund and an invoice go at once; the invoice is asked about again before it is sent."""
    story.begin()
    story.live("small", "small")
    story.live("two", "two")
    story.finish()
    point = "" if story.death is None else story.death.point
    invoiced = "invoice" in counted(lines(story.agent / "world.jsonl"))
    # A death of background work comes at any time, so also while the invoice is renewed.
    if point.startswith(RENEWING) or (point.startswith(BACKGROUND) and not invoiced):
        happened(story, refund=2)  # the invoice could not be renewed, so it is unused
    else:
        happened(story, refund=2, invoice=1)


def asks(story: Story) -> None:
    """A large refund waits for one person, a huge one for two, and a third is denied by one."""
    story.begin()
    for flow, people in (("large", ["maya"]), ("huge", ["maya", "tomas"])):
        story.answer_review(story.live(flow, flow), *people)
        story.live("resume")
    story.answer_review(story.live("large", "denied", wait=0.5), "tomas", verdict="deny")
    story.live("resume")
    finished(story, refund=2)


def edits(story: Story) -> None:
    """A refund is changed by one person, accepted by its agent and approved by another; a second change is declined."""
    story.begin()
    said = story.live("edited", "edited")
    if said["raised"] == "ReviewPending":
        _propose(story, said["reviews"][0])
    for _ in range(2):  # an agent that died while accepting accepts again
        said = story.live("edited", "edited")
    story.answer_review(said, "tomas")
    story.live("edited", "edited")
    said = story.live("large", "kept")
    if said["raised"] == "ReviewPending":
        _propose(story, said["reviews"][0])
        story.live("decline", "kept")
        story.live("decline", "kept")
        story.answer("tomas", said["reviews"][0])
    story.live("resume")
    finished(story, refund=2)


def _propose(story: Story, review: str) -> None:
    """Less is proposed by the form; a repeat after a death is the same."""
    change = {"amount_cents": "80000"}
    story.as_person(lambda person: person.propose(review, change, "half of it was delivered"))


def errs(story: Story) -> None:
    """What a rule forbids or cannot work out is denied; a body that raises, or dies, has staged nothing."""
    story.begin()
    story.live("forbidden", "forbidden")
    story.live("error", "error")
    story.live("body", "body")
    story.live("small", "dead", dies=_STAGED)
    story.live("resume")
    story.live("large", "unwanted")
    story.live("withdraw", "unwanted")
    finished(story)


def takes_back(story: Story) -> None:
    """A charge is taken back because the next message could not be sent; another cannot be."""
    story.begin()
    story.live("taken_back", "back")
    story.live("odd", "odd")
    finished(story, charge=2, void=1)


def finds_out(story: Story) -> None:
    """An agent dies over a payment; its probe finds that it happened."""
    story.begin()
    story.live("probed", "probed", dies=_PAYING)
    story.live("resume")
    finished(story, charge=1, pay=1)


def works_live(story: Story) -> None:
    """A note is kept with its refund, and undone where a review is open."""
    story.begin()
    story.live("with_live", "live")
    story.answer_review(story.live("live_large", "asked"), "maya")
    story.live("live_large", "asked")
    finished(story, refund=2)


def expires(story: Story) -> None:
    """One review, one release and one report time out."""
    story.more["FIRE_WINDOW_S"] = "10"  # long enough to begin on a busy machine
    story.begin()
    story.live("brief", "brief")
    story.answer_review(story.live("lapsing", "lapsing"), "maya")
    story.live("small", "silent", dies=_FIRING)
    for key, state in (("silent", "unknown"), ("brief", "expired"), ("lapsing", "expired")):
        story.until(
            f"{key} is {state}", lambda conn, key=key, state=state: _states(conn, key) in ([state], [])
        )
    finished(story)


def tears(story: Story) -> None:
    """A compensation is never requested; the release of another one expires."""
    story.more["OUTCOME_GRACE_S"] = "1"
    story.begin()
    story.live("taken_back", "torn", dies=_TAKING_BACK)
    story.until("a task is open", lambda conn: find(conn, TaskRow) != [])
    story.live("lapsing_charge", "lapse")
    story.until("people are asked", lambda conn: open_reviews(conn) != [])
    with story.reading() as conn:
        (review,) = open_reviews(conn)
    story.answer("maya", f"{story.url}/reviews/{review}")
    story.until("the release lapses", lambda conn: _states(conn, "lapse", "compensate") == ["expired"])
    finished(story, charge=2, void=1)


def settles(story: Story) -> None:
    """A person settles a refund with an unknown outcome; an unsatisfiable review opens a task."""
    story.begin()
    story.live("small", "doubted", dies=_FIRING)
    story.live("resume")
    story.until("somebody is asked", lambda conn: _open_tasks(conn) == ["unknown"])
    story.settle("maya", "not_fired")
    story.live("resume")
    story.live("huge", "unsatisfiable")
    story.groups('members = ["maya", "tomas"]', 'members = ["maya"]')
    story.until("a task is open", lambda conn: _open_tasks(conn) == ["impossible_quorum"])
    story.groups("", "")
    story.until("it can be answered again", lambda conn: _open_tasks(conn) == [])
    finished(story)


def talks(story: Story) -> None:
    """A review without votes: a reminder, an escalation, a question to the agent and its answer. An unsatisfiable
    review opens a task at the submission."""
    story.policies(SLOW)
    story.begin()
    story.live("hopeless", "hopeless")
    story.until("a task is open", lambda conn: _open_tasks(conn) in (["impossible_quorum"], []))
    story.live("withdraw", "hopeless")
    said = story.live("slow", "slow")
    if said["raised"] == "ReviewPending":
        story.until("people are reminded", lambda conn: _logged(conn, "review_reminded"))
        story.until("others are asked", lambda conn: _logged(conn, "review_escalated"))
        review = said["reviews"][0]
        story.as_person(lambda person: person.ask(review, "what for?"), "ingrid")
        for _ in range(2):  # what was lost on its way is said again by the next run
            story.live("slow", "slow")
        answer = "because it came late"
        story.until("the agent answers", lambda conn: find(conn, CommentRow, answer=answer) != [])
        story.answer("ingrid", said["reviews"][0])
    story.live("resume")
    finished(story, refund=1)


def activates(story: Story) -> None:
    """Stricter rules end what was open."""
    story.begin()
    story.live("large", "large")
    story.policies(STRICTER)
    story.until("it is denied", lambda conn: _states(conn, "large") in (["denied"], []))
    story.live("resume")
    story.live("small", "closed")
    finished(story)


def shadows(story: Story) -> None:
    """A candidate without reviews is compared with the decisions: each effect is counted once."""
    candidate = story.folder / "candidate"
    shutil.copytree(story.bundle, candidate)
    rules = candidate / "desk.cedar"
    rules.write_text(rules.read_text().replace("amount_cents > 5000 }", "amount_cents > 6000000 }"))
    story.more["SHADOW_DIR"] = str(candidate)
    story.begin()
    story.until("it is known", lambda conn: _compared(conn) == (0, 0))
    story.live("large", "large")
    story.live("small", "small")
    story.until("both are compared", lambda conn: _compared(conn)[0] >= 2)
    story.live("withdraw", "large")
    story.finish()
    with story.reading() as conn:
        assert _compared(conn) == (2, 1)
    happened(story, refund=1)


def starts_over(story: Story) -> None:
    """The rules changed while no process ran, and the mark is outdated."""
    story.begin()
    story.live("large", "large")
    story.stop()
    story.policies(STRICTER)
    mark = story.data / "keys" / "epoch.json"
    mark.write_text(json.dumps({"epoch": 1, "highest_index": 1}))  # the last write of it was lost
    story.serve()
    story.until("it is denied", lambda conn: _states(conn, "large") == ["denied"])
    story.finish()
    assert json.loads(mark.read_text())["highest_index"] > 1
    happened(story)


# ---------------------------------------------------------------------------------------- what is asked at the end


def happened(story: Story, **calls: int) -> None:
    """What the world received, exactly, unless the agent was killed: then at most that."""
    world = counted(lines(story.agent / "world.jsonl"))
    most = Counter(calls) + Counter({"invoice": 1} if "invoice" in calls else {})
    assert world <= most if story.side == "agent" else world == calls, world


def finished(story: Story, **calls: int) -> None:
    """Let everything come to rest; then this has happened."""
    story.finish()
    happened(story, **calls)


def _open_tasks(conn: Any) -> list[str]:
    return [row.kind for row in find(conn, TaskRow, state="open")]


def _logged(conn: Any, kind: str) -> bool:
    return bool(find(conn, AuditRow, kind=kind))


def _states(conn: Any, run_key: str, kind: str = "effect") -> list[str]:
    txn = names.txn_id(agent=AGENT, run_key=run_key)
    return [row.state for row in find(conn, EffectRow, txn=txn, kind=kind)]


def _compared(conn: Any) -> tuple[int, int]:
    return next(((row.compared, row.looser) for row in find(conn, ShadowRow)), (-1, -1))


def open_reviews(conn: Any) -> list[str]:
    """Reviews that wait for somebody."""
    return [row.review_id for row in find(conn, ReviewRow, state="open")]
