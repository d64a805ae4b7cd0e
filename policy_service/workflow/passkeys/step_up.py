"""Step-up: a person proves with a passkey that one vote is theirs.

A step-up begins with a nonce, stored for one review, person and session. The passkey signs

    challenge = SHA-256("countersign/step-up/v1\\n" + JCS({review, rev, txn_digest, effect_digest, view_digest, person,
                                                          verdict, nonce}))

and the vote carries the assertion. It is verified in these steps:

1. The nonce is spent, in a commit of its own, so it can never be used again, even if a later step fails.
2. The nonce must be for this review, person and session, and not expired.
3. The passkey must be this person's and count now.
4. The assertion must be over the challenge of exactly this vote, for this RP id and origin, with user presence and
   verification.
5. The signature counter must have risen. Otherwise the assertion is refused and the operator is alerted.
6. In the vote's unit: the passkey must still exist, with the counter that was compared.

The signed data is stored with the vote, so anyone can verify it without this database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from countersign.contract import ErrorCode
from policy_service.errors import ForbiddenError
from policy_service.identity.origin import relying_party_id
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
    """The step-up sent with a vote: the nonce, the assertion as the browser encodes it, and the session."""

    nonce: str
    answer: str
    session: str


@dataclass(frozen=True, slots=True)
class VerifiedStepUp:
    """A verified step-up, with the data that was verified."""

    passkey: PasskeyRow
    assertion: Assertion
    counter: int
    signed: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StepUpChallenge:
    """What a browser needs to request an assertion."""

    nonce: str
    options: str  # JSON for navigator.credentials.get


def relying_party(settings: Settings) -> RelyingParty:
    """The WebAuthn relying party of this deployment.

    Raises:
        ForbiddenError: step_up_required: no passkey can be bound to this deployment's address.
    """
    rp_id = relying_party_id(settings.public_url)
    if rp_id is None:
        raise ForbiddenError(
            f"passkeys are bound to a domain name, and this service is at {settings.public_url}: its operator must set "
            "public_url to an address with a name, for example http://localhost:8420 on a local machine",
            code=ErrorCode.STEP_UP_REQUIRED,
        )
    return RelyingParty(rp_id, settings.public_url)


async def begin_step_up(ctx: Context, session: Session, signed: dict[str, Any]) -> StepUpChallenge:
    """Begin a step-up for one vote. ``signed`` are the members of its challenge except the nonce.

    Raises:
        ForbiddenError: step_up_required: the person has no passkey that counts.
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
    """403 step_up_required, for a person without a passkey that counts."""
    return ForbiddenError(
        f"every gate you may vote on requires a passkey, and you have none that counts yet; enroll one at "
        f"{settings.public_url}/passkeys",
        code=ErrorCode.STEP_UP_REQUIRED,
    )


async def verify_step_up(ctx: Context, proof: StepUpProof, signed: dict[str, Any]) -> VerifiedStepUp:
    """Verify that a person's passkey signed exactly this vote. ``signed``: the challenge without its nonce.

    Raises:
        ForbiddenError: step_up_required, with the check that failed.
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
        raise step_up_error("this confirmation was begun for another review or verdict")
    if passkey is None or f"{passkey.iss}|{passkey.sub}" != signed["person"]:  # 3
        raise step_up_error("this passkey is not one of yours")
    if not is_active(passkey, now):
        raise step_up_error(
            "this passkey does not count: it was removed, or is too new and no older passkey vouched for it"
        )
    members = {**signed, "nonce": proof.nonce}
    try:
        counter = verify_assertion(party, step_up_challenge(members), assertion, passkey.public_key)  # 4
    except WebAuthnVerificationError as error:
        raise step_up_error(str(error)) from error
    if counter_regressed(passkey, counter):  # 5
        await ctx.db.write(lambda tx: report_counter_regression(tx, passkey, counter))
        raise step_up_error(
            "this passkey's counter went back, which suggests a copy; the operator was alerted"
        )
    return VerifiedStepUp(passkey, assertion, counter, members)


def record_passkey_use(tx: Tx, proven: VerifiedStepUp) -> None:
    """Record the use of the passkey, in the vote's unit.

    Raises:
        ForbiddenError: step_up_required: it was removed or used meanwhile.
    """
    record_use(tx, proven.passkey, proven.counter)  # 6


def store_assertion(tx: Tx, vote_id: str, proven: VerifiedStepUp) -> None:
    """Store the signed data with its vote."""
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
