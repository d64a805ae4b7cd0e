"""Caching of an issuer's documents, also while it does not answer."""

import asyncio

import pytest

from policy_service.identity import issuer_keys
from tests.unit.identity.signing_in import DISCOVERY, Browser, refusal, refused_because

HOUR = 3_600
NO_KEY = "'acme' publishes no key with kid '{}'"


async def signed_in_once() -> Browser:
    """Somebody has signed in, so the keys and the metadata are cached."""
    browser = Browser()
    assert (await browser.through()).sub == "248"
    return browser


@pytest.mark.parametrize("how", ["down", "500", "no JSON", "endless", "redirect"])
async def test_one_failed_request_for_an_unknown_key_refuses_that_token_alone(how: str) -> None:
    browser = await signed_in_once()
    browser.wait(31)
    browser.failing("/keys", how).but(signed_with="k2")
    assert await refused_because(browser.through()) == NO_KEY.format("k2")
    browser.but(signed_with="k1")
    for _ in range(3):
        assert (await browser.through()).sub == "248"
    assert browser.provider.asked.count("/keys") == 2


@pytest.mark.parametrize("path", ["/keys", DISCOVERY])
async def test_cached_answers_count_for_twelve_hours_while_the_issuer_gives_none(path: str) -> None:
    browser = await signed_in_once()
    browser.but(down={path})
    browser.wait(HOUR + 1)
    for _ in range(2):
        assert (await browser.through()).sub == "248"
        assert browser.provider.asked.count(path) == 2, "a failed request is not repeated at once"
    browser.wait(31)
    assert ((await browser.through()).sub, browser.provider.asked.count(path)) == ("248", 3)
    browser.wait(11 * HOUR)
    assert (await refusal(browser.through())).startswith("issuer_unavailable:")


async def test_new_keys_are_fetched_as_soon_as_the_issuer_answers_again() -> None:
    browser = await signed_in_once()
    browser.but(down={"/keys"})
    browser.wait(HOUR + 1)
    await browser.through()
    browser.but(down=set(), published=("k2",), signed_with="k2")
    assert await refused_because(browser.through()) == NO_KEY.format("k2")
    browser.wait(31)
    assert (await browser.through()).sub == "248"
    browser.but(signed_with="k1")
    assert await refused_because(browser.through()) == NO_KEY.format("k1")


async def test_a_key_that_was_withdrawn_counts_for_an_hour_at_most() -> None:
    browser = await signed_in_once()
    browser.but(published=("k2",))
    browser.wait(HOUR - 100)
    await browser.through()
    browser.wait(101)
    assert (await refusal(browser.through())).startswith("forbidden:")


@pytest.mark.parametrize("keys", [[], [{"kty": "oct", "kid": "k1"}]])
async def test_an_issuer_that_withdraws_every_key_has_none_left(keys: list[object]) -> None:
    browser = await signed_in_once()
    browser.but(published=(), more_keys=keys)
    browser.wait(HOUR + 1)
    for _ in range(2):
        assert (await refusal(browser.through())).startswith("issuer_unavailable:")


async def test_a_discovery_of_another_issuer_does_not_replace_the_one_at_hand() -> None:
    browser = await signed_in_once()
    browser.but(metadata={"issuer": "https://evil.example", "jwks_uri": "https://evil.example/keys"})
    browser.wait(HOUR + 1)
    assert (await browser.through()).sub == "248"


async def test_a_failed_issuer_is_not_retried_at_once() -> None:
    browser = Browser().failing(DISCOVERY, "down")
    for _ in range(5):
        assert (await refusal(browser.leave())).startswith("issuer_unavailable:")
    assert len(browser.provider.asked) == 1
    browser.but(down=set()).wait(31)
    await browser.leave()


async def test_an_issuer_that_hangs_delays_one_sign_in_only(monkeypatch: pytest.MonkeyPatch) -> None:
    browser = await signed_in_once()
    monkeypatch.setattr(issuer_keys, "TOTAL_TIMEOUT_S", 30.0)
    browser.failing("/keys", "never").wait(HOUR + 1)
    hanging = asyncio.create_task(browser.keys.keys("k1"))
    await asyncio.sleep(0.05)
    assert browser.provider.asked.count("/keys") == 2
    async with asyncio.timeout(5):
        assert [key.kid for key in (await browser.keys.keys("k1")).usable] == ["k1"]
    hanging.cancel()


async def test_many_sign_ins_at_once_fetch_the_keys_once() -> None:
    browser = Browser()
    await asyncio.gather(*(browser.keys.keys(kid) for kid in ("k1", "k9", None, "k1", "k8")))
    assert (browser.provider.asked.count("/keys"), browser.provider.asked.count(DISCOVERY)) == (1, 1)
