"""Claims for the signing tests: well formed, about nothing."""

from countersign.contract import (
    DecisionClaims,
    Effect,
    EffectDetail,
    Mode,
    ReceiptClaims,
    ReceiptEffect,
    ReleaseClaims,
    Resource,
    call_key,
    txn_digest,
    txn_id,
)

_TXN = txn_id(agent="bot", run_key="run")
EFFECT = Effect.stage(
    agent="bot",
    txn=_TXN,
    call_key=call_key(agent="bot", run_key="run", tool="refund", args={"amount_cents": 5}),
    seq=1,
    tool="refund",
    tool_digest="a" * 64,
    resource=Resource("Account", "7"),
    args={"amount_cents": 5},
)
RELEASE = ReleaseClaims(
    iss="https://countersign.example",
    aud="bot",
    sub="bot",
    iat=1_795_000_000,
    nbf=1_795_000_000,
    exp=1_795_000_120,
    jti="j" * 22,
    txn=_TXN,
    txn_digest=txn_digest(effect_digests=[EFFECT.digest]),
    epoch=1,
    cnf_jkt="k" * 43,
    detail=EffectDetail.of(EFFECT),
    decision=DecisionClaims(
        id="dec_1",
        mode=Mode.AUTO,
        commit="c",
        bundle="b" * 64,
        policies=("p",),
        votes=(),
        rev=1,
        assurance="none",
    ),
)
RECEIPT = ReceiptClaims(
    iss="https://countersign.example",
    aud="bot",
    sub="bot",
    iat=1_795_000_000,
    fire_by=1_795_000_030,
    epoch=1,
    txn=_TXN,
    txn_digest=RELEASE.txn_digest,
    attempt="att_1",
    cnf_jkt="k" * 43,
    effects=(ReceiptEffect(EFFECT.effect_id, EFFECT.digest, "j" * 22),),
)
