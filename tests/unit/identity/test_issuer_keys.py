"""How long an issuer's answer counts, and what happens while it gives none."""

from __future__ import annotations

import asyncio

import pytest

from policy_service.identity import issuer_keys
from tests.unit.identity.signing_in import Browser, refusal, refused_because

pytestmark = pytest.mark.anyio
DISCOVERY = "/.well-known/openid-configuration"
HOUR = 3_600


async def signed_in_once() -> Browser:
    """Somebody has signed in, so the keys and the metadata are cached."""
    browser = Browser()
    assert (await browser.through()).sub == "248"
    return browser


def wait(browser: Browser, seconds: float) -> None:
    keys = browser.sign_in._keys["acme"]
    now = keys._monotonic()
    keys._monotonic = lambda: now + seconds


@pytest.mark.parametrize("how", ["down", "500", "no JSON", "endless", "redirect"])
async def test_one_failed_request_for_an_unknown_key_refuses_that_token_alone(how: str) -> None:
    browser = await signed_in_once()
    wait(browser, 31)
    browser.provider.signed_with = "k2"
    if how == "down":
        browser.provider.down = {"/keys"}
    else:
        browser.provider.odd = {"/keys": how}
    assert await refused_because(browser.through()) == "'acme' publishes no key with kid 'k2'"
    browser.provider.signed_with = "k1"
    for _ in range(3):
        assert (await browser.through()).sub == "248"
    assert browser.provider.asked.count("/keys") == 2


@pytest.mark.parametrize("path", ["/keys", DISCOVERY])
async def test_cached_answers_count_for_twelve_hours_while_the_issuer_gives_none(path: str) -> None:
    browser = await signed_in_once()
    browser.provider.down = {path}
    wait(browser, HOUR + 1)
    assert (await browser.through()).sub == "248"
    assert (await browser.through()).sub == "248"
    asked = browser.provider.asked.count(path)
    assert asked == 2, "a failed request is not repeated at once"
    wait(browser, 31)
    assert (await browser.through()).sub == "248"
    assert browser.provider.asked.count(path) == 3
    wait(browser, 11 * HOUR)
    assert (await refusal(browser.through())).startswith("issuer_unavailable:")


async def test_new_keys_are_fetched_as_soon_as_the_issuer_answers_again() -> None:
    browser = await signed_in_once()
    browser.provider.down = {"/keys"}
    wait(browser, HOUR + 1)
    await browser.through()
    browser.provider.down, browser.provider.published, browser.provider.signed_with = set(), ("k2",), "k2"
    assert await refused_because(browser.through()) == "'acme' publishes no key with kid 'k2'"
    wait(browser, 31)
    assert (await browser.through()).sub == "248"
    browser.provider.signed_with = "k1"
    assert await refused_because(browser.through()) == "'acme' publishes no key with kid 'k1'"


@pytest.mark.parametrize("keys", [[], [{"kty": "oct", "kid": "k1"}]])
async def test_an_issuer_that_withdraws_every_key_has_none_left(keys: list[object]) -> None:
    browser = await signed_in_once()
    browser.provider.published, browser.provider.more_keys = (), keys
    wait(browser, HOUR + 1)
    for _ in range(2):
        assert (await refusal(browser.through())).startswith("issuer_unavailable:")


async def test_a_discovery_of_another_issuer_does_not_replace_the_one_at_hand() -> None:
    browser = await signed_in_once()
    browser.provider.metadata = {"issuer": "https://evil.example", "jwks_uri": "https://evil.example/keys"}
    wait(browser, HOUR + 1)
    assert (await browser.through()).sub == "248"


async def test_an_issuer_that_hangs_delays_one_sign_in_only(monkeypatch: pytest.MonkeyPatch) -> None:
    browser = await signed_in_once()
    monkeypatch.setattr(issuer_keys, "PATIENCE_S", 30.0)
    browser.provider.odd = {"/keys": "never"}
    wait(browser, HOUR + 1)
    keys = browser.sign_in._keys["acme"]
    hanging = asyncio.create_task(keys.keys("k1"))
    await asyncio.sleep(0.05)
    assert browser.provider.asked.count("/keys") == 2
    async with asyncio.timeout(5):
        assert [key.kid for key in (await keys.keys("k1")).usable] == ["k1"]
    hanging.cancel()


async def test_many_sign_ins_at_once_fetch_the_keys_once() -> None:
    browser = Browser()
    keys = browser.sign_in._keys["acme"]
    await asyncio.gather(*(keys.keys(kid) for kid in ("k1", "k9", None, "k1", "k8")))
    assert (browser.provider.asked.count("/keys"), browser.provider.asked.count(DISCOVERY)) == (1, 1)
