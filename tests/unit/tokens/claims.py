"""Claims for the signing tests: well formed, about nothing."""

from typing import Any

from countersign import contract
from countersign.contract import Effect, EffectDetail, ReceiptClaims, ReceiptEffect, ReleaseClaims

_TXN = contract.txn_id(agent="bot", run_key="run")
_CALL: dict[str, Any] = {"agent": "bot", "tool": "refund", "args": {"amount_cents": 5}}
_KEY = contract.call_key(run_key="run", **_CALL)
_RESOURCE = contract.Resource("Account", "7")
EFFECT = Effect.stage(txn=_TXN, call_key=_KEY, seq=1, tool_digest="a" * 64, resource=_RESOURCE, **_CALL)
_DIGEST = contract.txn_digest(effect_digests=[EFFECT.digest])
_BOTH: dict[str, Any] = {"iss": "https://countersign.example", "aud": "bot", "sub": "bot", "epoch": 1}
_BOTH |= {"iat": 1_795_000_000, "txn": _TXN, "txn_digest": _DIGEST, "cnf_jkt": "k" * 43}
_BY: dict[str, Any] = {"policies": ("p",), "votes": (), "rev": 1, "assurance": "none"}
_BY |= {"mode": contract.Mode.AUTO, "commit": "c", "bundle": "b" * 64}
_OF: dict[str, Any] = {"jti": "j" * 22, "detail": EffectDetail.of(EFFECT)}
_OF["decision"] = contract.DecisionClaims(id="dec_1", **_BY)
RELEASE = ReleaseClaims(nbf=1_795_000_000, exp=1_795_000_120, **_OF, **_BOTH)
_EFFECTS = (ReceiptEffect(EFFECT.effect_id, EFFECT.digest, "j" * 22),)
RECEIPT = ReceiptClaims(fire_by=1_795_000_030, attempt="att_1", effects=_EFFECTS, **_BOTH)
