"""Step-up: a person proves, for one vote, that it is them, by a passkey.

A step-up begins with a nonce (a row) for exactly one review, person and session. The passkey signs

    challenge = SHA-256("countersign/step-up/v1\\n" + JCS({review, rev, txn_digest, effect_digest, view_digest, person,
                                                          verdict, nonce}))

and the vote comes with the answer. Numbered as they run when it does:

1. the nonce is spent, in a commit of its own: whatever follows, it is worth nothing any more;
2. it was for this review, this person, this session, and not older than its minutes;
3. the answer is by a passkey of this person that counts now;
4. it is to the challenge of exactly this vote, for this RP id and origin, the person present and verified;
5. the passkey's counter has risen; one that has not is refused and told to the operator;
6. in the vote's own unit: the passkey is still there, and its counter is what was compared.

What was signed stays with the vote, so that anybody can verify it without this database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from countersign.contract import ErrorCode
from policy_service.errors import ForbiddenError
from policy_service.identity.passkeys import (
    SpentChallenge,
    active_passkeys,
    counter_regressed,
    find_passkey,
    is_active,
    issue_challenge,
    record_use,
    report_counter_regression,
    require_matching_challenge,
    spend_challenge,
    step_up_error,
)
from policy_service.identity.sessions import Session
from policy_service.identity.webauthn import (
    Assertion,
    RelyingParty,
    WebAuthnVerificationError,
    authentication_options,
    read_assertion,
    step_up_challenge,
    verify_assertion,
)
from policy_service.queries.context import Context
from policy_service.settings import Settings
from policy_service.storage.core import insert_row
from policy_service.storage.database import Tx
from policy_service.storage.system_tables import AssertionRow, PasskeyRow

PASSKEY = "passkey"


@dataclass(frozen=True, slots=True)
class StepUpProof:
    """What came with a vote: the nonce, the passkey's answer as the browser wrote it, and the session it came in."""

    nonce: str
    answer: str
    session: str


@dataclass(frozen=True, slots=True)
class VerifiedStepUp:
    """A proof that held, with what it was held against."""

    passkey: PasskeyRow
    assertion: Assertion
    counter: int
    signed: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StepUpChallenge:
    """What a browser is to ask a passkey."""

    nonce: str
    options: str  # JSON for navigator.credentials.get


def relying_party(settings: Settings) -> RelyingParty:
    """Whom passkeys are bound to.

    Raises:
        ForbiddenError: step_up_required; this deployment has an address that no passkey can be bound to.
    """
    if settings.rp_id is None:
        raise ForbiddenError(
            f"passkeys are bound to a name, and this service is at {settings.public_url}: its operator has to set "
            "public_url to one with a name, for example http://localhost:8420 on one's own machine",
            code=ErrorCode.STEP_UP_REQUIRED,
        )
    return RelyingParty(settings.rp_id, settings.public_url)


async def begin_step_up(ctx: Context, session: Session, signed: dict[str, Any]) -> StepUpChallenge:
    """Begin a step-up for one vote; ``signed`` are the members of its challenge but for the nonce.

    Raises:
        ForbiddenError: step_up_required; this person has no passkey that counts.
    """
    party = relying_party(ctx.settings)
    person = session.person

    def begin(tx: Tx) -> tuple[str, Sequence[str]]:
        known = [row.credential_id for row in active_passkeys(tx.conn, person.iss, person.sub, tx.now)]
        if not known:
            raise passkey_required_error(ctx.settings)
        about = {"review": signed["review"], "verdict": signed["verdict"]}
        return issue_challenge(tx, session, "vote", about, life_s=ctx.settings.challenge_s), known

    nonce, known = await ctx.db.write(begin)
    challenge = step_up_challenge({**signed, "nonce": nonce})
    return StepUpChallenge(
        nonce, authentication_options(party, challenge, known=known, timeout_s=ctx.settings.challenge_s)
    )


def passkey_required_error(settings: Settings) -> ForbiddenError:
    """The rule asks for a passkey, and this person has none that counts."""
    return ForbiddenError(
        f"every gate you serve asks for a passkey, and you have none that counts yet; enrol one at "
        f"{settings.public_url}/passkeys",
        code=ErrorCode.STEP_UP_REQUIRED,
    )


async def verify_step_up(ctx: Context, proof: StepUpProof, signed: dict[str, Any]) -> VerifiedStepUp:
    """That a person's passkey signed exactly this vote; ``signed`` are the members of the challenge but for the nonce.

    Raises:
        ForbiddenError: step_up_required, with what did not hold.
    """
    party = relying_party(ctx.settings)
    try:
        assertion = read_assertion(proof.answer)
    except WebAuthnVerificationError as error:
        raise step_up_error(str(error)) from error

    def take(tx: Tx) -> tuple[SpentChallenge | None, PasskeyRow | None]:
        return spend_challenge(tx, proof.nonce), find_passkey(tx.conn, assertion.credential_id)

    spent, passkey = await ctx.db.write(take)  # 1
    now = ctx.clock()
    spent = require_matching_challenge(spent, "vote", signed["person"], proof.session, now)  # 2
    if spent.about != {"review": signed["review"], "verdict": signed["verdict"]}:
        raise step_up_error("this confirmation was begun for another review, or for another answer")
    if passkey is None or f"{passkey.iss}|{passkey.sub}" != signed["person"]:  # 3
        raise step_up_error("this passkey is not one of yours")
    if not is_active(passkey, now):
        raise step_up_error(
            "this passkey does not count: it was removed, or it is too new and no older one vouched for it"
        )
    members = {**signed, "nonce": proof.nonce}
    try:
        counter = verify_assertion(party, step_up_challenge(members), assertion, passkey.public_key)  # 4
    except WebAuthnVerificationError as error:
        raise step_up_error(str(error)) from error
    if counter_regressed(passkey, counter):  # 5
        await ctx.db.write(lambda tx: report_counter_regression(tx, passkey, counter))
        raise step_up_error("this passkey's counter went back, as a copy's would; the operator was told")
    return VerifiedStepUp(passkey, assertion, counter, members)


def record_passkey_use(tx: Tx, proven: VerifiedStepUp) -> None:
    """Note, in the vote's own unit, that the passkey was used.

    Raises:
        ForbiddenError: step_up_required; it was removed or used in the meantime.
    """
    record_use(tx, proven.passkey, proven.counter)  # 6


def store_assertion(tx: Tx, vote_id: str, proven: VerifiedStepUp) -> None:
    """Store what was signed with the vote it was signed for."""
    row = AssertionRow(
        vote_id=vote_id,
        passkey_id=proven.passkey.passkey_id,
        credential_id=proven.assertion.credential_id,
        public_key=proven.passkey.public_key,
        authenticator_data=proven.assertion.authenticator_data,
        client_data=proven.assertion.client_data,
        signature=proven.assertion.signature,
        signed=proven.signed,
        made_at=tx.now,
    )
    insert_row(tx.conn, row)
