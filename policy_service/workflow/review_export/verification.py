"""Verify an exported review without the service and its database. Pure: a file in, a report out.

Each fault names its step:

1. The file has the known format, with every member once and no other.
2. The seal is this service's signature over exactly this content.
3. The effect's digests follow from its bytes, its id from its transaction and call key, and the transaction's digest
   from its list, which contains the effect at its position.
4. Every view's digest follows from its material, which is about this review, revision and these digests.
5. Every vote is on this revision and these digests, and on a view in the file. No approval and no break-glass signature
   is on a page with folded arguments.
6. Every vote that claims a passkey has an assertion. Its challenge is made of exactly this vote, and the public key
   verifies it, for this origin and RP id, with user presence and verification. No nonce or assertion is used twice.
7. Each key belongs to one person.
8. A person with pinned keys used one of them.
9. The gates are met, released by break-glass, or denied, as the review says, counted by the domain's own rules, without
   the requester's side.

The report also lists what no file can prove: who owns a key, and who was in which group at what time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from countersign.contract import ContractError, Effect, KeySet, PublicKey, VerificationError, open_token
from countersign.contract.digests import txn_digest
from countersign.contract.effect import Compensation, Resource
from countersign.contract.keys import decode_base64url
from policy_service.domain.gates import Gate, merge
from policy_service.domain.person_actions import BREAK_GLASS
from policy_service.domain.quorum import BallotVote, BreakGlassSignature, Tally, break_glass_approval, tally
from policy_service.identity.webauthn import (
    Assertion,
    RelyingParty,
    WebAuthnVerificationError,
    key_digest,
    step_up_challenge,
    verify_assertion,
)
from policy_service.queries.view_digest import CHANNELS_REQUIRING_VIEW, RenderedView, folded_args
from policy_service.tokens.signer import TYP_EXPORT
from policy_service.workflow.passkeys.step_up import PASSKEY
from policy_service.workflow.review_export.export import FORMAT, content_digest

_MALFORMED = (ContractError, ValueError, LookupError, TypeError, AttributeError)
_CONTENT = frozenset(
    "deployment review effect transaction requesters gates votes views decisions redemption".split()
)
_VERDICTS = ("approve", "deny", BREAK_GLASS)


class _Fault(Exception):
    """A failed check."""


@dataclass(frozen=True, slots=True)
class VerificationInput:
    """What the verifier knows independently of the file."""

    pins: Mapping[str, frozenset[str]] = field(default_factory=dict)  # key digests by person
    origin: str | None = None
    keys: KeySet | None = None  # the keys of the deployment


@dataclass
class VerificationReport:
    """What is proven, what must be trusted, and the faults."""

    proven: list[str] = field(default_factory=list)
    trusted: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether there are no faults."""
        return not self.faults and bool(self.proven)


def verify(raw: bytes, given: VerificationInput | None = None) -> VerificationReport:
    """Verify a file."""
    given, report = given or VerificationInput(), VerificationReport()
    try:
        document = json.loads(raw.decode(), object_pairs_hook=_unique_members)
        if document["format"] != FORMAT or document.keys() != {"format", "content", "seal", "jwk"}:
            raise _Fault(f"the file is not of the format {FORMAT}")
        content: dict[str, Any] = document["content"]
        if content.keys() != _CONTENT:
            raise _Fault("the content does not have exactly the members of this format")
    except (_Fault, RecursionError, *_MALFORMED) as error:
        report.faults.append(f"step 1: {error}")
        return report
    steps: tuple[tuple[int, Callable[[], None]], ...] = (
        (2, lambda: _seal(document, content, given, report)),
        (3, lambda: _bytes(content, report)),
        (4, lambda: _views(content, report)),
        (5, lambda: _votes(content, report)),
        (6, lambda: _passkeys(content, given, report)),
        (7, lambda: _unshared_keys(content, report)),
        (8, lambda: _pins(content, given, report)),
        (9, lambda: _gates(content, report)),
    )
    for number, step in steps:
        try:
            step()
        except (_Fault, VerificationError, *_MALFORMED) as error:
            text = str(error) if isinstance(error, _Fault) else f"{type(error).__name__}: {error}"
            report.faults.append(f"step {number}: {text}")
    _report_trusted(content, report)
    return report


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Fault("a member is there twice")
    return found


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _Fault(otherwise)


def _seal(
    document: dict[str, Any], content: dict[str, Any], given: VerificationInput, report: VerificationReport
) -> None:
    own = PublicKey.from_jwk(document["jwk"])
    keys = given.keys if given.keys is not None else KeySet([own])
    opened = open_token(document["seal"], typ=TYP_EXPORT, key_for=keys.get)
    claims = opened.claims
    _require(opened.kid == own.kid, "the key in the file is not the one that sealed it")
    _require(claims["digest"] == content_digest(content), "the seal is over another content")
    _require(claims["sub"] == content["review"]["review_id"], "the seal is of another review")
    _require(claims["iss"] == content["deployment"]["iss"], "the seal is of another deployment")
    report.proven.append(f"the content is as the key {own.kid} sealed it")
    if given.keys is None:
        report.trusted.append(f"that the key {own.kid} is {content['deployment']['iss']}'s (give --jwks)")


def _bytes(content: dict[str, Any], report: VerificationReport) -> None:
    stored, listed = content["effect"], content["transaction"]["effects"]
    _require(
        txn_digest(effect_digests=listed) == content["transaction"]["txn_digest"],
        "the transaction's digest is not that of its effects",
    )
    if stored["kind"] == "effect":
        place = stored["seq"]
        _require(
            type(place) is int and place > 0 and listed[place - 1] == stored["effect_digest"],
            "the effect is not in its transaction at its place",
        )
    if stored["args"] is None:
        report.trusted.append(f"that the arguments, which hold secrets, are those of {stored['args_digest']}")
        return
    undo = stored["compensation"]
    effect = Effect(
        agent=stored["agent"],
        txn=stored["txn"],
        effect_id=stored["effect_id"],
        seq=stored["seq"],
        tool=stored["tool"],
        tool_digest=stored["tool_digest"],
        resource=Resource(**stored["resource"]),
        args_bytes=stored["args"].encode(),
        call_key=stored["call_key"],
        compensation=None if undo is None else Compensation(**undo),
    )
    _require(effect.args_digest == stored["args_digest"], "the args are not those of their digest")
    _require(effect.digest == stored["effect_digest"], "the effect is not that of its digest")
    report.proven.append(f"{stored['tool']} with exactly these arguments is the effect {effect.digest}")
    report.proven.append(f"it is part of the transaction {content['transaction']['txn_digest']}")


def _views(content: dict[str, Any], report: VerificationReport) -> None:
    for digest, material in content["views"].items():
        _require(RenderedView(material).digest == digest, f"the view {digest[:12]} is not that of its digest")
        about = (
            material["review"], material["rev"], material["effect"]["effect_digest"],
            material["transaction"]["txn_digest"],
        )  # fmt: skip
        _require(about == _subject(content), f"the view {digest[:12]} shows something else")
    report.proven.append(f"each of {len(content['views'])} views shows this effect at this revision")


def _subject(content: dict[str, Any]) -> tuple[Any, ...]:
    review = content["review"]
    return (
        review["review_id"], review["rev"], content["effect"]["effect_digest"],
        content["transaction"]["txn_digest"],
    )  # fmt: skip


def _votes(content: dict[str, Any], report: VerificationReport) -> None:
    _, *about = _subject(content)
    for vote in content["votes"]:
        named = f"the vote of {vote['person']}"
        _require(
            [vote["rev"], vote["effect_digest"], vote["txn_digest"]] == about, f"{named} is on another effect"
        )
        _require(
            vote["verdict"] in _VERDICTS,
            f"{named} is no approval, no denial and no signature of break-glass",
        )
        if vote["view_digest"] is None:
            _require(
                vote["verdict"] == "deny" or vote["channel"] not in CHANNELS_REQUIRING_VIEW,
                f"{named} names no view",
            )
            report.trusted.append(f"what {vote['person']} was shown: their vote names no view")
            continue
        material = content["views"].get(vote["view_digest"])
        _require(material is not None, f"{named} is on a view that is not here")
        if vote["verdict"] != "deny":
            _require(not folded_args(RenderedView(material)), f"{named} is on a page with folded arguments")
    report.proven.append(f"{len(content['votes'])} votes are on exactly this revision")


def _passkeys(content: dict[str, Any], given: VerificationInput, report: VerificationReport) -> None:
    deployment = content["deployment"]
    origin = given.origin or deployment["origin"]
    proven, signatures, nonces = 0, set(), set()
    for vote in content["votes"]:
        proof, named = vote["assertion"], f"the vote of {vote['person']}"
        if vote["step_up"] is None and proof is None:
            continue
        _require(
            vote["step_up"] == PASSKEY and proof is not None,
            f"{named} claims a step-up without a proof of it",
        )
        _verify_proof(content, vote, RelyingParty(deployment["rp_id"], origin), named)
        signatures.add(proof["signature"])
        nonces.add(proof["signed"]["nonce"])
        proven += 1
        report.proven.append(f"a passkey signed {named}: {vote['verdict']}, key {_key_digest_of(vote)}")
    _require(len(signatures) == len(nonces) == proven, "one assertion serves two votes")
    if proven and given.origin is None:
        report.trusted.append(f"that {deployment['origin']} is where people decide (give --origin)")


def _verify_proof(content: dict[str, Any], vote: dict[str, Any], party: RelyingParty, named: str) -> None:
    proof = vote["assertion"]
    signed = proof["signed"]
    review_id, rev, effect_digest, whole = _subject(content)
    expected = {
        "review": review_id,
        "rev": rev,
        "txn_digest": whole,
        "effect_digest": effect_digest,
        "person": vote["person"],
        "verdict": vote["verdict"],
        "view_digest": signed["view_digest"],
        "nonce": signed["nonce"],
    }
    _require(signed == expected, f"{named}: the passkey signed something else")
    material = content["views"].get(signed["view_digest"])
    _require(material is not None, f"{named}: the passkey signed a view that is not here")
    _require(
        not folded_args(RenderedView(material)), f"{named}: the passkey signed a page with folded arguments"
    )
    assertion = Assertion(
        proof["credential_id"],
        decode_base64url(proof["authenticator_data"]),
        decode_base64url(proof["client_data"]),
        decode_base64url(proof["signature"]),
    )
    try:
        verify_assertion(party, step_up_challenge(signed), assertion, decode_base64url(proof["public_key"]))
    except WebAuthnVerificationError as error:
        raise _Fault(f"{named}: {error}") from error


def _key_digest_of(vote: dict[str, Any]) -> str:
    return key_digest(decode_base64url(vote["assertion"]["public_key"]))


def _votes_with_proof(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [vote for vote in content["votes"] if vote["assertion"] is not None]


def _unshared_keys(content: dict[str, Any], report: VerificationReport) -> None:
    holders: dict[str, str] = {}
    for vote in _votes_with_proof(content):
        for key in (_key_digest_of(vote), vote["assertion"]["credential_id"]):
            holder = holders.setdefault(key, vote["person"])
            _require(holder == vote["person"], f"{holder} and {vote['person']} used the same passkey")
    if holders:
        report.proven.append("no two people used the same passkey")


def _pins(content: dict[str, Any], given: VerificationInput, report: VerificationReport) -> None:
    for vote in _votes_with_proof(content):
        person, key = vote["person"], _key_digest_of(vote)
        if person not in given.pins:
            report.trusted.append(f"that the key {key} is {person}'s (give --pin)")
            continue
        _require(key in given.pins[person], f"{person} used a key that is not pinned: {key}")
        report.proven.append(f"{person} used a key that is pinned")
    proved = {vote["person"] for vote in _votes_with_proof(content)}
    for person in given.pins.keys() - proved:
        _require(
            all(vote["person"] != person for vote in content["votes"]),
            f"{person} is pinned and voted without a passkey",
        )


def _gates(content: dict[str, Any], report: VerificationReport) -> None:
    counted = _recount(content)
    for vote in content["votes"]:
        _require(
            vote["counted"] is counted.counts(vote["vote_id"]),
            f"the vote {vote['vote_id']} is counted wrongly",
        )
    state = content["review"]["state"]
    if state == "met" and counted.opened is not None:
        people = "one person alone" if counted.opened.alone else f"{len(counted.opened.vote_ids)} people"
        report.proven.append(f"{people} opened it in an emergency, without the approvals its gates require")
    elif state == "met":
        _require(counted.met, "the review says that its gates are met, and by these votes they are not")
        names = "; ".join(f"{each.have} of {each.need} for {each.gate.key}" for each in counted.per_gate)
        report.proven.append(f"every gate is met by people of its own, and no one denied: {names}")
    elif state == "denied":
        _require(counted.denied_by is not None, "the review says it was denied, and no one denied it")
        report.proven.append("an eligible person denied it")
    else:
        _require(
            not counted.permits_release or state in ("withdrawn", "expired", "revoked"),
            f"its gates are met or were opened, and the review says {state}",
        )
        report.proven.append(f"the review is {state}")


def _recount(content: dict[str, Any]) -> Tally:
    """Count the valid votes by the domain's own rules."""
    gates = merge(
        (Gate.from_json(gate) for gate in content["gates"]), frozenset(content["review"]["escalated"])
    )
    side = frozenset(content["requesters"])
    valid = [vote for vote in content["votes"] if vote["late"] is False and vote["revoked"] is False]
    ballots = [
        BallotVote(
            vote["vote_id"], vote["person"], frozenset(vote["groups"]), vote["verdict"], vote["step_up"],
            vote["permitted"] is True,
        )
        for vote in valid
        if vote["verdict"] != BREAK_GLASS
    ]  # fmt: skip
    signed = [
        BreakGlassSignature(
            vote["vote_id"], vote["person"], vote["step_up"], vote["permitted"] is True, vote["alone"] is True
        )
        for vote in valid
        if vote["verdict"] == BREAK_GLASS
    ]
    return replace(
        tally(gates, ballots, excluded=side), opening=break_glass_approval(gates, signed, excluded=side)
    )


def _report_trusted(content: dict[str, Any], report: VerificationReport) -> None:
    report.trusted += [
        "who was in which group, who the approval policy permits, and whose agent it was, as the service says",
        "every time, and every decision, release and receipt named here, as the service says",
    ]
    report.trusted += [
        f"that {vote['person']} cast their vote ({vote['verdict']}): no passkey signed it"
        for vote in content["votes"]
        if isinstance(vote, dict) and vote.get("assertion") is None
    ]
