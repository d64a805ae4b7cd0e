"""What happens in a story, in chapters: each is short, begins on a fresh service and ends with everything at rest.

A chapter asserts the end of a run in which no process was killed. Where the agent is killed, the invariants decide.
`where.py` lists which fault point is passed in which chapter.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from typing import Any

from sqlalchemy import select

from countersign.contract import names
from policy_service.storage.core import table
from policy_service.storage.system_tables import AuditRow, ShadowRow
from policy_service.storage.tables import CommentRow, EffectRow, ReviewRow, TaskRow
from tests.crash.agent import AGENT, lines
from tests.crash.dying import Death
from tests.crash.invariants import counted
from tests.crash.story import SLOW, STRICTER, Story

RENEWING = "workflow.releases.renew:"
_STAGED = Death("journal.transactions:Transactions.stage", "after")
_FIRING = Death("commit.executor:EffectExecutor._call", "before")
_PAYING = Death("commit.executor:EffectExecutor._call", "after", 2)  # the charge goes before
_TAKING_BACK = Death("service.client.Service.compensate", "before")


def fires(story: Story) -> None:
    """A small refund and an invoice go at once; the invoice is asked about again before it is sent."""
    story.begin()
    story.live("small", "small")
    story.live("two", "two")
    story.finish()
    if story.death is not None and story.death.point.startswith(RENEWING):
        happened(story, refund=2)  # the invoice could not be renewed, so it is unused
    else:
        happened(story, refund=2, invoice=1)


def asks(story: Story) -> None:
    """A large refund waits for one person, a huge one for two, and a third is denied by one."""
    story.begin()
    for key, flow, people in (("large", "large", ["maya"]), ("huge", "huge", ["maya", "tomas"])):
        said = story.live(flow, key)
        if said["raised"] == "ReviewPending":
            for person in people:
                story.answer(person, said["reviews"][0])
        story.live("resume")
    said = story.live("large", "denied", wait=0.5)
    if said["raised"] == "ReviewPending":
        story.answer("tomas", said["reviews"][0], "deny")
    story.live("resume")
    story.finish()
    happened(story, refund=2)


def edits(story: Story) -> None:
    """A refund is changed by one person, accepted by its agent and approved by another; a second change is declined."""
    story.begin()
    said = story.live("edited", "edited")
    if said["raised"] == "ReviewPending":
        _propose(story, said["reviews"][0])
    for _ in range(2):  # an agent that died while accepting accepts again
        said = story.live("edited", "edited")
    if said["raised"] == "ReviewPending":
        story.answer("tomas", said["reviews"][0])
    story.live("edited", "edited")
    said = story.live("large", "kept")
    if said["raised"] == "ReviewPending":
        _propose(story, said["reviews"][0])
        story.live("decline", "kept")
        story.live("decline", "kept")
        story.answer("tomas", said["reviews"][0])
    story.live("resume")
    story.finish()
    happened(story, refund=2)


def _propose(story: Story, review: str) -> None:
    """Less is proposed by the form; a repeat after a death is the same."""
    story.as_person(
        lambda person: person.propose(review, {"amount_cents": "80000"}, "half of it was delivered")
    )


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
    story.finish()
    happened(story)


def takes_back(story: Story) -> None:
    """A charge is taken back because the next message could not be sent; another cannot be."""
    story.begin()
    story.live("taken_back", "back")
    story.live("odd", "odd")
    story.finish()
    happened(story, charge=2, void=1)


def finds_out(story: Story) -> None:
    """An agent dies over a payment; its probe finds that it happened."""
    story.begin()
    story.live("probed", "probed", dies=_PAYING)
    story.live("resume")
    story.finish()
    happened(story, charge=1, pay=1)


def works_live(story: Story) -> None:
    """A note is kept with its refund, and undone where a review is open."""
    story.begin()
    story.live("with_live", "live")
    said = story.live("live_large", "asked")
    if said["raised"] == "ReviewPending":
        story.answer("maya", said["reviews"][0])
    story.live("live_large", "asked")
    story.finish()
    happened(story, refund=2)


def expires(story: Story) -> None:
    """One review, one release and one report time out."""
    story.more["FIRE_WINDOW_S"] = "10"  # long enough to begin on a busy machine
    story.begin()
    story.live("brief", "brief")
    said = story.live("lapsing", "lapsing")
    if said["raised"] == "ReviewPending":
        story.answer("maya", said["reviews"][0])
    story.live("small", "silent", dies=_FIRING)
    story.until("the silent one is doubted", lambda conn: _states(conn, "silent") in (["unknown"], []))
    story.until("the question lapses", lambda conn: _states(conn, "brief") in (["expired"], []))
    story.until("the release lapses", lambda conn: _states(conn, "lapsing") in (["expired"], []))
    story.finish()
    happened(story)


def tears(story: Story) -> None:
    """A compensation is never requested; the release of another one expires."""
    story.more["OUTCOME_GRACE_S"] = "1"
    story.begin()
    story.live("taken_back", "torn", dies=_TAKING_BACK)
    story.until("a task is open", lambda conn: bool(conn.execute(select(table(TaskRow))).first()))
    story.live("lapsing_charge", "lapse")
    story.until("people are asked", lambda conn: open_reviews(conn) != [])
    with story.reading() as conn:
        (review,) = open_reviews(conn)
    story.answer("maya", f"{story.url}/reviews/{review}")
    story.until("the release lapses", lambda conn: _undo(conn) == "expired")
    story.finish()
    happened(story, charge=2, void=1)


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
    story.finish()
    happened(story)


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
        story.until("the agent has answered", lambda conn: _answers(conn) == ["because it came late"])
        story.answer("ingrid", said["reviews"][0])
    story.live("resume")
    story.finish()
    happened(story, refund=1)


def activates(story: Story) -> None:
    """Stricter rules end what was open."""
    story.begin()
    story.live("large", "large")
    story.policies(STRICTER)
    story.until("it is denied", lambda conn: _states(conn, "large") in (["denied"], []))
    story.live("resume")
    story.live("small", "closed")
    story.finish()
    happened(story)


def shadows(story: Story) -> None:
    """A candidate without reviews is compared with the decisions: each effect is counted once."""
    candidate = story.folder / "candidate"
    shutil.copytree(story.bundle, candidate)
    laxer = (
        (candidate / "desk.cedar").read_text().replace("amount_cents > 5000 }", "amount_cents > 6000000 }")
    )
    (candidate / "desk.cedar").write_text(laxer)
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
    if story.side == "agent":
        assert world <= _plus(calls), world
    else:
        assert world == calls, world


def _plus(calls: dict[str, int]) -> Any:
    return Counter(calls) + Counter({"invoice": 1} if "invoice" in calls else {})


def _open_tasks(conn: Any) -> list[str]:
    tasks = table(TaskRow).c
    return list(conn.scalars(select(tasks.kind).where(tasks.state == "open")))


def _logged(conn: Any, kind: str) -> bool:
    return (
        conn.scalar(select(table(AuditRow).c.kind).where(table(AuditRow).c.kind == kind).limit(1)) is not None
    )


def _answers(conn: Any) -> list[str | None]:
    return list(conn.scalars(select(table(CommentRow).c.answer)))


def _states(conn: Any, run_key: str) -> list[str]:
    effects = table(EffectRow).c
    txn = names.txn_id(agent=AGENT, run_key=run_key)
    return list(conn.scalars(select(effects.state).where(effects.txn == txn, effects.kind == "effect")))


def _compared(conn: Any) -> tuple[int, int]:
    shadow = table(ShadowRow).c
    found = conn.execute(select(shadow.compared, shadow.looser)).first()
    return (-1, -1) if found is None else (found[0], found[1])


def _undo(conn: Any) -> str | None:
    effects = table(EffectRow).c
    txn = names.txn_id(agent=AGENT, run_key="lapse")
    found: str | None = conn.scalar(
        select(effects.state).where(effects.txn == txn, effects.kind == "compensate")
    )
    return found


def open_reviews(conn: Any) -> list[str]:
    """Reviews that wait for somebody."""
    reviews = table(ReviewRow).c
    return list(conn.scalars(select(reviews.review_id).where(reviews.state == "open")))
