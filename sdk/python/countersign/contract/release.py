"""The release token: signed permission for one exact effect, once (design section 6).

A JWS of `typ: effect-release+jwt` whose `authorization_details` (RFC 9396) describe the effect and whose `decision`
says why it may happen. The token alone is never enough: the enforcement point also redeems it. This module reads and
writes the claims; `verify` checks them.
"""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, Self, cast

from . import jws
from .effect import Effect, Resource
from .states import Mode

DETAIL_TYPE: Final = "urn:countersign:effect:1"
MAX_VOTES: Final = 20  # `more` counts the rest, so that a token stays within its size limit
MAX_POLICIES: Final = 50
MAX_LIFETIME_SECONDS: Final = 300  # design: 120 s; a longer-lived token would be a lasting permission

Kind = Literal["effect", "compensate"]
Assurance = Literal["oidc", "dev", "none"]

_MODES: Final = frozenset(mode.value for mode in Mode)
_ASSURANCES: Final = frozenset({"oidc", "dev", "none"})
_KINDS: Final = frozenset({"effect", "compensate"})


class EffectDetail(NamedTuple):
    """The effect as the token describes it."""

    effect_id: str
    seq: int
    tool: str
    tool_digest: str
    args_digest: str
    effect_digest: str
    resource: Resource
    call_key: str

    @classmethod
    def of(cls, effect: Effect) -> Self:
        """Describe an effect; every digest is computed from its bytes."""
        return cls(
            effect_id=effect.effect_id,
            seq=effect.seq,
            tool=effect.tool,
            tool_digest=effect.tool_digest,
            args_digest=effect.args_digest,
            effect_digest=effect.digest,
            resource=effect.resource,
            call_key=effect.call_key,
        )

    def to_json(self) -> dict[str, object]:
        """The one member of `authorization_details`."""
        return {
            "type": DETAIL_TYPE,
            "effect_id": self.effect_id,
            "seq": self.seq,
            "tool": self.tool,
            "tool_digest": self.tool_digest,
            "args_digest": self.args_digest,
            "effect_digest": self.effect_digest,
            "resource": self.resource.to_json(),
            "call_key": self.call_key,
        }

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read it strictly. Raises ContractError as in jws.py."""
        claims = jws.require_members(value, "authorization_details", required=_DETAIL)
        jws.require_one_of(claims, "type", _DETAIL_TYPES)
        return cls(
            effect_id=jws.require_digest_claim(claims, "effect_id"),
            seq=jws.require_integer(claims, "seq", least=1),
            tool=jws.require_text(claims, "tool"),
            tool_digest=jws.require_digest_claim(claims, "tool_digest"),
            args_digest=jws.require_digest_claim(claims, "args_digest"),
            effect_digest=jws.require_digest_claim(claims, "effect_digest"),
            resource=jws.require_resource(claims, "resource"),
            call_key=jws.require_digest_claim(claims, "call_key"),
        )


class DecisionClaims(NamedTuple):
    """Why the effect may happen: which policies at which commit, and whose votes.

    `assurance` is how the voters were authenticated: `oidc`, `dev` (development sign-in), or `none` when no one voted.
    """

    id: str
    mode: Mode
    commit: str
    bundle: str
    policies: tuple[str, ...]
    votes: tuple[str, ...]
    rev: int
    assurance: Assurance
    more: int = 0
    grant: str | None = None

    def to_json(self) -> dict[str, object]:
        """The `decision` claim; only the first 20 votes are listed, `more` counts the rest."""
        value: dict[str, object] = {
            "id": self.id,
            "mode": self.mode.value,
            "commit": self.commit,
            "bundle": self.bundle,
            "policies": list(self.policies),
            "votes": list(self.votes[:MAX_VOTES]),
            "rev": self.rev,
            "assurance": self.assurance,
        }
        more = self.more + len(self.votes[MAX_VOTES:])
        if more:
            value["more"] = more
        if self.grant is not None:
            value["grant"] = self.grant
        return value

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read it strictly. Raises ContractError as in jws.py."""
        claims = jws.require_members(value, "decision", required=_DECISION, optional=_DECISION_MAY)
        return cls(
            id=jws.require_text(claims, "id"),
            mode=Mode(jws.require_one_of(claims, "mode", _MODES)),
            commit=jws.require_text(claims, "commit"),
            bundle=jws.require_text(claims, "bundle"),
            policies=jws.require_texts(claims, "policies", most=MAX_POLICIES),
            votes=jws.require_texts(claims, "votes", most=MAX_VOTES),
            rev=jws.require_integer(claims, "rev", least=1),
            assurance=cast(Assurance, jws.require_one_of(claims, "assurance", _ASSURANCES)),
            more=jws.require_integer(claims, "more", least=1) if "more" in claims else 0,
            grant=jws.require_text(claims, "grant") if "grant" in claims else None,
        )


class ReleaseClaims(NamedTuple):
    """Every claim of a release token. `compensates` names the forward effect when `kind` is `compensate`."""

    iss: str
    aud: str
    sub: str
    iat: int
    nbf: int
    exp: int
    jti: str
    txn: str
    txn_digest: str
    epoch: int
    cnf_jkt: str | None
    detail: EffectDetail
    decision: DecisionClaims
    kind: Kind = "effect"
    compensates: str | None = None

    def to_claims(self) -> dict[str, object]:
        """The claims as they are signed."""
        claims: dict[str, object] = {
            "iss": self.iss,
            "aud": self.aud,
            "sub": self.sub,
            "iat": self.iat,
            "nbf": self.nbf,
            "exp": self.exp,
            "jti": self.jti,
            "txn": self.txn,
            "txn_digest": self.txn_digest,
            "epoch": self.epoch,
            "cnf": jws.confirmation_claim(self.cnf_jkt),
            "kind": self.kind,
            "authorization_details": [self.detail.to_json()],
            "decision": self.decision.to_json(),
        }
        if self.compensates is not None:
            claims["compensates"] = self.compensates
        return claims

    @classmethod
    def from_claims(cls, value: Mapping[str, object]) -> Self:
        """Read claims strictly: no member unknown, missing or of another type.

        Raises:
            ContractError: `bad_claim`, `missing_claim`, `unknown_claim`.
        """
        claims = jws.require_members(value, "the token", required=_RELEASE, optional=_RELEASE_MAY)
        return cls(
            iss=jws.require_text(claims, "iss"),
            aud=jws.require_text(claims, "aud"),
            sub=jws.require_text(claims, "sub"),
            iat=jws.require_integer(claims, "iat"),
            nbf=jws.require_integer(claims, "nbf"),
            exp=jws.require_integer(claims, "exp"),
            jti=jws.require_token_id(claims, "jti"),
            txn=jws.require_digest_claim(claims, "txn"),
            txn_digest=jws.require_digest_claim(claims, "txn_digest"),
            epoch=jws.require_integer(claims, "epoch"),
            cnf_jkt=jws.confirmation_key(claims),
            kind=cast(Kind, jws.require_one_of(claims, "kind", _KINDS)),
            compensates=jws.require_digest_claim(claims, "compensates") if "compensates" in claims else None,
            detail=EffectDetail.from_json(jws.require_objects(claims, "authorization_details", most=1)[0]),
            decision=DecisionClaims.from_json(claims["decision"]),
        )


_DETAIL_TYPES: Final = frozenset({DETAIL_TYPE})
_DETAIL: Final = frozenset(
    {
        "type",
        "effect_id",
        "seq",
        "tool",
        "tool_digest",
        "args_digest",
        "effect_digest",
        "resource",
        "call_key",
    }
)
_DECISION: Final = frozenset({"id", "mode", "commit", "bundle", "policies", "votes", "rev", "assurance"})
_DECISION_MAY: Final = frozenset({"more", "grant"})
_RELEASE_MAY: Final = frozenset({"compensates"})
_RELEASE: Final = frozenset(
    {
        *("iss", "aud", "sub", "iat", "nbf", "exp", "jti", "txn", "txn_digest", "epoch", "cnf", "kind"),
        *("authorization_details", "decision"),
    }
)
