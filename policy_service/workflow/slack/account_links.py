"""Linking: a Slack account becomes a person's, by their own word on the web, and stops being theirs.

The rules, against somebody who would decide in another's name:

- an invitation, which only the account was shown, joins the account to whoever is signed in and says so, never to whom
  a name or an address points: what Slack tells of an account is its owner's to change;
- where both addresses are known and differ, it is refused unless the settings let it: whoever sends an approver their
  own invitation would decide in that approver's name;
- an account is one person's; for another it is unlinked first;
- each change is a line in the log, in the unit that makes it;
- whoever holds a stolen session keeps nothing by it in silence: linking gives the session another cookie, and all other
  sessions of the person say what was linked.

A unit is alone with the account before it acts for its person, so that two answers to one invitation, or to two, come
one after the other.

Inviting: a secret that only one account is shown, and that joins it to whoever uses it.

Rules kept here: 256 random bits, stored hashed, over after minutes, spent by one conditional statement, and the only
one of its account: a newer one ends it. None of it is a line in the log: whoever can write in Slack could fill the log
with them.

What Slack says of an account, and which kinds of account are asked nothing.

Only a full member of the app's own workspace is ever linked or heard: a guest is somebody else's employee, a bot is
nobody, and a channel shared with another company holds people whom this one's administrators cannot switch off. What
is read here decides who is refused, never who somebody is: names and addresses are their owner's to change.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, delete
from sqlmodel import col

from countersign.contract import ErrorCode
from policy_service.audit.log import append
from policy_service.errors import (
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    UnauthenticatedError,
)
from policy_service.identity.people import slack_link, slack_links_of
from policy_service.identity.sessions import Session, hash_secret, rotate_cookie
from policy_service.queries.context import Context
from policy_service.slack import SlackApp
from policy_service.storage.advisory_locks import lock_exclusive
from policy_service.storage.core import find_one, insert_row, table, update_rows
from policy_service.storage.credential_tables import SessionRow
from policy_service.storage.database import Tx
from policy_service.storage.slack_tables import SlackInvitationRow, SlackLinkRow
from policy_service.storage.tables import PersonRow
from policy_service.workflow.authorization import require_active_person
from policy_service.workflow.transitions import person_actor

COMMAND: Final = "/countersign link"
"""What somebody writes in Slack to be shown an invitation."""

_BYTES = 32
_LONGEST_NAME = 80  # characters, as Slack itself allows


@dataclass(frozen=True, slots=True)
class Account:
    """An account as the workspace describes it now."""

    team_id: str
    user_id: str
    name: str
    email: str | None  # None: Slack does not tell this app
    deleted: bool
    bot: bool
    guest: bool  # of one channel or of several
    stranger: bool  # seen through a shared channel


def unverified_account(team_id: str, user_id: str) -> Account:
    """An account that Slack was not asked about: enough to tell it why not, and never to let it act."""
    return Account(team_id, user_id, user_id, None, deleted=False, bot=False, guest=False, stranger=True)


def require_member(app: SlackApp, account: Account) -> None:
    """Refuse every account that is no full member's of this workspace.

    Raises:
        ForbiddenError: not_eligible.
    """
    if (why := _why_not(app, account)) is not None:
        raise ForbiddenError(why, code=ErrorCode.NOT_ELIGIBLE)


def _why_not(app: SlackApp, account: Account) -> str | None:
    if account.stranger or account.team_id != app.team_id:
        return (
            "this Slack account is of another workspace, which a shared channel does not change; sign in on the web "
            "if you are to decide here"
        )
    if account.deleted:
        return "this Slack account is deactivated, so it decides nothing"
    if account.bot:
        return "this Slack account is an app's; only people decide"
    if account.guest:
        return "this Slack account is a guest's, and guests decide nothing through Slack; use the web"
    return None


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
    lock_account(tx, account.team_id, account.user_id)
    older = (
        col(SlackInvitationRow.team_id) == account.team_id,
        col(SlackInvitationRow.user_id) == account.user_id,
    )
    tx.conn.execute(delete(SlackInvitationRow).where(*older))
    row = SlackInvitationRow(
        secret_hash=hash_secret(secret),
        team_id=account.team_id,
        user_id=account.user_id,
        account=account.name[:_LONGEST_NAME] or account.user_id,
        email=account.email or None,
        created_at=tx.now,
        expires_at=tx.now + timedelta(minutes=app.link_minutes),
    )
    insert_row(tx.conn, row)


async def find_invitation(ctx: Context, secret: str) -> Invitation | None:
    """A live invitation, or None for one that is unknown, used, replaced or too old. Changes nothing."""
    row = await ctx.db.read(lambda conn: _invitation(conn, secret))
    if row is None or row.used_at is not None or ctx.clock() >= row.expires_at:
        return None
    return Invitation(row.team_id, row.user_id, row.account, row.email, row.expires_at)


def _invitation(conn: Connection, secret: str) -> SlackInvitationRow | None:
    return find_one(conn, SlackInvitationRow, secret_hash=hash_secret(secret))


def require_live_invitation(tx: Tx, app: SlackApp, secret: str) -> SlackInvitationRow:
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


def consume_invitation(tx: Tx, invitation: SlackInvitationRow) -> None:
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


def lock_account(tx: Tx, team_id: str, user_id: str) -> None:
    """Of the units that change what an account is, one runs at a time. Asked for before its person is acted for."""
    lock_exclusive(tx, f"slack {team_id} {user_id}")


@dataclass(frozen=True, slots=True)
class CreatedLink:
    """A link, and what its session goes by from now on: the cookie's value, once."""

    link: SlackLinkRow
    cookie: str


async def links_of(ctx: Context, iss: str, sub: str) -> list[SlackLinkRow]:
    """The accounts of a person, oldest link first."""
    return await ctx.db.read(lambda conn: slack_links_of(conn, iss, sub))


# -- linking ---------------------------------------------------------------------------------------------------------


async def link(ctx: Context, app: SlackApp, secret: str, session: Session) -> CreatedLink:
    """Spend an invitation: its account is this session's person's. For the same person it is renewed.

    A refusal leaves it as it was: nothing was joined, and the person it was meant for may still use it.

    Raises:
        InvalidRequestError: bad_token (unknown, used or replaced), expired_token.
        UnauthenticatedError: the session has ended meanwhile.
        ForbiddenError: not_eligible; the person was revoked, or the address is another one.
        ConflictError: the account is another person's.
    """
    return await ctx.db.write(lambda tx: _link(tx, app, secret, session))


def _link(tx: Tx, app: SlackApp, secret: str, session: Session) -> CreatedLink:
    invitation = require_live_invitation(tx, app, secret)
    lock_account(tx, invitation.team_id, invitation.user_id)
    consume_invitation(tx, invitation)
    person = session.person
    require_active_person(tx, person.iss, person.sub)
    signed_in = find_one(tx.conn, SessionRow, id_hash=session.key)
    if signed_in is None:
        raise UnauthenticatedError("nobody is signed in here any more; sign in again")
    cookie = rotate_cookie(tx, session)
    _require_same_email(tx, app, invitation, person.iss, person.sub)
    row = SlackLinkRow(
        team_id=invitation.team_id,
        user_id=invitation.user_id,
        iss=person.iss,
        sub=person.sub,
        assurance=signed_in.assurance,
        trust=signed_in.trust,
        account=invitation.account,
        linked_at=tx.now,
        linked_by=hash_secret(cookie),
    )
    renewed = _keep(tx, row)
    body = {"team": row.team_id, "user": row.user_id, "assurance": row.assurance, "renewed": renewed}
    append(tx, "slack_linked", actor=person_actor(row.iss, row.sub), body=body)
    return CreatedLink(row, cookie)


def _require_same_email(tx: Tx, app: SlackApp, invitation: SlackInvitationRow, iss: str, sub: str) -> None:
    """Two known addresses that differ are two people, or one who is deceived; one that is unknown says nothing."""
    row = find_one(tx.conn, PersonRow, iss=iss, sub=sub)
    theirs = None if row is None else row.email
    if app.other_email or not theirs or not invitation.email:
        return
    if theirs.casefold() != invitation.email.casefold():
        raise ForbiddenError(
            f"the Slack account {invitation.account!r} ({invitation.user_id}) has the e-mail address "
            f"{invitation.email}, and you signed in with {theirs}: whoever sends you their link would decide in your "
            "name. If both are yours, an operator may allow it with other_email in the settings' [slack]",
            code=ErrorCode.NOT_ELIGIBLE,
        )


def _keep(tx: Tx, row: SlackLinkRow) -> bool:
    """Store the link; whether it was this person's before. Their wish for direct messages stays."""
    was = slack_link(tx.conn, row.team_id, row.user_id)
    if was is None:
        insert_row(tx.conn, row)
        return False
    if (was.iss, was.sub) != (row.iss, row.sub):
        raise ConflictError(
            f"the Slack account {row.account!r} ({row.user_id}) is linked to another person; they unlink it first "
            "on the page /slack, or an operator with `policy-service slack unlink`"
        )
    row.direct = was.direct
    renewed = {
        "assurance": row.assurance,
        "trust": row.trust,
        "account": row.account,
        "linked_at": row.linked_at,
        "linked_by": row.linked_by,
        "signed_out_at": None,
    }
    update_rows(tx.conn, SlackLinkRow, {"team_id": row.team_id, "user_id": row.user_id}, renewed)
    return True


# -- unlinking, and what else a person says of an account ------------------------------------------------------------


async def unlink(ctx: Context, team_id: str, user_id: str, *, actor: str, whose: str | None = None) -> bool:
    """The account is nobody's any more; whether it was somebody's. ``whose``: only if it is that person's."""
    was = await ctx.db.write(lambda tx: unlink_in(tx, team_id, user_id, actor=actor, whose=whose))
    return was is not None


def unlink_in(
    tx: Tx, team_id: str, user_id: str, *, actor: str, whose: str | None = None, reason: str | None = None
) -> str | None:
    """The same in a unit that is open; whose it was. Whoever decides through it just now is waited for; later, nobody
    does.
    """
    lock_account(tx, team_id, user_id)
    row = slack_link(tx.conn, team_id, user_id)
    if row is None or whose not in {None, row.person}:
        return None
    lock_exclusive(tx, row.person)
    account = (col(SlackLinkRow.team_id) == team_id, col(SlackLinkRow.user_id) == user_id)
    tx.conn.execute(delete(SlackLinkRow).where(*account))
    body = {"team": team_id, "user": user_id, "person": row.person}
    append(tx, "slack_unlinked", actor=actor, body=body if reason is None else body | {"reason": reason})
    return body["person"]


async def set_direct(
    ctx: Context, team_id: str, user_id: str, wanted: bool, *, whose: str | None = None
) -> None:
    """Ask this account's person in direct messages too, or not. ``whose``: only if it is that person's.

    Raises:
        NotFoundError: the account is not linked, or not to them.
    """
    await ctx.db.write(lambda tx: _set_direct(tx, team_id, user_id, wanted, whose))


def _set_direct(tx: Tx, team_id: str, user_id: str, wanted: bool, whose: str | None) -> None:
    lock_account(tx, team_id, user_id)
    row = slack_link(tx.conn, team_id, user_id)
    if row is None or whose not in {None, row.person}:
        raise NotFoundError(f"the Slack account {user_id!r} is not linked; link it with {COMMAND}")
    if row.direct == wanted:
        return
    update_rows(tx.conn, SlackLinkRow, {"team_id": team_id, "user_id": user_id}, {"direct": wanted})
    body = {"team": team_id, "user": user_id, "wanted": wanted}
    append(tx, "slack_direct", actor=person_actor(row.iss, row.sub), body=body)
