"""Receipts: good ones, and one file for each fault (`countersign.contract.RECEIPT_STEPS`)."""

from collections.abc import Iterator
from typing import Any

from . import world
from .faults import gate_faults
from .world import NOW, header, receipt, token

TYP = "effect-receipt+jwt"
Claims = dict[str, Any]


def expectation(**changed: Any) -> Claims:
    """What the redeemer knows by itself."""
    here = {"iss": world.ISS, "aud": world.AGENT, "agent": world.AGENT, "jwks": world.KEYS.to_jwks()}
    spent = {"txn": world.TXN, "txn_digest": world.TXN_DIGEST, "attempt": world.ATTEMPT}
    state = {"now": NOW, "epoch_at_least": world.EPOCH, "leeway": world.LEEWAY}
    mine = {"my_key_jkt": world.AGENT_KEY.public.kid, "kind": "effect", "effects": receipt()["effects"]}
    return here | spent | state | mine | changed


def good() -> Iterator[tuple[str, str, Claims]]:
    """(name, token, expectation) of receipts that may be fired on."""
    first = {name: value for name, value in receipt()["effects"][0].items() if name != "jti"}
    alone, hundred = receipt()["effects"][:1], _effects(100)
    yield "redeemed", _sign(receipt()), expectation()
    yield "renewed_for_one_effect", _sign(_with(effects=[first])), expectation(effects=[first])
    yield "jti_not_compared_when_unknown", _sign(_with(effects=alone)), expectation(effects=[first])
    yield "last_second", _sign(receipt()), expectation(now=NOW + 29)
    yield "issued_at_the_leeway", _sign(_with(iat=NOW + 5)), expectation()
    yield "longest_window", _sign(_with(fire_by=NOW + 300)), expectation()
    yield "compensation", _sign(_with(kind="compensate")), expectation(kind="compensate")
    yield "no_key_and_none_expected", _sign(_with(cnf="none")), expectation(my_key_jkt=None)
    yield "epoch_above_the_known", _sign(_with(epoch=world.EPOCH + 1)), expectation()
    yield "a_hundred_effects", _sign(_with(effects=hundred)), expectation(effects=hundred)


def _effects(count: int) -> list[Claims]:
    return [{**receipt()["effects"][0], "effect_id": f"{n:064x}"} for n in range(count)]


def bad() -> Iterator[tuple[str, str, Claims, int, str]]:
    """(name, token, expectation, step, code) of receipts nothing may be fired on."""
    others = {
        "release": token(header("effect-release+jwt"), world.release()),
        "proof": token(header("agent-proof+jwt"), {"sub": world.AGENT}),
    }
    large = [{**effect, "jti": "j" * 64} for effect in _effects(100)]
    yield "oversize", _sign(_with(effects=large)), expectation(effects=large), 1, "too_large"
    for name, text, step, code in gate_faults(TYP, receipt(), world.SERVICE, others):
        yield name, text, expectation(), step, code
    for name, claims, step, code in _claims():
        yield name, _sign(claims), expectation(), step, code
    whole, elsewhere = _sign(receipt()), expectation(attempt="attempt-0002")
    yield "another_process_fires_on_it", whole, elsewhere, 20, "wrong_attempt"
    yield "cnf_although_i_have_no_key", whole, expectation(my_key_jkt=None), 24, "wrong_cnf"


def _sign(claims: Claims) -> str:
    return token(header(TYP), claims)


def _with(**changed: Any) -> Claims:
    return {name: value for name, value in {**receipt(), **changed}.items() if value is not ...}


def _claims() -> Iterator[tuple[str, Claims, int, str]]:
    for name in receipt():
        yield f"missing_{name}", _with(**{name: ...}), 10, "missing_claim"
    refund, mail = receipt()["effects"]
    yield "unknown_claim", _with(exp=NOW + 30), 10, "unknown_claim"
    yield "unknown_effect_member", _with(effects=[{**refund, "args": {}}]), 10, "unknown_claim"
    yield "effects_empty", _with(effects=[]), 10, "bad_claim"
    yield "fire_by_text", _with(fire_by=str(NOW + 30)), 10, "bad_claim"
    yield "aud_list", _with(aud=[world.AGENT]), 10, "bad_claim"
    yield "kind_unknown", _with(kind="probe"), 10, "bad_claim"
    yield "iss_other", _with(iss="https://other.example"), 11, "wrong_iss"
    yield "iss_trailing_slash", _with(iss=world.ISS + "/"), 11, "wrong_iss"
    yield "aud_other", _with(aud="other-bot"), 12, "wrong_aud"
    yield "aud_case", _with(aud=world.AGENT.upper()), 12, "wrong_aud"
    yield "iat_in_the_future", _with(iat=NOW + 6), 13, "issued_in_future"
    yield "fire_by_now", _with(iat=NOW - 30, fire_by=NOW), 14, "fire_by_passed"
    yield "fire_by_passed", _with(iat=NOW - 31, fire_by=NOW - 1), 14, "fire_by_passed"
    yield "window_too_long", _with(fire_by=NOW + 301), 15, "window_too_long"
    yield "fire_by_at_iat", _with(iat=NOW + 5, fire_by=NOW + 5), 15, "window_too_long"
    yield "fire_by_before_iat", _with(iat=NOW + 5, fire_by=NOW + 4), 15, "window_too_long"
    yield "kind_compensate", _with(kind="compensate"), 16, "wrong_kind"
    yield "sub_other_agent", _with(sub="other-bot"), 17, "wrong_sub"
    yield "txn_other", _with(txn="0" * 64), 18, "wrong_txn"
    yield "txn_digest_other", _with(txn_digest="0" * 64), 19, "wrong_txn_digest"
    yield "attempt_other", _with(attempt="attempt-0002"), 20, "wrong_attempt"
    yield "attempt_case", _with(attempt=world.ATTEMPT.upper()), 20, "wrong_attempt"
    yield "epoch_before_a_restore", _with(epoch=world.EPOCH - 1), 21, "old_epoch"
    yield "effect_dropped", _with(effects=[refund]), 22, "wrong_effects"
    yield "effect_added", _with(effects=[refund, mail, mail]), 22, "wrong_effects"
    yield "effects_reordered", _with(effects=[mail, refund]), 22, "wrong_effects"
    changed = {**mail, "effect_digest": "0" * 64}
    yield "effect_digest_other", _with(effects=[refund, changed]), 22, "wrong_effects"
    spent = {**mail, "jti": world.JTI}
    yield "jti_of_another_token", _with(effects=[refund, spent]), 23, "wrong_jti"
    bare = {name: value for name, value in mail.items() if name != "jti"}
    yield "jti_missing", _with(effects=[refund, bare]), 23, "wrong_jti"
    yield "cnf_other_key", _with(cnf={"jkt": world.OTHER_AGENT_KEY.public.kid}), 24, "wrong_cnf"
    yield "cnf_none_although_i_have_a_key", _with(cnf="none"), 24, "wrong_cnf"
