"""Random faults between random events: whatever comes, each thing is told once and the last state is shown."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from policy_service.storage.slack_tables import SlackCardRow
from tests.fakes.slack_faults import CutAfter, CutBefore, Fault, Garbled, Hang, NotOk, Status
from tests.integration.slack.office import APPROVALS, Office, until, words

pytestmark = pytest.mark.anyio

METHODS = (
    "chat.postMessage chat.update conversations.list conversations.history conversations.replies".split()
)
FAULTS: tuple[Fault, ...] = (
    Status(429, retry_after=30), Status(500), Hang(0.7), Hang(0.7, accepted=True), CutBefore(), CutAfter(), CutAfter(),
    Garbled(), NotOk("internal_error"), NotOk("token_revoked"), NotOk("not_in_channel"),
)  # fmt: skip
SHOWN = {
    "released": "Approved and released",
    "denied": "Denied",
    "expired": "Expired",
    "review": "Review wanted",
}
STEPS = 30


@pytest.fixture(scope="module")
def how_it_opens() -> dict[str, Any]:
    """It waits for Slack half a second, and gives every review a card of its own."""
    return {"app": {"timeout_s": 0.5, "digest_above": 100}}


class Story:
    """What happens at random, by a seed that a failing test names."""

    def __init__(self, office: Office, seed: int) -> None:
        self.office, self.chance = office, random.Random(seed)
        self.views: list[dict[str, Any]] = []
        self.said = 0
        self.told: list[int] = []  # what was said when its card stood in the channel already

    async def step(self) -> None:
        """One event, and perhaps a fault of some call to come."""
        if self.chance.random() < 0.6:
            self.office.faults.on.next(self.chance.choice(METHODS), self.chance.choice(FAULTS))
        await self.chance.choice((self.ask, self.talk, self.decide, self.wait))()

    async def ask(self) -> None:
        n = len(self.views)
        if n < 6:
            self.views.append(await self.office.pay(500 + n, f"run-{n}", f"acct-{n}"))
            await until(
                self.office.followed
            )  # what is decided before anybody looks at the log is asked nowhere

    async def _stands(self, view: dict[str, Any]) -> bool:
        review_id = view["effects"][0]["review"]["review_id"]
        cards = await self.office.find(SlackCardRow, review_id=review_id)
        return all(card.posted_at is not None for card in cards)

    async def talk(self) -> None:
        if open_ones := [view for view in self.views if await self.office.state(view) == "review"]:
            view = self.chance.choice(open_ones)
            self.said += 1
            if await self._stands(view):
                self.told.append(self.said)
            await self.office.comment(view, f"remark {self.said}.")

    async def decide(self) -> None:
        if open_ones := [view for view in self.views if await self.office.state(view) == "review"]:
            verdict = self.chance.choice(("approve", "deny"))
            await self.office.vote(self.chance.choice(open_ones), verdict)

    async def wait(self) -> None:
        for _ in range(self.chance.randrange(1, 8)):
            self.office.world.clock.pass_(seconds=5)
            await self.office.standing()


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 12))])
async def test_whatever_comes_each_thing_is_told_once_and_the_last_state_is_shown(
    office: Office, seed: int
) -> None:
    story = Story(office, seed)
    await story.ask()
    for _ in range(STEPS):
        await story.step()
    office.faults.on.lift()
    await office.quiet(step_s=20, patience_s=60)
    cards = await office.slack.messages(APPROVALS)
    assert len(cards) == len(story.views)
    for n, (card, view) in enumerate(zip(cards, story.views, strict=True)):
        assert f"acct-{n}" in words(card), "in the order in which they were asked"
        assert SHOWN[await office.state(view)] in words(card)
    threads = [await office.slack.replies(APPROVALS, card["ts"]) for card in cards]
    names = Counter(one["blocks"][0]["block_id"] for thread in threads for one in thread)
    assert set(names.values()) <= {1}
    for thread in threads:
        lines = [one["blocks"][0]["block_id"].rpartition("/")[2] for one in thread]
        assert lines == sorted(lines), "in the order of the log"
    remarks = [words(one["blocks"]) for thread in threads for one in thread]
    for n in story.told:
        assert sum(f"remark {n}." in line for line in remarks) == 1
    standing = await office.standing()
    assert (standing.waiting, standing.dead, standing.failures) == (0, 0, 0)
