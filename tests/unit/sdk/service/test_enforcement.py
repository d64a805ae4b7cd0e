"""What the SDK believes: signatures over exactly its own bytes, and nothing else. A lying service fires nothing."""

from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from countersign import AlreadyRedeemed, ReleaseRefused, ReviewPending, ServiceUnavailable
from countersign.contract import EffectState, PrivateKey
from countersign.contract.jws import TYP_RECEIPT, TYP_RELEASE
from countersign.service.enforcement import Permit
from tests.fakes.desk import Desk, make_runtime, refund_tool
from tests.fakes.running import fails


@contextmanager
def with_settings(desk: Desk, **settings: Any) -> Any:
    """The desk's agent with other settings."""
    changed = replace(desk.runtime.settings, **settings)
    with make_runtime(changed, desk.face, desk.registry, desk.clock) as runtime:
        yield replace(desk, runtime=runtime)


def lie(desk: Desk, typ: str, change: Any) -> None:
    """Let the service sign something else than it should, with its real key."""
    desk.service.lies = lambda which, claims: change(claims) if which == typ else claims


def detail(claims: dict[str, Any], **changes: Any) -> dict[str, Any]:
    (one,) = claims["authorization_details"]
    return claims | {"authorization_details": [one | changes]}


RELEASES = {
    "of another effect": lambda c: detail(c, effect_id="1" * 64),
    "of other args": lambda c: detail(c, args_digest="1" * 64),
    "of another manifest": lambda c: detail(c, tool_digest="1" * 64),
    "of another call": lambda c: detail(c, call_key="1" * 64),
    "on another resource": lambda c: detail(c, resource={"type": "Order", "id": "o-2"}),
    "of another list": lambda c: c | {"txn_digest": "1" * 64},
    "of another transaction": lambda c: c | {"txn": "1" * 64},
    "for another agent": lambda c: c | {"sub": "somebody"},
    "for another enforcement point": lambda c: c | {"aud": "gateway"},
    "of another deployment": lambda c: c | {"iss": "https://other.example"},
    "given to another key": lambda c: c | {"cnf": {"jkt": PrivateKey.generate().public.kid}},
    "given to no one": lambda c: c | {"cnf": "none"},
    "that has expired": lambda c: c | {"exp": c["iat"]},
    "that lives too long": lambda c: c | {"exp": c["iat"] + 3_600},
    "from the future": lambda c: c | {"iat": c["iat"] + 60, "nbf": c["nbf"] + 60, "exp": c["exp"] + 60},
    "of a compensation": lambda c: c | {"kind": "compensate", "compensates": "1" * 64},
    "with an unknown claim": lambda c: c | {"may": "everything"},
}
RECEIPTS = {
    "of another attempt": lambda c: c | {"attempt": "somebody-elses"},
    "of other effects": lambda c: c | {"effects": [c["effects"][0] | {"effect_digest": "1" * 64}]},
    "for other tokens": lambda c: c | {"effects": [c["effects"][0] | {"jti": "A" * 22}]},
    "of another list": lambda c: c | {"txn_digest": "1" * 64},
    "of another deployment": lambda c: c | {"iss": "https://other.example"},
    "given to another key": lambda c: c | {"cnf": {"jkt": PrivateKey.generate().public.kid}},
    "of a compensation": lambda c: c | {"kind": "compensate"},
    "that lasts too long": lambda c: c | {"fire_by": c["iat"] + 3_600},
}


def refused_release(desk: Desk, refund: Any, match: str = "Nothing was fired") -> Any:
    """Nothing fires on what the service signs now."""
    refused = fails(desk, ReleaseRefused, (refund, "o-1", 100), match=match).error
    assert desk.done == []
    return refused


@pytest.mark.parametrize("what", RELEASES)
def test_nothing_fires_on_a_release(desk: Desk, refund: Any, what: str) -> None:
    lie(desk, TYP_RELEASE, RELEASES[what])
    assert refused_release(desk, refund).step is not None


@pytest.mark.parametrize("what", RECEIPTS)
def test_nothing_fires_on_a_receipt(desk: Desk, refund: Any, what: str) -> None:
    lie(desk, TYP_RECEIPT, RECEIPTS[what])
    refused_release(desk, refund)


def test_every_release_is_verified_before_the_first_effect_fires(desk: Desk, refund: Any) -> None:

    def third(claims: dict[str, Any]) -> dict[str, Any]:
        is_third = claims["authorization_details"][0]["seq"] == 3
        return detail(claims, args_digest="1" * 64) if is_third else claims

    lie(desk, TYP_RELEASE, third)
    desk.run(*((refund, order, 100) for order in ("o-1", "o-2", "o-3")), raises=ReleaseRefused)
    assert desk.done == []


def test_a_release_whose_votes_came_from_development_sign_in_needs_to_be_allowed(desk: Desk) -> None:
    call = (refund_tool(desk), "o-1", 90_000)
    desk.service.assurance = "dev"
    desk.service.approve(desk.run(call, raises=ReviewPending).txn)
    fails(desk, ReleaseRefused, call, match="dev_assurance")
    assert desk.done == []
    with with_settings(desk, allow_dev=True) as allowing:
        allowing.run(call)
    assert len(desk.done) == 1


def test_a_key_the_service_does_not_publish_signs_nothing(desk: Desk, refund: Any) -> None:
    desk.service.published = [PrivateKey.generate().public]
    refused_release(desk, refund, "step 8")


def test_a_new_key_is_fetched_when_it_is_first_seen(desk: Desk, refund: Any) -> None:
    desk.run((refund, "o-1", 100))
    desk.service.key = PrivateKey.generate()
    desk.service.published.append(desk.service.key.public)
    desk.clock.advance(desk.runtime.settings.jwks_retry_seconds + 1)
    desk.run((refund, "o-1", 100), key="t-2")
    assert len(desk.done) == 2


def pinning(desk: Desk, *keys: PrivateKey) -> AbstractContextManager[Desk]:
    """The desk's agent, which pins these keys."""
    return with_settings(desk, issuer_keys=tuple(key.public.kid for key in keys))


def test_a_key_set_without_a_pinned_key_verifies_nothing(desk: Desk) -> None:
    with pinning(desk, PrivateKey.generate()) as pins:
        refused_release(
            pins, refund_tool(desk), "unknown_kid.*COUNTERSIGN_ISSUER_KEYS does not pin.*issuer-keys"
        )


@pytest.mark.parametrize("typ", [TYP_RELEASE, TYP_RECEIPT])
def test_a_key_that_is_not_pinned_signs_nothing(desk: Desk, typ: str, caplog: Any) -> None:
    refund, pinned, forged = refund_tool(desk), desk.service.key, PrivateKey.generate()
    desk.service.published.append(forged.public)

    def switched(which: str, claims: dict[str, Any]) -> dict[str, Any]:
        desk.service.key = forged if which == typ else pinned
        return claims

    desk.service.lies = switched
    with pinning(desk, pinned) as pins:
        refused_release(pins, refund, "ISSUER_KEYS does not pin")
    assert f"does not pin, and their signatures are refused: {forged.public.kid}" in caplog.text


def test_a_rotation_to_a_pinned_key_needs_nothing(desk: Desk) -> None:
    refund, current, following = refund_tool(desk), desk.service.key, PrivateKey.generate()
    desk.service.published.append(following.public)
    with pinning(desk, current, following) as pins:
        pins.run((refund, "o-1", 100))
        desk.service.key = following
        desk.service.published = [following.public, PrivateKey.generate().public]
        desk.clock.advance(desk.runtime.settings.jwks_seconds + 1)
        pins.run((refund, "o-2", 100), key="t-2")
    assert len(desk.done) == 2


def test_a_flood_of_unknown_keys_causes_one_fetch(desk: Desk, refund: Any) -> None:
    desk.service.key = PrivateKey.generate()
    for key in range(5):
        desk.run((refund, "o-1", 100), key=f"t-{key}", raises=ReleaseRefused)
    assert desk.face.asked("/.well-known/jwks.json") == 1


def test_old_keys_are_not_used_when_new_ones_cannot_be_had(desk: Desk, refund: Any) -> None:
    desk.run((refund, "o-1", 100))
    desk.clock.advance(desk.runtime.settings.jwks_seconds + 1)
    desk.face.faults["/.well-known"] = ["lost_request"] * 10
    desk.run((refund, "o-1", 100), key="t-2", raises=ServiceUnavailable)
    assert len(desk.done) == 1


def test_a_release_from_before_a_restore_is_refused_for_ever(desk: Desk, refund: Any) -> None:
    desk.service.epoch = 2
    desk.run((refund, "o-1", 100))
    desk.service.epoch = 1
    fails(desk, ReleaseRefused, (refund, "o-1", 100), match="old_epoch", key="t-2")
    with desk.restarted() as restarted:
        fails(restarted, ReleaseRefused, (refund, "o-1", 100), match="old_epoch", key="t-3")


def test_a_key_spent_on_another_host_fires_nothing(desk: Desk, tmp_path: Any, refund: Any) -> None:
    desk.run((refund, "o-1", 100))
    with with_settings(desk, journal_path=tmp_path / "another.db") as elsewhere:
        ((revision,),) = desk.service.revisions.values()
        for state in (EffectState.FIRED, EffectState.REDEEMED):
            revision.held[0].state = state
            for amount in (100, 200):
                spent = fails(
                    elsewhere, AlreadyRedeemed, (refund, "o-1", amount), match=rf"outcome {state}\)"
                )
                assert spent.error.finished is (state is EffectState.FIRED)
    assert len(desk.done) == 1


def test_a_permit_cannot_be_made_by_hand(desk: Desk) -> None:
    with pytest.raises(TypeError, match="verified receipt"):
        Permit("a", frozenset(), 0, None, object())  # type: ignore[arg-type]
