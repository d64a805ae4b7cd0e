"""Who is asked in a direct message: those who said that they want to be, and could decide it."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection

from policy_service.errors import ForbiddenError
from policy_service.queries.cases import Case
from policy_service.queries.context import Context
from policy_service.queries.voter import why_not
from policy_service.slack import SlackApp
from policy_service.storage.core import find
from policy_service.storage.slack_tables import SlackLinkRow
from policy_service.workflow.slack.voters import voter_of


def who_wants(conn: Connection, ctx: Context, app: SlackApp, case: Case, now: datetime) -> list[str]:
    """The accounts, by id."""
    wanting = find(conn, SlackLinkRow, team_id=app.team_id, direct=True)
    return sorted(row.user_id for row in wanting if _could_decide(conn, ctx, app, case, row, now))


def _could_decide(
    conn: Connection, ctx: Context, app: SlackApp, case: Case, row: SlackLinkRow, now: datetime
) -> bool:
    try:
        linked = voter_of(conn, ctx, app, row.team_id, row.user_id, now)
    except ForbiddenError:
        return False
    bundle = ctx.active.current
    return why_not(ctx, bundle, case.agent, case.review, case.gates, linked.voter, now) is None
