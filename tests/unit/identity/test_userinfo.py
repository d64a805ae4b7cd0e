"""Userinfo adds claims to a verified sign-in; it never refuses one, except for another subject."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from policy_service.identity import issuer_keys
from tests.fakes.identity_provider import CLIENT, ISSUER
from tests.unit.identity.signing_in import NOW, Browser, refusal, refused_because

GROUPS = {"sub": "248", "groups": ["finance"]}


def asking(**given: Any) -> Browser:
    """A browser whose ID token holds no groups, so that userinfo is asked."""
    return Browser(groups_claim="groups", **given)


@pytest.mark.parametrize("how", ["down", "never", "redirect", "endless", "no JSON", "500"])
async def test_userinfo_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(issuer_keys, "TOTAL_TIMEOUT_S", 0.2)
    browser = asking().failing("/userinfo", how)
    with capture_logs() as logged:
        who = await browser.through()
    assert (who.sub, who.name, who.groups) == ("248", "Maya Okafor", frozenset())
    (line,) = [line for line in logged if line["event"] == "userinfo_not_used"]
    assert line["why"].startswith("userinfo of Acme ")
    assert who.groups_problem == f"Acme sent no claim 'groups' in the ID token, and {line['why']}"
    assert "/elsewhere" not in browser.provider.asked


@pytest.mark.parametrize("said", [{"groups": ["finance"]}, GROUPS | {"sub": 248}, [GROUPS], "248"])
async def test_userinfo_without_a_subject_is_not_used(said: Any) -> None:
    who = await asking().but(userinfo=said).through()
    assert who.groups == frozenset()
    assert str(who.groups_problem).endswith("userinfo of Acme cannot be used: it names no subject")


@pytest.mark.parametrize("more", [{}, {"iss": ISSUER, "aud": CLIENT}, {"aud": ["x", CLIENT], "exp": 2**40}])
async def test_signed_userinfo_counts_when_its_signature_holds(more: dict[str, Any]) -> None:
    who = await asking().but(signs_userinfo=True, userinfo=GROUPS | more).through()
    assert (who.groups, who.groups_problem) == ({"finance"}, None)


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    **{alg: ({"alg": alg}, {}, f"its alg is {alg!r}") for alg in ("none", "HS256")},
    "a critical extension": ({"crit": ["x"], "x": 1}, {}, "its crit ['x']"),
    "another type": ({"typ": "at+jwt"}, {}, "its typ is 'at+jwt'"),
    "another issuer": ({}, {"iss": "https://evil.example"}, "it is another issuer's"),
    **{f"for {aud!r}": ({}, {"aud": aud}, "it is for another client") for aud in ("somebody-else", [])},
    "expired": ({}, {"exp": (int(NOW.timestamp()) - 3_600)}, "its claims are invalid"),
    "no subject": ({}, {"sub": None}, ""),
}


@pytest.mark.parametrize(("header", "more", "why"), BAD.values(), ids=BAD.keys())
async def test_userinfo_badly_signed_is_not_used(header: Any, more: dict[str, Any], why: str) -> None:
    browser = asking().but(signs_userinfo=True, userinfo=GROUPS | more)
    honest = browser.provider.token

    def token_then_fault(nonce: str | None, access_token: str) -> str:
        token = honest(nonce, access_token)
        browser.but(header=header)  # of userinfo alone
        return token

    who = await browser.but(token=token_then_fault).through()
    assert (who.sub, who.groups) == ("248", frozenset())
    assert f"userinfo of Acme cannot be used: {why}" in str(who.groups_problem)


@pytest.mark.parametrize("signs", [False, True])
async def test_userinfo_of_another_subject_refuses_the_sign_in(signs: bool) -> None:
    browser = asking().but(signs_userinfo=signs, userinfo={"sub": "666", "groups": ["finance"]})
    assert await refused_because(browser.through()) == "userinfo is about another subject"


async def test_what_the_settings_ask_for_is_refused_while_userinfo_fails() -> None:
    for given, message in (
        ({"members_of": ["staff"]}, "userinfo of Acme does not answer"),
        ({"required": {"hd": "acme.example"}}, "hd = 'acme.example'"),
    ):
        assert message in await refusal(asking(**given).failing("/userinfo", "down").through())


async def test_userinfo_is_not_fetched_when_the_id_token_has_every_claim() -> None:
    browser = asking().failing("/userinfo", "down")
    browser.but(id_token={"email": "maya@acme.example", "groups": ["finance"]})
    who = await browser.through()
    assert (who.groups, who.groups_problem) == ({"finance"}, None)
    assert "/userinfo" not in browser.provider.asked
