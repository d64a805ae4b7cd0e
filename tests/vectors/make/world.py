"""The fixed world of the vectors: keys from seeds, one transaction of two effects, one moment.

Nothing random and no clock: a rerun writes the same bytes. The keys are public knowledge; trust them nowhere.
"""

import copy
import hashlib
from typing import Any

from countersign import contract
from countersign.contract.keys import encode_base64url

NOW = 1_800_000_000  # 2027-01-15T08:00:00Z
ISS = "https://countersign.example"
AGENT = "support-bot"
RUN_KEY = "ticket-4711"
EPOCH = 3
LEEWAY = 5
ATTEMPT = "attempt-0001"


def key(name: str) -> contract.PrivateKey:
    """The key of a name: its seed is the SHA-256 of the name."""
    return contract.PrivateKey.from_seed(hashlib.sha256(b"countersign vectors: " + name.encode()).digest())


SERVICE, PREVIOUS, STRANGER = key("service"), key("previous service"), key("stranger")
AGENT_KEY, OTHER_AGENT_KEY = key("agent"), key("other agent")
KEYS = contract.KeySet([PREVIOUS.public, SERVICE.public])
TOOL_DIGEST = hashlib.sha256(b"manifest of refund").hexdigest()
MAIL_DIGEST = hashlib.sha256(b"manifest of send_mail").hexdigest()
UNDO_DIGEST = hashlib.sha256(b"manifest of cancel_refund").hexdigest()
BUNDLE = hashlib.sha256(b"bundle").hexdigest()
TXN = contract.txn_id(agent=AGENT, run_key=RUN_KEY)


ACCOUNT = contract.Resource("Account", "acc-17")


def _effect(seq: int, tool: str, digest: str, args: Any, undo: Any = None) -> contract.Effect:
    key = contract.call_key(agent=AGENT, run_key=RUN_KEY, tool=tool, args=args)
    called = {"tool": tool, "tool_digest": digest, "resource": ACCOUNT, "args": args}
    return contract.Effect.stage(agent=AGENT, txn=TXN, call_key=key, seq=seq, **called, compensation=undo)


_REFUND = {"account": "acc-17", "amount_cents": 124000, "note": "für Zoë \U0001f600 \u2028 <b>"}
_UNDO_ARGS = {"refund": "result:/refund_id", "why": 'const:"undone"'}
UNDO = contract.Compensation("cancel_refund", UNDO_DIGEST, _UNDO_ARGS)
REFUND = _effect(1, "refund", TOOL_DIGEST, _REFUND, UNDO)
_MAIL = {"account": "acc-17", "to": ["zoe@example.com"], "text": "done"}
MAIL = _effect(2, "send_mail", MAIL_DIGEST, _MAIL)


TXN_DIGEST = contract.txn_digest(effect_digests=[REFUND.digest, MAIL.digest])


_BACK: dict[str, Any] = {"tool": "cancel_refund", "tool_digest": UNDO_DIGEST, "resource": ACCOUNT}
_BACK |= {"args": {"refund": "re_1", "why": "undone"}, "agent": AGENT, "txn": TXN, "seq": 1}
_BACK_KEY = contract.compensation_call_key(effect_id=REFUND.effect_id, tool="cancel_refund")
COMPENSATING = contract.Effect.stage(call_key=_BACK_KEY, **_BACK)


_MAY = ("support-may-refund",)
_BY: dict[str, Any] = {"mode": contract.Mode.REVIEW, "votes": ("vote-01", "vote-02"), "assurance": "oidc"}
_OF: dict[str, Any] = {"commit": "4f1c2ab09d", "bundle": BUNDLE, "policies": (*_MAY, "refund-needs-finance")}
DECISION = contract.DecisionClaims(id="dec-01", rev=1, **_BY, **_OF)
AUTO = DECISION._replace(id="dec-02", mode=contract.Mode.AUTO, policies=_MAY, votes=(), assurance="none")


JTI = encode_base64url(hashlib.sha256(b"jti").digest()[:16])
OTHER_JTI = encode_base64url(hashlib.sha256(b"other jti").digest()[:16])


_BOUND: dict[str, Any] = {"iss": ISS, "aud": AGENT, "sub": AGENT, "iat": NOW, "epoch": EPOCH}
_BOUND |= {"txn": TXN, "txn_digest": TXN_DIGEST, "cnf_jkt": AGENT_KEY.public.kid}


def release(effect: contract.Effect = REFUND, decision: contract.DecisionClaims = DECISION) -> dict[str, Any]:
    """Good claims of a release, free to be spoiled."""
    of_it = {"jti": JTI, "detail": contract.EffectDetail.of(effect), "decision": decision}
    return copy.deepcopy(contract.ReleaseClaims(**_BOUND, nbf=NOW, exp=NOW + 120, **of_it).to_claims())


def compensation() -> dict[str, Any]:
    """Good claims of a compensation's release."""
    return {**release(COMPENSATING), "kind": "compensate", "compensates": REFUND.effect_id}


def receipt() -> dict[str, Any]:
    """Good claims of a receipt for both effects."""
    jtis = ((REFUND, JTI), (MAIL, OTHER_JTI))
    effects = tuple(contract.ReceiptEffect(effect.effect_id, effect.digest, jti) for effect, jti in jtis)
    claims = contract.ReceiptClaims(**_BOUND, fire_by=NOW + 30, attempt=ATTEMPT, effects=effects)
    return copy.deepcopy(claims.to_claims())


def effect_json(effect: contract.Effect) -> dict[str, Any]:
    """An effect as its digest covers it."""
    names = ("agent", "txn", "effect_id", "seq", "tool", "tool_digest", "args", "call_key")
    value: dict[str, Any] = {"v": 1, "resource": effect.resource.to_json()}
    value |= {name: getattr(effect, name) for name in names}
    if effect.compensation is not None:
        value["compensation"] = effect.compensation.to_json()
    return value


def header(typ: str, signer: contract.PrivateKey = SERVICE, /, **changed: Any) -> dict[str, Any]:
    """A good header, with members changed or, when None is given, left out."""
    members = {"alg": "Ed25519", "kid": signer.public.kid, "typ": typ, **changed}
    return {name: value for name, value in members.items() if value is not ...}


def signed(head: bytes, payload: bytes, signer: contract.PrivateKey = SERVICE) -> str:
    """Sign any header and payload bytes, however wrong."""
    signing_input = f"{encode_base64url(head)}.{encode_base64url(payload)}"
    return f"{signing_input}.{encode_base64url(signer.sign(signing_input.encode()))}"


def token(head: dict[str, Any], claims: Any, signer: contract.PrivateKey = SERVICE) -> str:
    """Sign a header and claims in canonical form."""
    return signed(contract.canonicalize(head), contract.canonicalize(claims), signer)
