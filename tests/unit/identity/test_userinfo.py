"""Userinfo adds to a sign-in that the ID token has proved; it neither refuses one nor speaks of somebody else."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from policy_service.identity import issuer_keys
from tests.fakes.identity_provider import CLIENT, ISSUER
from tests.unit.identity.signing_in import NOW, Browser, refusal, refused_because

pytestmark = pytest.mark.anyio
GROUPS = {"sub": "248", "groups": ["finance"]}
THEN = int(NOW.timestamp()) - 3_600


def asking(**given: Any) -> Browser:
    """A browser whose ID token holds no groups, so that userinfo is asked."""
    return Browser(groups_claim="groups", **given)


@pytest.mark.parametrize("how", ["down", "never", "redirect", "endless", "no JSON", "500"])
async def test_userinfo_that_fails_leaves_what_the_id_token_proved(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(issuer_keys, "PATIENCE_S", 0.2)
    browser = asking()
    if how == "down":
        browser.provider.down = {"/userinfo"}
    else:
        browser.provider.odd = {"/userinfo": how}
    with capture_logs() as logged:
        who = await browser.through()
    assert (who.sub, who.name, who.groups) == ("248", "Maya Okafor", frozenset())
    (line,) = [line for line in logged if line["event"] == "userinfo_not_used"]
    assert line["why"].startswith("userinfo of Acme ")
    assert who.groups_problem == f"Acme sent no claim 'groups' in the ID token, and {line['why']}"
    assert "/elsewhere" not in browser.provider.asked


UNUSABLE: dict[str, tuple[Any, str]] = {
    "no subject": ({"groups": ["finance"]}, "it names no subject"),
    "a subject that is a number": ({"sub": 248, "groups": ["finance"]}, "it names no subject"),
    "no object": ([GROUPS], "it names no subject"),
    "a text": ("248", "it names no subject"),
}


@pytest.mark.parametrize(("said", "why"), UNUSABLE.values(), ids=UNUSABLE.keys())
async def test_userinfo_without_a_subject_is_not_used(said: Any, why: str) -> None:
    browser = asking()
    browser.provider.userinfo = said
    who = await browser.through()
    assert who.groups == frozenset()
    assert who.groups_problem is not None
    assert who.groups_problem.endswith(f"userinfo of Acme cannot be used: {why}")


@pytest.mark.parametrize("more", [{}, {"iss": ISSUER, "aud": CLIENT}, {"aud": ["x", CLIENT], "exp": 2**40}])
async def test_signed_userinfo_counts_when_its_signature_holds(more: dict[str, Any]) -> None:
    browser = asking()
    browser.provider.signs_userinfo, browser.provider.userinfo = True, GROUPS | more
    who = await browser.through()
    assert (who.groups, who.groups_problem) == ({"finance"}, None)


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no signature": ({"alg": "none"}, {}, "its alg is 'none'"),
    "the public key as a secret": ({"alg": "HS256"}, {}, "its alg is 'HS256'"),
    "a critical extension": ({"crit": ["x"], "x": 1}, {}, "its crit ['x']"),
    "another type": ({"typ": "at+jwt"}, {}, "its typ is 'at+jwt'"),
    "another issuer": ({}, {"iss": "https://evil.example"}, "it is another issuer's"),
    "another audience": ({}, {"aud": "somebody-else"}, "it is for another client"),
    "no audience": ({}, {"aud": []}, "it is for another client"),
    "expired": ({}, {"exp": THEN}, "its claims do not hold"),
    "no subject": ({}, {"sub": None}, ""),
}


@pytest.mark.parametrize(("header", "more", "why"), BAD.values(), ids=BAD.keys())
async def test_signed_userinfo_that_does_not_hold_is_not_used(
    header: dict[str, Any], more: dict[str, Any], why: str
) -> None:
    browser = asking()
    honest = browser.provider.token
    browser.provider.signs_userinfo, browser.provider.userinfo = True, GROUPS | more

    def token_then_fault(nonce: str | None, access_token: str) -> str:
        token = honest(nonce, access_token)
        browser.provider.header = header  # of userinfo alone
        return token

    browser.provider.token = token_then_fault  # type: ignore[method-assign]
    who = await browser.through()
    assert (who.sub, who.groups) == ("248", frozenset())
    assert f"userinfo of Acme cannot be used: {why}" in str(who.groups_problem)


@pytest.mark.parametrize("signs", [False, True])
async def test_userinfo_of_another_subject_refuses_the_sign_in(signs: bool) -> None:
    browser = asking()
    browser.provider.signs_userinfo = signs
    browser.provider.userinfo = {"sub": "666", "groups": ["finance"]}
    assert await refused_because(browser.through()) == "userinfo speaks of somebody else"


async def test_membership_is_refused_while_userinfo_fails() -> None:
    browser = asking(members_of=["staff"])
    browser.provider.down = {"/userinfo"}
    assert "userinfo of Acme does not answer" in await refusal(browser.through())


async def test_a_claim_the_settings_require_is_still_required_while_userinfo_fails() -> None:
    browser = asking(required={"hd": "acme.example"})
    browser.provider.down = {"/userinfo"}
    assert "hd = 'acme.example'" in await refusal(browser.through())


async def test_userinfo_is_not_fetched_when_the_id_token_has_every_claim() -> None:
    browser = asking()
    browser.provider.id_token = {"email": "maya@acme.example", "groups": ["finance"]}
    browser.provider.down = {"/userinfo"}
    who = await browser.through()
    assert (who.groups, who.groups_problem) == ({"finance"}, None)
    assert "/userinfo" not in browser.provider.asked
