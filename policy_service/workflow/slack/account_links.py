"""Links between Slack accounts and people: invitations, linking and unlinking.

Rules against someone who would decide in another person's name:

- An invitation is shown only to the account. It links the account to the person who is signed in and confirms, never to
  a person with the same name or address: an account's owner can change those.
- If both email addresses are known and differ, linking is refused unless the settings permit it. Otherwise anyone
  could send an approver their own invitation and then decide in the approver's name.
- An account belongs to one person. It must be unlinked before another person can link it.
- Every change is audited in its unit.
- A stolen session cannot link unnoticed: linking replaces the session's cookie, and other sessions show the link.

Only full members of the app's own workspace are linked. A guest works for someone else, a bot is not a person, and a
shared channel contains people that this workspace's administrators cannot deactivate.

An invitation is 256 random bits, stored hashed, valid for minutes, and used by one conditional statement. A newer one
replaces it. Invitations are not audited, because anyone in Slack could fill the log with them.

A unit locks the account before it acts for its person, so answers to invitations run one after the other.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
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
"""The Slack command that shows an invitation."""

_SECRET_BYTES = 32
_MAX_NAME_LENGTH = 80  # characters, as Slack itself allows


@dataclass(frozen=True, slots=True)
class Account:
    """A Slack account, as the workspace describes it now."""

    team_id: str
    user_id: str
    name: str
    email: str | None  # None if the app may not read it
    deleted: bool
    bot: bool
    guest: bool  # of one channel or of several
    stranger: bool  # of another workspace, through a shared channel


def unverified_account(team_id: str, user_id: str) -> Account:
    """An account that was not looked up in Slack: enough to refuse it, and never permitted to act."""
    return Account(team_id, user_id, user_id, None, deleted=False, bot=False, guest=False, stranger=True)


def require_member(app: SlackApp, account: Account) -> None:
    """Require a full member of this workspace.

    Raises:
        ForbiddenError: not_eligible.
    """
    if (why := _why_not_a_member(app, account)) is not None:
        raise ForbiddenError(why, code=ErrorCode.NOT_ELIGIBLE)


def _why_not_a_member(app: SlackApp, account: Account) -> str | None:
    if account.stranger or account.team_id != app.team_id:
        return (
            "this Slack account is from another workspace, also in a shared channel; sign in on the web if you "
            "should decide here"
        )
    if account.deleted:
        return "this Slack account is deactivated and cannot decide"
    if account.bot:
        return "this Slack account is an app's; only people can decide"
    if account.guest:
        return "this Slack account is a guest, and guests cannot decide through Slack; use the web"
    return None


async def invite(ctx: Context, app: SlackApp, account: Account) -> str:
    """Create the address that links this account to the signed-in person who opens it. Show it to this account only.

    Raises:
        ForbiddenError: not_eligible: it is not a full member of the workspace.
    """
    require_member(app, account)
    secret = secrets.token_urlsafe(_SECRET_BYTES)
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
        account=account.name[:_MAX_NAME_LENGTH] or account.user_id,
        email=account.email or None,
        created_at=tx.now,
        expires_at=tx.now + timedelta(minutes=app.link_minutes),
    )
    insert_row(tx.conn, row)


async def find_invitation(ctx: Context, secret: str) -> SlackInvitationRow | None:
    """A valid invitation, or None if it is unknown, used, replaced or expired. Changes nothing."""
    row = await ctx.db.read(lambda conn: _invitation(conn, secret))
    if row is None or row.used_at is not None or ctx.clock() >= row.expires_at:
        return None
    return row


def _invitation(conn: Connection, secret: str) -> SlackInvitationRow | None:
    return find_one(conn, SlackInvitationRow, secret_hash=hash_secret(secret))


def require_live_invitation(tx: Tx, app: SlackApp, secret: str) -> SlackInvitationRow:
    """The invitation with this secret, if it has not expired. `consume_invitation` finds whether it was used.

    Raises:
        InvalidRequestError: bad_token (unknown or replaced), expired_token.
    """
    row = _invitation(tx.conn, secret)
    if row is None or row.team_id != app.team_id:
        raise _invitation_error()
    if tx.now >= row.expires_at:
        raise InvalidRequestError(
            f"this link has expired; ask Slack for another: {COMMAND}", code=ErrorCode.EXPIRED_TOKEN
        )
    return row


def consume_invitation(tx: Tx, invitation: SlackInvitationRow) -> None:
    """Use an invitation. One conditional statement decides races between two uses, and with a replacement.

    Raises:
        InvalidRequestError: bad_token: it was used or replaced meanwhile.
    """
    own = col(SlackInvitationRow.secret_hash) == invitation.secret_hash
    spent = table(SlackInvitationRow).update().where(own, col(SlackInvitationRow.used_at).is_(None))
    if tx.conn.execute(spent.values(used_at=tx.now)).rowcount != 1:
        raise _invitation_error()


def _invitation_error() -> InvalidRequestError:
    return InvalidRequestError(
        f"this link is unknown, was used, or was replaced by a newer one; ask Slack for another: {COMMAND}",
        code=ErrorCode.BAD_TOKEN,
    )


def lock_account(tx: Tx, team_id: str, user_id: str) -> None:
    """Lock an account against other changes of its link. Take this lock before the person's."""
    lock_exclusive(tx, f"slack {team_id} {user_id}")


@dataclass(frozen=True, slots=True)
class CreatedLink:
    """A link, and the new cookie of its session, whose value is returned once."""

    link: SlackLinkRow
    cookie: str


async def links_of(ctx: Context, iss: str, sub: str) -> list[SlackLinkRow]:
    """The linked accounts of a person, oldest link first."""
    return await ctx.db.read(lambda conn: slack_links_of(conn, iss, sub))


# -- linking ---------------------------------------------------------------------------------------------------------


async def link(ctx: Context, app: SlackApp, secret: str, session: Session) -> CreatedLink:
    """Use an invitation to link its account to the session's person, or to renew the link.

    After a refusal the invitation is still valid, so the person it was meant for can use it.

    Raises:
        InvalidRequestError: bad_token (unknown, used or replaced), expired_token.
        UnauthenticatedError: the session has ended meanwhile.
        ForbiddenError: not_eligible: the person was revoked, or the email addresses differ.
        ConflictError: the account is linked to another person.
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
        raise UnauthenticatedError("this session has ended; sign in again")
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
    renewed = _store_link(tx, row)
    body = {"team": row.team_id, "user": row.user_id, "assurance": row.assurance, "renewed": renewed}
    append(tx, "slack_linked", actor=person_actor(row.iss, row.sub), body=body)
    return CreatedLink(row, cookie)


def _require_same_email(tx: Tx, app: SlackApp, invitation: SlackInvitationRow, iss: str, sub: str) -> None:
    """Refuse different email addresses: two people, or one who was deceived. An unknown address proves nothing."""
    row = find_one(tx.conn, PersonRow, iss=iss, sub=sub)
    theirs = None if row is None else row.email
    if app.other_email or not theirs or not invitation.email:
        return
    if theirs.casefold() != invitation.email.casefold():
        raise ForbiddenError(
            f"the Slack account {invitation.account!r} ({invitation.user_id}) has the e-mail address "
            f"{invitation.email}, and you signed in with {theirs}. The account's owner would decide in your name. "
            "If both are yours, an operator can permit it with other_email in [slack] of the settings",
            code=ErrorCode.NOT_ELIGIBLE,
        )


def _store_link(tx: Tx, row: SlackLinkRow) -> bool:
    """Store the link; whether it was this person's before. Their preference for direct messages stays."""
    existing = slack_link(tx.conn, row.team_id, row.user_id)
    if existing is None:
        insert_row(tx.conn, row)
        return False
    if (existing.iss, existing.sub) != (row.iss, row.sub):
        raise ConflictError(
            f"the Slack account {row.account!r} ({row.user_id}) is linked to another person; they unlink it first "
            "on the page /slack, or an operator with `policy-service slack unlink`"
        )
    row.direct = existing.direct
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


# -- unlinking and preferences -----------------------------------------------------------------------------------------


async def unlink(ctx: Context, team_id: str, user_id: str, *, actor: str, whose: str | None = None) -> bool:
    """Unlink an account; whether it was linked. ``whose``: only if it is linked to this person."""
    existing = await ctx.db.write(lambda tx: unlink_in(tx, team_id, user_id, actor=actor, whose=whose))
    return existing is not None


def unlink_in(
    tx: Tx, team_id: str, user_id: str, *, actor: str, whose: str | None = None, reason: str | None = None
) -> str | None:
    """Unlink an account within a unit; returns its person. Waits for a running unit that decides through the link."""
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
    """Set whether the person also gets direct messages. ``whose``: only if it is linked to this person.

    Raises:
        NotFoundError: the account is not linked, or not to this person.
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
