"""Release tokens: good ones, and one file for each fault (steps 10 to 32 of `countersign.contract.STEPS`)."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from countersign.contract import Effect, Mode, Resource, txn_digest

from . import world
from .faults import gate_faults
from .world import NOW, header, release, token

TYP = "effect-release+jwt"
Claims = dict[str, Any]


def expectation(effect: Effect | Claims = world.REFUND, **changed: Any) -> Claims:
    """What the verifier of these vectors knows by itself."""
    shown = world.effect_json(effect) if isinstance(effect, Effect) else effect
    here = {"iss": world.ISS, "aud": world.AGENT, "jwks": world.KEYS.to_jwks(), "now": NOW}
    state = {"txn_digest": world.TXN_DIGEST, "epoch_at_least": world.EPOCH, "leeway": world.LEEWAY}
    mine = {"my_key_jkt": world.AGENT_KEY.public.kid, "allow_dev": False}
    mine |= {"kind": "effect", "compensates": None}
    return here | state | mine | {"effect": shown} | changed


UNDO = {"kind": "compensate", "compensates": world.REFUND.effect_id}


def good() -> Iterator[tuple[str, str, Claims]]:
    """(name, token, expectation) of tokens every verifier accepts."""
    many = world.DECISION._replace(votes=tuple(f"vote-{n:02}" for n in range(23)))
    dev = world.DECISION._replace(assurance="dev")
    grant = world.AUTO._replace(mode=Mode.GRANT, grant="grant-7:3")
    glass = world.DECISION._replace(mode=Mode.BREAK_GLASS)
    yield "reviewed", _sign(release()), expectation()
    yield "automatic", _sign(release(decision=world.AUTO)), expectation()
    yield "second_effect_without_compensation", _sign(release(world.MAIL)), expectation(world.MAIL)
    yield "more_votes_than_are_named", _sign(release(decision=many)), expectation()
    yield "grant", _sign(release(decision=grant)), expectation()
    yield "break_glass", _sign(release(decision=glass)), expectation()
    yield "compensation", _sign(world.compensation()), expectation(world.COMPENSATING, **UNDO)
    yield "development_sign_in_allowed", _sign(release(decision=dev)), expectation(allow_dev=True)
    yield "no_key_and_none_expected", _sign({**release(), "cnf": "none"}), expectation(my_key_jkt=None)
    yield "epoch_above_the_known", _sign(_with(epoch=world.EPOCH + 1)), expectation()
    yield "issued_at_the_leeway", _sign(_with(iat=NOW + 5, nbf=NOW + 5, exp=NOW + 125)), expectation()
    yield "last_second", _sign(release()), expectation(now=NOW + 119)
    yield "longest_lifetime", _sign(_with(exp=NOW + 300)), expectation()
    yield "previous_key", token(header(TYP, world.PREVIOUS), release(), world.PREVIOUS), expectation()
    yield "header_members_in_another_order", _sign_unsorted(release()), expectation()
    yield "separate_audience", _sign(_with(aud="payments-gateway")), expectation(aud="payments-gateway")


def bad() -> Iterator[tuple[str, str, Claims, int, str]]:
    """(name, token, expectation, step, code) of tokens every verifier refuses at that step."""
    others = {
        "receipt": token(header("effect-receipt+jwt"), world.receipt()),
        "proof": token(header("agent-proof+jwt"), {"sub": world.AGENT}),
    }
    policies = [f"policy-{n:03}-" + "x" * 90 for n in range(50)]
    oversize = {**release(), "decision": {**release()["decision"], "policies": policies}}
    yield "oversize", _sign(oversize), expectation(), 1, "too_large"
    for name, text, step, code in gate_faults(TYP, release(), world.SERVICE, others):
        yield name, text, expectation(), step, code
    for name, claims, code in _shapes():
        yield name, _sign(claims), expectation(), 10, code
    for name, claims, step, code in _claims():
        yield name, _sign(claims), expectation(), step, code
    yield from _situations()


def _sign(claims: Claims) -> str:
    return token(header(TYP), claims)


def _sign_unsorted(claims: Claims) -> str:
    head = json.dumps({"typ": TYP, "alg": "Ed25519", "kid": world.SERVICE.public.kid}).encode()
    return world.signed(head, json.dumps(claims).encode())


def _with(**changed: Any) -> Claims:
    return _kept({**release(), **changed})


def _kept(members: Claims) -> Claims:
    """Without those that `...` leaves out."""
    return {name: value for name, value in members.items() if value is not ...}


def _detail(**changed: Any) -> Claims:
    return _with(authorization_details=[_kept({**release()["authorization_details"][0], **changed})])


def _decision(**changed: Any) -> Claims:
    return _with(decision=_kept({**release()["decision"], **changed}))


def _shapes() -> Iterator[tuple[str, Claims, str]]:
    detail = release()["authorization_details"][0]
    for name in release():
        yield f"missing_{name}", _with(**{name: ...}), "missing_claim"
    for name in detail:
        yield f"missing_detail_{name}", _detail(**{name: ...}), "missing_claim"
    for name in release()["decision"]:
        yield f"missing_decision_{name}", _decision(**{name: ...}), "missing_claim"
    resource, bound = {"type": "Account", "id": "acc-17", "all": True}, world.AGENT_KEY.public.kid
    for name, claims in {
        "unknown_claim": _with(scope="everything"),
        "unknown_detail_member": _detail(actions=["*"]),
        "unknown_decision_member": _decision(override=True),
        "unknown_resource_member": _detail(resource=resource),
        "cnf_with_a_key_in_it": _with(cnf={"jkt": bound, "jwk": {}}),
    }.items():
        yield name, claims, "unknown_claim"
    for name, claims in {
        "aud_list": _with(aud=[world.AGENT]),
        "iss_empty": _with(iss=""),
        "exp_text": _with(exp=str(NOW + 120)),
        "exp_bool": _with(exp=True),
        "exp_null": _with(exp=None),
        "exp_negative": _with(exp=-1),
        "nbf_text": _with(nbf=str(NOW)),
        "jti_short": _with(jti="abc"),
        "jti_number": _with(jti=12345678901234),
        "txn_short": _with(txn=world.TXN[:-1]),
        "txn_capitals": _with(txn=world.TXN.upper()),
        "epoch_text": _with(epoch="3"),
        "cnf_unknown_word": _with(cnf="any"),
        "cnf_null": _with(cnf=None),
        "cnf_not_a_thumbprint": _with(cnf={"jkt": "short"}),
        "kind_unknown": _with(kind="probe"),
        "compensates_not_a_digest": _with(compensates="x"),
        "details_object": _with(authorization_details=detail),
        "details_empty": _with(authorization_details=[]),
        "details_two_effects": _with(authorization_details=[detail, detail]),
        "details_other_type": _detail(type="urn:countersign:effect:2"),
        "seq_zero": _detail(seq=0),
        "seq_bool": _detail(seq=True),
        "votes_more_than_20": _decision(votes=[f"vote-{n}" for n in range(21)]),
        "votes_text": _decision(votes="vote-01"),
        "more_zero": _decision(more=0),
        "mode_unknown": _decision(mode="manual"),
        "rev_zero": _decision(rev=0),
        "assurance_unknown": _decision(assurance="high"),
        "grant_empty": _decision(grant=""),
    }.items():
        yield name, claims, "bad_claim"


def _claims() -> Iterator[tuple[str, Claims, int, str]]:
    yield "iss_other", _with(iss="https://other.example"), 11, "wrong_iss"
    yield "iss_trailing_slash", _with(iss=world.ISS + "/"), 11, "wrong_iss"
    yield "iss_case", _with(iss=world.ISS.upper()), 11, "wrong_iss"
    yield "iss_http", _with(iss=world.ISS.replace("https", "http")), 11, "wrong_iss"
    yield "aud_other", _with(aud="other-bot"), 12, "wrong_aud"
    yield "aud_trailing_slash", _with(aud=world.AGENT + "/"), 12, "wrong_aud"
    yield "aud_case", _with(aud=world.AGENT.upper()), 12, "wrong_aud"
    yield "aud_prefix", _with(aud=world.AGENT[:-1]), 12, "wrong_aud"
    yield "aud_space", _with(aud=world.AGENT + " "), 12, "wrong_aud"
    yield "iat_in_the_future", _with(iat=NOW + 6), 13, "issued_in_future"
    yield "nbf_in_the_future", _with(nbf=NOW + 6), 13, "not_yet_valid"
    yield "exp_now", _with(iat=NOW - 120, nbf=NOW - 120, exp=NOW), 14, "expired"
    yield "exp_before_now", _with(iat=NOW - 120, nbf=NOW - 120, exp=NOW - 1), 14, "expired"
    yield "exp_zero", _with(iat=0, nbf=0, exp=0), 14, "expired"
    yield "lifetime_too_long", _with(exp=NOW + 301), 15, "lifetime_too_long"
    yield "lifetime_of_a_year", _with(exp=NOW + 31_536_000), 15, "lifetime_too_long"
    yield "nbf_after_exp", _with(nbf=NOW + 4, exp=NOW + 3), 15, "times_out_of_order"
    yield "nbf_at_exp", _with(nbf=NOW + 3, exp=NOW + 3), 15, "times_out_of_order"
    yield "iat_at_exp", _with(iat=NOW + 4, exp=NOW + 4), 15, "times_out_of_order"
    naming = _with(compensates=world.MAIL.effect_id)
    yield "effect_naming_what_it_compensates", naming, 17, "wrong_compensates"
    yield "sub_other_agent", _with(sub="other-bot"), 18, "wrong_sub"
    yield "txn_other", _with(txn="0" * 64), 19, "wrong_txn"
    for name, digests in {
        "txn_digest_effect_dropped": [world.REFUND.digest],
        "txn_digest_reordered": [world.MAIL.digest, world.REFUND.digest],
        "txn_digest_effect_added": [world.REFUND.digest, world.MAIL.digest, world.MAIL.digest],
    }.items():
        yield name, _with(txn_digest=txn_digest(effect_digests=digests)), 20, "wrong_txn_digest"
    yield "epoch_before_a_restore", _with(epoch=world.EPOCH - 1), 21, "old_epoch"
    yield "effect_id_other", _detail(effect_id=world.MAIL.effect_id), 22, "wrong_effect_id"
    yield "seq_other", _detail(seq=2), 23, "wrong_seq"
    yield "tool_other", _detail(tool="delete_account"), 24, "wrong_tool"
    yield "tool_digest_other", _detail(tool_digest=world.MAIL_DIGEST), 25, "wrong_tool_digest"
    yield "resource_other_id", _detail(resource={"type": "Account", "id": "acc-18"}), 26, "wrong_resource"
    yield "resource_other_type", _detail(resource={"type": "User", "id": "acc-17"}), 26, "wrong_resource"
    yield "call_key_other", _detail(call_key=world.MAIL.call_key), 27, "wrong_call_key"
    yield "args_digest_other", _detail(args_digest=world.MAIL.args_digest), 28, "wrong_args_digest"
    yield "effect_digest_other", _detail(effect_digest=world.MAIL.digest), 29, "wrong_effect_digest"
    yield "cnf_other_key", _with(cnf={"jkt": world.OTHER_AGENT_KEY.public.kid}), 30, "wrong_cnf"
    yield "cnf_none_although_i_have_a_key", _with(cnf="none"), 30, "wrong_cnf"
    yield "assurance_dev", _decision(assurance="dev"), 31, "dev_assurance"
    yield "review_without_votes", _decision(votes=[]), 32, "nobody_voted"
    yield "review_without_people", _decision(assurance="none"), 32, "nobody_voted"
    yield "break_glass_without_votes", _decision(mode="break_glass", votes=[]), 32, "nobody_voted"


def _situations() -> Iterator[tuple[str, str, Claims, int, str]]:
    """Good tokens shown in the wrong place."""
    undo, refund = _sign(world.compensation()), _sign(release())
    compensating = expectation(world.COMPENSATING, **UNDO)
    other_undo = {**UNDO, "compensates": world.MAIL.effect_id}
    changed = world.effect_json(world.REFUND)
    changed["args"]["amount_cents"] += 1
    lost = world.effect_json(world.REFUND)
    del lost["compensation"]
    yield "effect_used_as_compensation", refund, expectation(**UNDO), 16, "wrong_kind"
    plain = expectation(world.COMPENSATING)
    yield "compensation_used_as_effect", undo, plain, 16, "wrong_kind"
    nameless = _sign({**release(world.COMPENSATING), "kind": "compensate"})
    yield "compensation_of_nothing_used_as_effect", nameless, plain, 16, "wrong_kind"
    named = _sign({**world.compensation(), "kind": "effect"})
    yield "effect_naming_used_as_compensation", named, compensating, 16, "wrong_kind"
    yield "compensation_of_another_effect", undo, {**compensating, **other_undo}, 17, "wrong_compensates"
    yield "first_effect_shown_for_the_second", refund, expectation(world.MAIL), 22, "wrong_effect_id"
    yield "args_changed_after_approval", refund, expectation(effect=changed), 28, "wrong_args_digest"
    yield "compensation_dropped_after_approval", refund, expectation(effect=lost), 29, "wrong_effect_digest"
    yield "cnf_although_i_have_no_key", refund, expectation(my_key_jkt=None), 30, "wrong_cnf"
    moved = replace(world.REFUND, resource=Resource("Account", "acc-18"))
    yield "resource_moved", refund, expectation(moved), 26, "wrong_resource"
