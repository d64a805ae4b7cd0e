"""Slack accounts that are a person's, and the invitations that make them so: the rows, for whoever ends them.

Rules kept here: a link that came back with a restored database is none, for it may have been ended since; what a
provider says of a person's sessions holds for their links too, until they sign in again.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, delete, update
from sqlmodel import col

from policy_service.storage.core import find, find_one
from policy_service.storage.database import Tx
from policy_service.storage.slack_tables import SlackInvitationRow, SlackLinkRow


def slack_link(conn: Connection, team_id: str, user_id: str) -> SlackLinkRow | None:
    """Whose an account is, or None."""
    return find_one(conn, SlackLinkRow, team_id=team_id, user_id=user_id)


def slack_links_of(conn: Connection, iss: str, sub: str) -> list[SlackLinkRow]:
    """The accounts of a person, oldest link first."""
    return _by_age(find(conn, SlackLinkRow, iss=iss, sub=sub))


def every_slack_link(conn: Connection) -> list[SlackLinkRow]:
    """Every account that is linked, oldest link first."""
    return _by_age(find(conn, SlackLinkRow))


def _by_age(rows: list[SlackLinkRow]) -> list[SlackLinkRow]:
    return sorted(rows, key=lambda row: (row.linked_at, row.team_id, row.user_id))


def rest_until_signed_in(tx: Tx, iss: str, sub: str) -> None:
    """Nothing is decided through this person's accounts until they have signed in again."""
    theirs = (col(SlackLinkRow.iss) == iss, col(SlackLinkRow.sub) == sub)
    tx.conn.execute(update(SlackLinkRow).where(*theirs).values(signed_out_at=tx.now))


def end_every_slack_link(tx: Tx) -> None:
    """No account is anybody's any more, and no invitation makes it so."""
    tx.conn.execute(delete(SlackLinkRow))
    tx.conn.execute(delete(SlackInvitationRow))


def forget_invitations(tx: Tx, before: datetime) -> int:
    """Delete invitations that were over before that moment; how many."""
    over = col(SlackInvitationRow.expires_at) < before
    return tx.conn.execute(delete(SlackInvitationRow).where(over)).rowcount
