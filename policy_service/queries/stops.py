"""Emergency stops: which are in force, and who may start or lift one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from sqlalchemy import Connection, select
from sqlmodel import col

from policy_service.domain.person_actions import START_AGAIN, STOP
from policy_service.identity.agents import OPERATOR, agent_names
from policy_service.pap.bundle import Bundle
from policy_service.pdp.people import StopFacts, check_people_rules
from policy_service.pdp.rules import UNSEEN
from policy_service.queries.context import Context
from policy_service.queries.review_context import not_in_groups_text
from policy_service.queries.vote_eligibility import Voter, with_groups_problem
from policy_service.storage.core import table
from policy_service.storage.tables import StopRow

EVERYTHING = "everything"


@dataclass(frozen=True, slots=True)
class Stop:
    """An emergency stop in force. ``tool`` is None for everything; ``by`` is an actor of the audit log."""

    tool: str | None
    reason: str
    since: datetime
    by: str = OPERATOR

    @property
    def words(self) -> str:
        """The target for people."""
        return describe_stop(self.tool)


def describe_stop(tool: str | None) -> str:
    """A tool, or everything, for people."""
    return EVERYTHING if tool is None else f"the tool {tool!r}"


def list_stops(conn: Connection) -> list[Stop]:
    """Every stop in force, "everything" first."""
    rows = conn.execute(select(*table(StopRow).columns).order_by(col(StopRow.what)))
    return [
        Stop(
            None if row.what == EVERYTHING else row.what.removeprefix(_of_tool("")),
            row.reason,
            row.at,
            row.by,
        )
        for row in rows
    ]


def _of_tool(tool: str) -> str:
    return f"tool:{tool}"


Stoppable: TypeAlias = Literal["agent", "tool", "everything"]


_OFFERED = 200  # agents offered by the form; others are typed


_NAME_THEM = 'permit (principal in Group::"NAME", action == Action::"start_again", resource);'


@dataclass(frozen=True, slots=True)
class Target:
    """What is stopped; ``name`` is empty for everything."""

    what: Stoppable
    name: str = ""


@dataclass(frozen=True, slots=True)
class StopPage:
    """What can be stopped, and the reasons why this person may not stop or start it again (None if they may)."""

    tools: tuple[str, ...]
    agents: tuple[str, ...]  # the first by name
    why_not: str | None
    why_not_start: str | None


async def stop_page(ctx: Context, voter: Voter, target: Target) -> StopPage:
    bundle, now = ctx.active.current, ctx.clock()
    agents = await ctx.db.read(lambda conn: agent_names(conn, _OFFERED))
    return StopPage(
        tools=tuple(sorted(bundle.manifests)),
        agents=tuple(agents),
        why_not=stop_refusal(ctx, bundle, voter, STOP, target, now),
        why_not_start=stop_refusal(ctx, bundle, voter, START_AGAIN, target, now),
    )


def stop_refusal(
    ctx: Context, bundle: Bundle, voter: Voter, action: str, target: Target, now: datetime
) -> str | None:
    """Why this person may not perform the action, as a sentence; None if they may."""
    person = voter.facts(bundle)
    if not person.groups:
        return with_groups_problem(
            "you are in no group; ask your administrator to add you to one that may do this", voter
        )
    what = StopFacts(target.what, target.name)
    granted = check_people_rules(bundle.rules, action, person, what, now=now, env=ctx.settings.environment)
    if granted is None:
        return _without_a_rule(bundle, action, person.groups, voter)
    if granted:
        return None
    return "the policy does not permit you" if granted.reason is None else granted.reason.text


def _without_a_rule(bundle: Bundle, action: str, groups: frozenset[str], voter: Voter) -> str | None:
    if action == START_AGAIN:
        return f"no policy names who may start it again, so only an operator can; to allow others, add: {_NAME_THEM}"
    asked = bundle.rules.asked | {UNSEEN}
    if groups & asked:
        return None
    named = sorted(bundle.directory.title_of(group) for group in asked)
    return with_groups_problem(not_in_groups_text(named, "may stop this"), voter)
