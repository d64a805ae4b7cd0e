"""Inviting: a secret that only one account is shown, and that joins it to whoever uses it.

Rules kept here: 256 random bits, stored hashed, over after minutes, spent by one conditional statement, and the only
one of its account: a newer one ends it. None of it is a line in the log: whoever can write in Slack could fill the log
with them.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, delete
from sqlmodel import col

from countersign.contract import ErrorCode
from policy_service.errors import InvalidRequestError
from policy_service.identity.sessions import hashed
from policy_service.queries.context import Context
from policy_service.slack import SlackApp
from policy_service.storage.alone import stop
from policy_service.storage.core import find_one, insert_row, table
from policy_service.storage.database import Tx
from policy_service.storage.slack_tables import SlackInvitationRow
from policy_service.workflow.slack.accounts import Account, require_member

COMMAND: Final = "/countersign link"
"""What somebody writes in Slack to be shown an invitation."""

_BYTES = 32
_LONGEST_NAME = 80  # characters, as Slack itself allows


@dataclass(frozen=True, slots=True)
class Invitation:
    """A live invitation, as the page names it that asks whether to take it."""

    team_id: str
    user_id: str
    account: str
    email: str | None
    expires_at: datetime


async def invite(ctx: Context, app: SlackApp, account: Account) -> str:
    """The address that joins this account to whoever opens it signed in; to be shown to this account alone.

    Raises:
        ForbiddenError: not_eligible; it is no full member's of the workspace.
    """
    require_member(app, account)
    secret = secrets.token_urlsafe(_BYTES)
    await ctx.db.write(lambda tx: _invite(tx, app, account, secret))
    return f"{ctx.settings.public_url}/slack/link?invitation={secret}"


def _invite(tx: Tx, app: SlackApp, account: Account, secret: str) -> None:
    alone_with_account(tx, account.team_id, account.user_id)
    older = (
        col(SlackInvitationRow.team_id) == account.team_id,
        col(SlackInvitationRow.user_id) == account.user_id,
    )
    tx.conn.execute(delete(SlackInvitationRow).where(*older))
    row = SlackInvitationRow(
        secret_hash=hashed(secret),
        team_id=account.team_id,
        user_id=account.user_id,
        account=account.name[:_LONGEST_NAME] or account.user_id,
        email=account.email or None,
        created_at=tx.now,
        expires_at=tx.now + timedelta(minutes=app.link_minutes),
    )
    insert_row(tx.conn, row)


async def invitation_of(ctx: Context, secret: str) -> Invitation | None:
    """A live invitation, or None for one that is unknown, used, replaced or too old. Changes nothing."""
    row = await ctx.db.read(lambda conn: _invitation(conn, secret))
    if row is None or row.used_at is not None or ctx.clock() >= row.expires_at:
        return None
    return Invitation(row.team_id, row.user_id, row.account, row.email, row.expires_at)


def _invitation(conn: Connection, secret: str) -> SlackInvitationRow | None:
    return find_one(conn, SlackInvitationRow, secret_hash=hashed(secret))


def require_live(tx: Tx, app: SlackApp, secret: str) -> SlackInvitationRow:
    """The invitation of this secret, while it is not over. Whether it was used before, `spend` finds.

    Raises:
        InvalidRequestError: bad_token (unknown or replaced), expired_token.
    """
    row = _invitation(tx.conn, secret)
    if row is None or row.team_id != app.team_id:
        raise _no_invitation()
    if tx.now >= row.expires_at:
        raise InvalidRequestError(
            f"this link is too old; ask Slack for another: {COMMAND}", code=ErrorCode.EXPIRED_TOKEN
        )
    return row


def spend(tx: Tx, invitation: SlackInvitationRow) -> None:
    """Use it: one conditional statement decides between two at once, and against one that was replaced.

    Raises:
        InvalidRequestError: bad_token; somebody used or replaced it a moment ago.
    """
    own = col(SlackInvitationRow.secret_hash) == invitation.secret_hash
    spent = table(SlackInvitationRow).update().where(own, col(SlackInvitationRow.used_at).is_(None))
    if tx.conn.execute(spent.values(used_at=tx.now)).rowcount != 1:
        raise _no_invitation()


def _no_invitation() -> InvalidRequestError:
    return InvalidRequestError(
        f"this link is unknown, was used, or a newer one took its place; ask Slack for another: {COMMAND}",
        code=ErrorCode.BAD_TOKEN,
    )


def alone_with_account(tx: Tx, team_id: str, user_id: str) -> None:
    """Of the units that change what an account is, one runs at a time. Asked for before its person is acted for."""
    stop(tx, f"slack {team_id} {user_id}")
