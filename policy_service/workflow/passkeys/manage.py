"""Passkey management by their owner: list, add, remove.

The rules protect against an attacker who has a stolen session and nothing else:

- The first passkey needs a fresh sign-in at the provider. It is trusted on first use, and counts at once.
- After that, every change needs an assertion by a passkey that counts: an older passkey vouches for a new one.
- A passkey that replaces lost ones has no older one to vouch for it. It needs a fresh sign-in and counts only after a
  waiting time, in which every session of the person shows that it was added.
- A passkey that does not count yet can be removed with a fresh sign-in alone, so a warned person can act.
- Adding a passkey without a voucher replaces the session's cookie. Anyone else with the old cookie is signed out, so
  that a stolen session cannot be kept unnoticed.
- Every change is audited, and shown in the person's other sessions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, TypeAlias

from countersign.contract import ErrorCode
from policy_service.errors import ForbiddenError
from policy_service.identity import passkeys
from policy_service.identity.passkeys import (
    SpentChallenge,
    challenge_bytes,
    issue_challenge,
    require_matching_challenge,
    spend_challenge,
    step_up_error,
)
from policy_service.identity.sessions import Session, hash_secret, rotate_cookie
from policy_service.identity.webauthn import (
    RegisteredCredential,
    WebAuthnVerificationError,
    authentication_options,
    read_assertion,
    registration_options,
    verify_assertion,
    verify_registration,
)
from policy_service.queries.context import Context
from policy_service.storage.database import Tx
from policy_service.storage.system_tables import PasskeyRow
from policy_service.workflow.passkeys.step_up import relying_party
from policy_service.workflow.transitions import person_actor

Kind: TypeAlias = Literal["create", "get"]


@dataclass(frozen=True, slots=True)
class PasskeyLine:
    """One passkey on the page of its owner."""

    passkey_id: str
    name: str
    created_at: datetime
    last_used_at: datetime | None
    counts_from: datetime | None  # None: it counts
    vouched: bool


@dataclass(frozen=True, slots=True)
class PasskeyPage:
    """The page of a person's passkeys. ``cannot``: why this deployment supports none."""

    lines: tuple[PasskeyLine, ...]
    fresh: bool  # they have just signed in
    vouchable: bool  # one of them counts, so every change requires it
    cannot: str | None = None


@dataclass(frozen=True, slots=True)
class Ceremony:
    """What the browser must request from an authenticator next."""

    kind: Kind
    nonce: str
    options: str  # JSON for navigator.credentials
    heading: str
    text: str


@dataclass(frozen=True, slots=True)
class RenewedSession:
    """The change is complete, and the session has this new cookie, whose value is returned once."""

    cookie: str


async def passkey_page(ctx: Context, session: Session) -> PasskeyPage:
    """A person's passkeys."""
    person, now = session.person, ctx.clock()
    rows = await ctx.db.read(lambda conn: passkeys.passkeys_of(conn, person.iss, person.sub))
    lines = tuple(_passkey_line(row, now) for row in rows if row.removed_at is None)
    cannot = None
    try:
        relying_party(ctx.settings)
    except ForbiddenError as error:
        cannot = error.detail
    return PasskeyPage(
        lines, _is_fresh(ctx, session, now), any(not line.counts_from for line in lines), cannot
    )


def _passkey_line(row: PasskeyRow, now: datetime) -> PasskeyLine:
    waits = None if passkeys.is_active(row, now) else row.counts_from
    return PasskeyLine(
        row.passkey_id, row.name, row.created_at, row.last_used_at, waits, row.vouched_by is not None
    )


async def begin_adding(ctx: Context, session: Session, name: str) -> Ceremony:
    """Begin to add a passkey, vouched for by an older one if one counts.

    Raises:
        InvalidRequestError: the name is not valid.
        ConflictError: the person has the maximum number.
        ForbiddenError: step_up_required; it takes a fresh sign-in.
    """
    relying_party(ctx.settings)
    name = passkeys.require_passkey_name(name)

    def begin(tx: Tx) -> Ceremony:
        person = session.person
        passkeys.require_passkey_capacity(tx.conn, person.iss, person.sub)
        if passkeys.active_passkeys(tx.conn, person.iss, person.sub, tx.now):
            return _request_assertion(tx, ctx, session, {"do": "add", "name": name})
        _require_fresh(ctx, session, tx.now)
        return _request_registration(tx, ctx, session, name, vouched_by=None)

    return await ctx.db.write(begin)


async def begin_removing(ctx: Context, session: Session, passkey_id: str) -> Ceremony | None:
    """Begin to remove a passkey; None if it was removed at once, because it did not count and the sign-in is fresh.

    Raises:
        NotFoundError: the person has none of that id.
        ForbiddenError: step_up_required; it takes a fresh sign-in.
    """

    def begin(tx: Tx) -> Ceremony | None:
        person, row = session.person, passkeys.own_passkey(tx.conn, session, passkey_id)
        if not passkeys.is_active(row, tx.now) and _is_fresh(ctx, session, tx.now):
            _remove(tx, session, row)
            return None
        if passkeys.active_passkeys(tx.conn, person.iss, person.sub, tx.now):
            return _request_assertion(
                tx, ctx, session, {"do": "remove", "passkey_id": passkey_id, "name": row.name}
            )
        _require_fresh(ctx, session, tx.now)
        raise step_up_error("this passkey started to count a moment ago")

    return await ctx.db.write(begin)


async def finish_ceremony(
    ctx: Context, session: Session, nonce: str, answer: str
) -> Ceremony | RenewedSession | None:
    """Process an authenticator's response: the next ceremony, the renewed session, or None if all is done.

    Raises:
        ForbiddenError: step_up_required: the response proves nothing.
        ConflictError: this device is enrolled already.
    """
    spent = await ctx.db.write(lambda tx: spend_challenge(tx, nonce))
    if spent is not None and spent.purpose == "enrol":
        return await _finish_enrolment(ctx, session, spent, nonce, answer)
    spent = require_matching_challenge(spent, "vouch", session.person.key, session.key, ctx.clock())
    older = await _vouching(ctx, session, nonce, answer)
    return await ctx.db.write(lambda tx: _vouched(tx, ctx, session, older, spent))


def _vouched(
    tx: Tx, ctx: Context, session: Session, older: tuple[PasskeyRow, int], spent: SpentChallenge
) -> Ceremony | None:
    passkey, counter = older
    passkeys.record_use(tx, passkey, counter)
    if spent.about["do"] == "add":
        return _request_registration(tx, ctx, session, spent.about["name"], vouched_by=passkey.passkey_id)
    _remove(tx, session, passkeys.own_passkey(tx.conn, session, spent.about["passkey_id"]))
    return None


async def _finish_enrolment(
    ctx: Context, session: Session, spent: SpentChallenge, nonce: str, answer: str
) -> RenewedSession | None:
    require_matching_challenge(spent, "enrol", session.person.key, session.key, ctx.clock())
    try:
        credential = verify_registration(relying_party(ctx.settings), challenge_bytes(nonce), answer)
    except WebAuthnVerificationError as error:
        raise step_up_error(str(error)) from error
    return await ctx.db.write(lambda tx: _enrol(tx, ctx, session, credential, spent))


def _enrol(
    tx: Tx, ctx: Context, session: Session, credential: RegisteredCredential, spent: SpentChallenge
) -> RenewedSession | None:
    person, vouched_by = session.person, spent.about["vouched_by"]
    passkeys.require_passkey_capacity(tx.conn, person.iss, person.sub)
    if vouched_by is None and passkeys.active_passkeys(tx.conn, person.iss, person.sub, tx.now):
        raise step_up_error("you enrolled another passkey meanwhile: let it vouch for this one")
    if vouched_by is not None:
        passkeys.own_passkey(tx.conn, session, vouched_by)  # raises if it was removed meanwhile
    wait_s, renewed = ctx.settings.passkey_wait_s, None
    if vouched_by is None:
        renewed = RenewedSession(rotate_cookie(tx, session))
        session = replace(session, key=hash_secret(renewed.cookie))
    passkeys.enrol_passkey(tx, session, credential, spent.about["name"], vouched_by=vouched_by, wait_s=wait_s)
    return renewed


async def _vouching(ctx: Context, session: Session, nonce: str, answer: str) -> tuple[PasskeyRow, int]:
    """The person's passkey that made the assertion, and its counter."""
    try:
        assertion = read_assertion(answer)
        row = await ctx.db.read(lambda conn: passkeys.find_passkey(conn, assertion.credential_id))
        if row is None or (row.iss, row.sub) != (session.person.iss, session.person.sub):
            raise step_up_error("this passkey is not one of yours")
        if not passkeys.is_active(row, ctx.clock()):
            raise step_up_error("this passkey does not count")
        counter = verify_assertion(
            relying_party(ctx.settings), challenge_bytes(nonce), assertion, row.public_key
        )
    except WebAuthnVerificationError as error:
        raise step_up_error(str(error)) from error
    if passkeys.counter_regressed(row, counter):
        await ctx.db.write(lambda tx: passkeys.report_counter_regression(tx, row, counter))
        raise step_up_error(
            "this passkey's counter went back, which suggests a copy; the operator was alerted"
        )
    return row, counter


def _request_assertion(tx: Tx, ctx: Context, session: Session, about: dict[str, Any]) -> Ceremony:
    person, life_s = session.person, ctx.settings.challenge_s
    known = [row.credential_id for row in passkeys.active_passkeys(tx.conn, person.iss, person.sub, tx.now)]
    nonce = issue_challenge(tx, session, "vouch", about, life_s=life_s)
    options = authentication_options(
        relying_party(ctx.settings), challenge_bytes(nonce), known=known, timeout_s=life_s
    )
    doing = "add a passkey" if about["do"] == "add" else f"remove “{about['name']}”"
    return Ceremony(
        "get",
        nonce,
        options,
        f"Confirm that you want to {doing}",
        "One of your existing passkeys must confirm this, so that a stolen session is not enough.",
    )


def _request_registration(
    tx: Tx, ctx: Context, session: Session, name: str, *, vouched_by: str | None
) -> Ceremony:
    person, life_s = session.person, ctx.settings.challenge_s
    nonce = issue_challenge(tx, session, "enrol", {"name": name, "vouched_by": vouched_by}, life_s=life_s)
    live = [row for row in passkeys.passkeys_of(tx.conn, person.iss, person.sub) if row.removed_at is None]
    options = registration_options(
        relying_party(ctx.settings),
        challenge_bytes(nonce),
        handle=passkeys.user_handle(person.iss, person.sub),
        name=person.name,
        known=[row.credential_id for row in live],
        timeout_s=life_s,
    )
    text = "Your browser will ask where to keep it: this device, a phone or a security key."
    return Ceremony("create", nonce, options, f"Make the passkey “{name}”", text)


def _remove(tx: Tx, session: Session, row: PasskeyRow) -> None:
    actor = person_actor(session.person.iss, session.person.sub)
    passkeys.remove_passkey(tx, row, by=session.key, actor=actor)


def _is_fresh(ctx: Context, session: Session, now: datetime) -> bool:
    return (
        session.auth_at is not None and (now - session.auth_at).total_seconds() < ctx.settings.fresh_sign_in_s
    )


def _require_fresh(ctx: Context, session: Session, now: datetime) -> None:
    if not _is_fresh(ctx, session, now):
        minutes = ctx.settings.fresh_sign_in_s // 60
        unsaid = "; your provider did not report when you last signed in (auth_time)"
        unknown = unsaid if session.auth_at is None else ""
        raise ForbiddenError(
            f"this requires a sign-in within the last {minutes} minutes: sign in again, then come back here{unknown}",
            code=ErrorCode.STEP_UP_REQUIRED,
        )
