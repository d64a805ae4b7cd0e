"""Verification of release tokens: one numbered list of steps, the same in every implementation (design section 6).

`verify_release` takes a token and what the verifier itself knows (`Expectation`), runs `STEPS` in order and returns a
`VerifiedRelease`. Nothing else can create one, and the code that fires requires that type. What the token says about
the effect is only compared with digests recomputed from the effect's own canonical bytes.

It does not check whether the token was spent. A token cannot know that; redeeming it is always the next step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from . import digests
from .effect import Effect
from .errors import ContractError, VerificationError
from .jws import JWS_STEPS, TYP_RELEASE, Step, TokenState, run_steps
from .keys import KeySet
from .release import MAX_LIFETIME_SECONDS, Kind, ReleaseClaims

LEEWAY_SECONDS: Final = 5  # for iat and nbf: clocks of honest hosts differ by less
MAX_LEEWAY_SECONDS: Final = 30  # a larger difference means the clock needs repair
_PEOPLE_MODES: Final = frozenset({"review", "break_glass"})

_SEAL: Final = object()


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the verifier knows independently of the token. `now` is whole seconds since the epoch, UTC.

    `my_key_jkt` is the thumbprint of the verifier's own key, or None when it has none; the token must name exactly
    that. `epoch_at_least` is the highest epoch this verifier has seen. For a compensation `txn` and `txn_digest` are
    those of the forward transaction.

    Raises:
        ContractError: `bad_leeway`, `bad_expectation`.
    """

    iss: str
    aud: str
    keys: KeySet
    effect: Effect
    txn_digest: str
    epoch_at_least: int
    now: int
    my_key_jkt: str | None
    _: KW_ONLY
    allow_dev: bool = False
    kind: Kind = "effect"
    compensates: str | None = None
    leeway: int = LEEWAY_SECONDS

    def __post_init__(self) -> None:
        if not 0 <= self.leeway <= MAX_LEEWAY_SECONDS:
            raise ContractError(
                "bad_leeway", f"leeway {self.leeway} s; 0 to {MAX_LEEWAY_SECONDS} s is allowed"
            )
        if (self.kind == "compensate") != (self.compensates is not None):
            raise ContractError(
                "bad_expectation", "a compensation names the effect it compensates, an effect none"
            )


@dataclass(frozen=True, slots=True)
class VerifiedRelease:
    """A release that passed every step for this effect. Made by `verify_release` only."""

    claims: ReleaseClaims
    effect: Effect
    token: str = field(repr=False)
    seal: object = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.seal is not _SEAL:
            raise TypeError("a VerifiedRelease comes from verify_release only")


@dataclass(slots=True, kw_only=True)
class ReleaseState(TokenState):
    """A release during verification, with its expectation."""

    expectation: Expectation
    claims: ReleaseClaims = field(init=False)  # set by the shape step, before any step that reads it


def verify_release(token: str, expectation: Expectation) -> VerifiedRelease:
    """Verify one release token for one effect.

    Raises:
        VerificationError: at the step of `STEPS` that refused (RFC 8725, RFC 9068 section 4, RFC 9396).
    """
    return _verify(token, expectation, STEPS)


def verify_transaction(
    tokens: Sequence[str],
    effects: Sequence[Effect],
    *,
    iss: str,
    aud: str,
    keys: KeySet,
    epoch_at_least: int,
    now: int,
    my_key_jkt: str | None,
    allow_dev: bool = False,
    leeway: int = LEEWAY_SECONDS,
) -> tuple[VerifiedRelease, ...]:
    """Verify every release of a transaction before the first effect fires: one token for each effect, in order.

    `txn_digest` is computed from the effects themselves, so none can be dropped, added or reordered.

    Raises:
        VerificationError: as `verify_release`; `wrong_count` when tokens and effects differ in number.
    """
    if len(tokens) != len(effects):
        raise VerificationError(
            STEP_TXN_DIGEST, "wrong_count", f"{len(tokens)} tokens for {len(effects)} effects"
        )
    digest = digests.txn_digest(effect_digests=[effect.digest for effect in effects])
    expected = [
        Expectation(
            iss, aud, keys, effect, digest, epoch_at_least, now, my_key_jkt, allow_dev=allow_dev, leeway=leeway,
        )
        for effect in effects
    ]  # fmt: skip
    return tuple(map(verify_release, tokens, expected))


def _verify(token: str, expectation: Expectation, steps: Sequence[Step[ReleaseState]]) -> VerifiedRelease:
    """Run these steps. Only the test suite that removes a step passes another table than `STEPS`."""
    state = ReleaseState(
        unverified_token=token, typ=TYP_RELEASE, key_for=expectation.keys.get, expectation=expectation
    )
    run_steps(steps, state)
    return VerifiedRelease(state.claims, expectation.effect, token, _SEAL)


def _shape(state: ReleaseState) -> None:
    payload: Mapping[str, object] = state.payload
    state.claims = ReleaseClaims.from_claims(payload)


def _issuer(state: ReleaseState) -> str | None:
    return None if state.claims.iss == state.expectation.iss else "wrong_iss"


def _audience(state: ReleaseState) -> str | None:
    return None if state.claims.aud == state.expectation.aud else "wrong_aud"


def _not_before(state: ReleaseState) -> str | None:
    # Leeway only here: clocks differ, and accepting a token a few seconds early permits nothing that was withdrawn.
    claims, expected = state.claims, state.expectation
    latest = expected.now + expected.leeway
    if claims.iat > latest:
        return "issued_in_future"
    return "not_yet_valid" if claims.nbf > latest else None


def _expiry(state: ReleaseState) -> str | None:
    # no leeway: ending early costs one more request, ending late could fire on a withdrawn permission
    return None if state.expectation.now < state.claims.exp else "expired"


def _lifetime(state: ReleaseState) -> str | None:
    # A bound of the verifier: even a signer that was misconfigured cannot issue a permission for a year.
    claims = state.claims
    if not (claims.nbf < claims.exp and claims.iat < claims.exp):
        return "times_out_of_order"
    return "lifetime_too_long" if claims.exp - claims.iat > MAX_LIFETIME_SECONDS else None


def _kind(state: ReleaseState) -> str | None:
    # Without it, a release to charge could be used for the refund that takes the charge back, and the reverse.
    return None if state.claims.kind == state.expectation.kind else "wrong_kind"


def _compensates(state: ReleaseState) -> str | None:
    # Two effects may have equal compensations; the release is for one of them.
    return None if state.claims.compensates == state.expectation.compensates else "wrong_compensates"


def _agent(state: ReleaseState) -> str | None:
    return None if state.claims.sub == state.expectation.effect.agent else "wrong_sub"


def _txn(state: ReleaseState) -> str | None:
    return None if state.claims.txn == state.expectation.effect.txn else "wrong_txn"


def _txn_digest(state: ReleaseState) -> str | None:
    # People approved the list as a whole. A list without its last effect, or in another order, was not approved.
    return None if state.claims.txn_digest == state.expectation.txn_digest else "wrong_txn_digest"


def _epoch(state: ReleaseState) -> str | None:
    # A database restored from a backup has forgotten redemptions; its old releases could be redeemed a second time.
    return None if state.claims.epoch >= state.expectation.epoch_at_least else "old_epoch"


def _effect_id(state: ReleaseState) -> str | None:
    return None if state.claims.detail.effect_id == state.expectation.effect.effect_id else "wrong_effect_id"


def _sequence(state: ReleaseState) -> str | None:
    return None if state.claims.detail.seq == state.expectation.effect.seq else "wrong_seq"


def _tool(state: ReleaseState) -> str | None:
    return None if state.claims.detail.tool == state.expectation.effect.tool else "wrong_tool"


def _tool_digest(state: ReleaseState) -> str | None:
    # The manifest says what the arguments mean. The same arguments under another manifest are another effect.
    claims, expected = state.claims, state.expectation
    return None if claims.detail.tool_digest == expected.effect.tool_digest else "wrong_tool_digest"


def _resource(state: ReleaseState) -> str | None:
    # Policies decide by the resource, which is derived from the arguments: both sides must derive the same one.
    return None if state.claims.detail.resource == state.expectation.effect.resource else "wrong_resource"


def _call_key(state: ReleaseState) -> str | None:
    # compared, not recomputed: it derives from the args as staged, and an accepted edit keeps it
    return None if state.claims.detail.call_key == state.expectation.effect.call_key else "wrong_call_key"


def _args_digest(state: ReleaseState) -> str | None:
    claims, expected = state.claims, state.expectation
    return None if claims.detail.args_digest == expected.effect.args_digest else "wrong_args_digest"


def _effect_digest(state: ReleaseState) -> str | None:
    claims, expected = state.claims, state.expectation
    return None if claims.detail.effect_digest == expected.effect.digest else "wrong_effect_digest"


def _holder(state: ReleaseState) -> str | None:
    # A token copied from a log or a proxy is useless without the private key of this thumbprint.
    return None if state.claims.cnf_jkt == state.expectation.my_key_jkt else "wrong_cnf"


def _assurance(state: ReleaseState) -> str | None:
    # Anyone can sign in as anyone in development; such a vote must never release an effect in production.
    claims, expected = state.claims, state.expectation
    if claims.decision.assurance == "dev" and not expected.allow_dev:
        return "dev_assurance"
    return None


def _people(state: ReleaseState) -> str | None:
    # Protects against a service that marks a decision as made by people and has no vote to show for it.
    decision = state.claims.decision
    unvoted = not decision.votes or decision.assurance == "none"
    return "nobody_voted" if decision.mode in _PEOPLE_MODES and unvoted else None


STEP_TXN_DIGEST: Final = 20

STEPS: Final[tuple[Step[ReleaseState], ...]] = (
    *JWS_STEPS,
    Step(10, "shape", "every claim known, present and of its type; one effect (RFC 9396 section 2)", _shape),
    Step(11, "iss", "from the deployment I trust, not another with the same words", _issuer),
    Step(12, "aud", "for me, one exact string (RFC 8707)", _audience),
    Step(13, "not before", "iat and nbf are not in the future beyond the leeway", _not_before),
    Step(14, "expiry", "now < exp, without leeway", _expiry),
    Step(15, "lifetime", "times in order, and no standing permission", _lifetime),
    Step(16, "kind", "an undo is not a do, nor the reverse", _kind),
    Step(17, "compensates", "undoes the effect I mean to undo", _compensates),
    Step(18, "agent", "sub is the agent of this effect", _agent),
    Step(19, "txn", "of this transaction", _txn),
    Step(STEP_TXN_DIGEST, "txn_digest", "of exactly this list of effects in this order", _txn_digest),
    Step(21, "epoch", "not from before a restore", _epoch),
    Step(22, "effect_id", "for this effect of the transaction", _effect_id),
    Step(23, "seq", "at this place in the order", _sequence),
    Step(24, "tool", "for this tool", _tool),
    Step(25, "tool_digest", "for this reviewed manifest of the tool", _tool_digest),
    Step(26, "resource", "on this resource", _resource),
    Step(27, "call_key", "for this logical call: the idempotency key the tool gets", _call_key),
    Step(28, "args_digest", "for these args, recomputed from the bytes", _args_digest),
    Step(29, "effect_digest", "for all of it, recomputed from the bytes", _effect_digest),
    Step(30, "cnf", "given to the key I hold (RFC 7800)", _holder),
    Step(
        31,
        "assurance",
        "people proved who they are, unless I was told that development sign-in will do",
        _assurance,
    ),
    Step(32, "people", "a decision by people names their votes", _people),
)
"""The numbered steps of `verify_release`."""
