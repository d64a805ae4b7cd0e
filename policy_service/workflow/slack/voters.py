"""Who decides through a Slack account: its person as they stand now, or a refusal that says the way on.

A link is no session, so every doubt that would end one is asked anew, in this order:

1. the account is of the app's workspace, and somebody's;
2. they are known, and no operator took them out of the decisions;
3. how they had signed in when they linked it still counts: the development sign-in is on, their provider still vouches;
4. their provider has not ended all their sessions since they last signed in;
5. they have signed in on the web lately.

Whether the account is still a member's is Slack's to say (`linking.require_member`), and is asked of Slack.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from countersign.contract import ErrorCode
from policy_service.errors import ForbiddenError
from policy_service.identity.people import find_person, slack_link
from policy_service.queries.context import Context
from policy_service.queries.voter import Voter, voter_from_person
from policy_service.slack import SlackApp
from policy_service.storage.core import find_one
from policy_service.storage.slack_tables import SlackLinkRow
from policy_service.storage.tables import PersonRow
from policy_service.workflow.slack.account_links import COMMAND


@dataclass(frozen=True, slots=True)
class LinkedVoter:
    """Whoever decides through an account. ``stale_groups``: their token named groups, too long ago to count."""

    voter: Voter
    link: SlackLinkRow
    stale_groups: bool
    groups_at: datetime | None  # when their token last named any


def voter_for_account(
    conn: Connection, ctx: Context, app: SlackApp, team_id: str, user_id: str, now: datetime
) -> LinkedVoter:
    """Who decides through this account.

    Raises:
        ForbiddenError: not_eligible; with ``url``, the page that mends it, where one does.
    """
    row = slack_link(conn, team_id, user_id) if team_id == app.team_id else None
    if row is None:
        raise _refused(f"this Slack account is nobody's yet; link it to yours: {COMMAND}")
    seen = find_one(conn, PersonRow, iss=row.iss, sub=row.sub)
    person = find_person(conn, row.iss, row.sub, row.assurance, now, ctx.settings.max_group_age_s)
    if seen is None or person is None:
        raise _refused("an operator of this deployment has taken you out of its decisions")
    _require_vouched_for(ctx, row)
    _require_signed_in(ctx, app, row, seen.last_seen_at, now)
    return LinkedVoter(
        voter_from_person(person), row, bool(seen.groups) and not person.groups, seen.groups_at
    )


def require_still_linked(
    conn: Connection, ctx: Context, app: SlackApp, team_id: str, user_id: str, voter: Voter, now: datetime
) -> None:
    """In the unit that counts what somebody said: an unlinking that came first, came first.

    Raises:
        ForbiddenError: not_eligible, because this account is not theirs any more, or may not act.
    """
    now_is = voter_for_account(conn, ctx, app, team_id, user_id, now).voter
    if (now_is.key, now_is.assurance) != (voter.key, voter.assurance):
        raise _refused("this Slack account was linked anew a moment ago; look again and decide anew")


def _require_vouched_for(ctx: Context, row: SlackLinkRow) -> None:
    if row.assurance == "dev":
        if not ctx.settings.dev_signin:
            raise _refused(
                "this Slack account was linked through the development sign-in, which is off; sign in with your "
                f"provider and link it again: {COMMAND}"
            )
    elif row.trust not in {provider.trust for provider in ctx.settings.providers}:
        raise _refused(
            "the provider you had signed in with when you linked this Slack account no longer vouches for people here, "
            f"or is asked for more; sign in and link it again: {COMMAND}"
        )


def _require_signed_in(
    ctx: Context, app: SlackApp, row: SlackLinkRow, last_seen_at: datetime, now: datetime
) -> None:
    url = f"{ctx.settings.public_url}/sign-in"
    if row.signed_out_at is not None and last_seen_at <= row.signed_out_at:
        raise _refused(
            "your provider has signed you out everywhere; sign in on the web once, then decide here again",
            url=url,
        )
    if now - last_seen_at >= timedelta(days=app.signed_in_within_days):
        raise _refused(
            f"you have not signed in for {app.signed_in_within_days} days; sign in on the web once, then decide here "
            "again",
            url=url,
        )


def _refused(why: str, **extras: str) -> ForbiddenError:
    return ForbiddenError(why, code=ErrorCode.NOT_ELIGIBLE, **extras)
