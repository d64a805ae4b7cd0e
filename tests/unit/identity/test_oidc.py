"""The code flow against a provider that can be wrong in every way; the honest ones are in the integration tests."""

from __future__ import annotations

import base64
import hashlib
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from structlog.testing import capture_logs

from policy_service.identity import issuer_keys
from policy_service.identity.oidc import Identity, SignIn
from tests.fakes.identity_provider import CLIENT, ISSUER
from tests.unit.identity.signing_in import HERE, NOW, Browser, refusal

pytestmark = pytest.mark.anyio


async def test_a_person_is_issuer_and_subject() -> None:
    browser = Browser()
    trust = browser.table.trust
    assert await browser.through() == Identity(ISSUER, "248", "Maya Okafor", None, None, trust)


async def test_the_request_asks_for_a_code_with_a_challenge_a_state_and_a_nonce_of_its_own() -> None:
    browser = Browser()
    seen = []
    for _ in range(2):
        departure = await browser.sign_in.begin("acme", "/")
        url = urlsplit(departure.url)
        assert f"{url.scheme}://{url.netloc}{url.path}" == f"{ISSUER}/authorize"
        query = dict(parse_qs(url.query).items())
        assert query["redirect_uri"] == [f"{HERE}/sign-in/acme/callback"]
        assert query["client_id"] == [CLIENT]
        assert query["scope"] == ["openid profile email"]
        seen += [query[name][0] for name in ("state", "nonce", "code_challenge")]
        assert departure.note.count(".") == 4, "the note is encrypted"
    assert len(set(seen)) == 6


async def test_a_fresh_sign_in_asks_the_provider_to_make_sure_of_them_anew() -> None:
    browser = Browser()
    query = parse_qs(urlsplit((await browser.sign_in.begin("acme", "/passkeys", fresh=True)).url).query)
    assert (query["prompt"], query["max_age"]) == (["login"], ["0"])
    query = parse_qs(urlsplit((await browser.sign_in.begin("acme", "/")).url).query)
    assert not {"prompt", "max_age"} & query.keys()


@pytest.mark.parametrize(
    ("said", "ago"),
    [(0, 0), (-40, 40), (3600, 0), (-40.5, 41), (3600.5, 0), (None, None), (True, None), ("-40", None)],
    ids=["now", "ago", "in the future", "a fraction", "a fraction ahead", "not said", "true", "a text"],
)
async def test_when_they_proved_who_they_are_is_what_the_provider_says(said: object, ago: int | None) -> None:
    """Never later than now: what lies ahead would stay fresh for longer than it may."""
    browser = Browser()
    now = int(browser.now.timestamp())
    told = now + said if type(said) in {int, float} else said
    browser.provider.id_token = {} if told is None else {"auth_time": told}
    auth_at = (await browser.through()).auth_at
    assert (None if auth_at is None else now - int(auth_at.timestamp())) == ago


WRONG_TOKENS = {
    "another issuer": {"id_token": {"iss": "https://evil.example"}},
    "no issuer": {"id_token": {"iss": None}},
    "another audience": {"id_token": {"aud": "somebody-else"}},
    "another audience, made for us": {"id_token": {"aud": "somebody-else", "azp": CLIENT}},
    "no audience": {"id_token": {"aud": None}},
    "ours among others, without azp": {"id_token": {"aud": [CLIENT, "b"]}},
    "ours among others, made for another": {"id_token": {"aud": [CLIENT, "b"], "azp": "b"}},
    "made for another": {"id_token": {"azp": "b"}},
    "another nonce": {"id_token": {"nonce": "n"}},
    "no nonce": {"id_token": {"nonce": None}},
    "expired": {"id_token": {"exp": int(NOW.timestamp()) - 61}},
    "no expiry": {"id_token": {"exp": None}},
    "an expiry that is a text": {"id_token": {"exp": "9999999999"}},
    "of the future": {"id_token": {"iat": int(NOW.timestamp()) + 120}},
    "not valid yet": {"id_token": {"nbf": int(NOW.timestamp()) + 120}},
    "another access token": {"id_token": {"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"}},
    "no subject": {"claims": {"name": "Maya"}},
    "an empty subject": {"claims": {"sub": ""}},
    "a subject that is a number": {"claims": {"sub": 248}},
    "a subject nobody can read": {"claims": {"sub": "24\u202e8"}},
    "a subject without end": {"claims": {"sub": "2" * 256}},
    "no signature": {"header": {"alg": "none"}},
    "the public key as a shared secret": {"header": {"alg": "HS256"}},
    "a key nobody published": {"signed_with": "k2"},
    "another key under a known id": {"signed_with": "k2", "header": {"kid": "k1"}},
    "an access token in its place": {"header": {"typ": "at+jwt"}},
    "a key to fetch": {"header": {"jku": "https://evil.example/keys"}},
    "a key in its header": {"header": {"jwk": {"kty": "oct", "k": "AA"}}},
    "a token in a token": {"header": {"cty": "JWT"}},
    "critical headers": {"header": {"crit": ["b64"], "b64": False}},
    "somebody else in userinfo": {"userinfo": {"sub": "666", "name": "Mallory", "email": "m@evil.example"}},
}


@pytest.mark.parametrize("wrong", WRONG_TOKENS.values(), ids=WRONG_TOKENS.keys())
async def test_a_token_that_does_not_hold_signs_nobody_in(wrong: dict[str, Any]) -> None:
    browser = Browser()
    for name, value in wrong.items():
        setattr(browser.provider, name, value)
    assert (await refusal(browser.through())).startswith(
        "forbidden: what Acme answered could not be verified"
    )


async def test_an_audience_list_with_ours_as_the_authorised_party_holds() -> None:
    browser = Browser()
    browser.provider.id_token = {"aud": [CLIENT, "b"], "azp": CLIENT}
    assert (await browser.through()).sub == "248"


CHANGED: dict[str, dict[str, str | None]] = {
    "another state": {"state": "another"},
    "no state": {"state": None},
    "another issuer": {"iss": "https://evil.example"},
    "no issuer where it is promised": {"iss": None},
    "no code": {"code": None},
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
async def test_an_answer_that_is_not_this_browsers_buys_nothing(change: dict[str, str | None]) -> None:
    browser = Browser()
    answer = await browser.leave() | change
    coming = browser.come_back({name: value for name, value in answer.items() if value is not None})
    assert (await refusal(coming)).startswith("bad_token:")
    assert "/token" not in browser.provider.asked, "a code that came in the wrong way is never spent"


@pytest.mark.parametrize(
    "how", ["no note", "a later note", "a note we did not seal", "too late", "another door"]
)
async def test_an_answer_without_this_departures_note_buys_nothing(how: str) -> None:
    browser, door = Browser(), "acme"
    answer = await browser.leave()
    if how == "no note":
        browser.note = None
    elif how == "a later note":
        await browser.leave()
    elif how == "a note we did not seal":
        other = Browser()
        provider = browser.provider.transport
        other.sign_in = SignIn(other.sign_in._providers, HERE, b"y" * 32, lambda: NOW, provider)
        await other.leave()
        browser.note = other.note
    elif how == "too late":
        browser.now += timedelta(seconds=601)
    else:
        door = "other"
    assert (await refusal(browser.sign_in.finish(door, answer, browser.note))).startswith("bad_token:")
    assert "/token" not in browser.provider.asked, "a code that came in the wrong way is never spent"


async def test_a_code_is_spent_once() -> None:
    browser = Browser()
    answer = await browser.leave()
    await browser.come_back(answer)
    assert (await refusal(browser.come_back(answer))).startswith("forbidden:")


async def test_an_issuer_that_is_not_promised_may_be_left_out() -> None:
    browser = Browser()
    browser.provider.metadata = {"authorization_response_iss_parameter_supported": False}
    answer = await browser.leave()
    del answer["iss"]
    assert (await browser.come_back(answer)).sub == "248"


async def test_a_refusal_of_the_providers_is_told() -> None:
    browser = Browser()
    answer = await browser.leave()
    del answer["code"]
    told = await refusal(browser.come_back(answer | {"error": "access_denied"}))
    assert told == "forbidden: Acme did not sign you in (access_denied)"


@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/token", "/keys"])
async def test_a_provider_that_does_not_answer_is_nobodys_fault_here(path: str) -> None:
    browser = Browser()
    browser.provider.down = {path}
    assert (await refusal(browser.through())).startswith("issuer_unavailable:")


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example"},
        {"issuer": ISSUER + "/"},
        {"authorization_endpoint": "http://login.example/authorize"},
        {"authorization_endpoint": None},
        {"token_endpoint": "http://10.0.0.1/token"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": "https://169.254.169.254/latest"},
        {"token_endpoint": "https://[::1]/token"},
        {"userinfo_endpoint": "http://127.0.0.1:2375/containers"},
        {"jwks_uri": "https://localhost/keys"},
    ],
)
async def test_a_discovery_that_leads_elsewhere_is_not_followed(metadata: dict[str, Any]) -> None:
    browser = Browser()
    browser.provider.metadata = metadata
    assert (await refusal(browser.through())).startswith("issuer_unavailable:")


async def test_keys_that_were_rotated_are_found() -> None:
    browser = Browser()
    await browser.through()
    browser.provider.signed_with, browser.provider.published = "k2", ("k1", "k2")
    keys = browser.sign_in._keys["acme"]
    keys._monotonic = lambda: 10.0**9  # half a minute later, and more
    assert (await browser.through()).sub == "248"


async def test_a_key_that_was_withdrawn_counts_for_an_hour_at_most() -> None:
    browser = Browser()
    await browser.through()
    browser.provider.published = ("k2",)
    keys = browser.sign_in._keys["acme"]
    fetched = keys._monotonic()
    keys._monotonic = lambda: fetched + 3_500
    await browser.through()
    keys._monotonic = lambda: fetched + 3_601
    assert (await refusal(browser.through())).startswith("forbidden:")


async def test_a_private_key_somebody_published_is_not_taken() -> None:
    browser = Browser()
    browser.provider.leaks = True
    assert (await refusal(browser.through())).startswith("issuer_unavailable:")


@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/keys", "/token"])
@pytest.mark.parametrize("how", ["redirect", "endless", "no JSON", "500"])
async def test_an_answer_that_is_none_is_not_used(path: str, how: str) -> None:
    browser = Browser()
    browser.provider.odd = {path: how}
    told = await refusal(browser.through())
    assert told.startswith("issuer_unavailable:") or (path == "/token" and told.startswith("forbidden:"))
    assert "/elsewhere" not in browser.provider.asked


async def test_an_issuer_that_failed_is_left_alone_for_a_while_and_nobody_waits_for_it() -> None:
    browser = Browser()
    browser.provider.down = {"/.well-known/openid-configuration"}
    for _ in range(5):
        assert (await refusal(browser.leave())).startswith("issuer_unavailable:")
    assert len(browser.provider.asked) == 1
    browser.provider.down = set()
    keys = browser.sign_in._keys["acme"]
    failed_at = keys._monotonic()
    keys._monotonic = lambda: failed_at + 31
    await browser.leave()


async def test_an_answer_that_drips_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuer_keys, "PATIENCE_S", 0.05)
    browser = Browser()
    browser.provider.odd = {"/.well-known/openid-configuration": "never"}
    assert (await refusal(browser.leave())).startswith("issuer_unavailable:")


ODD_KEYS: dict[str, list[Any]] = {
    "a curve nobody knows": [{"kty": "EC", "crv": "BP-256", "x": "AA", "y": "AA", "kid": "odd"}],
    "a kind nobody knows": [{"kty": "AKP", "alg": "ML-DSA-44", "kid": "odd"}],
    "no key at all": ["x", 7, None, []],
}


@pytest.mark.parametrize("odd", ODD_KEYS.values(), ids=ODD_KEYS.keys())
async def test_a_key_that_cannot_be_used_does_not_hide_the_others(odd: list[Any]) -> None:
    browser = Browser()
    browser.provider.more_keys = odd
    assert (await browser.through()).sub == "248"


@pytest.mark.parametrize("keys", [[], {}, "x", None])
async def test_a_key_set_that_is_none_is_told(keys: Any) -> None:
    browser = Browser()
    browser.provider.published, browser.provider.more_keys = (), keys
    assert (await refusal(browser.through())).startswith("issuer_unavailable:")


async def test_a_page_too_long_to_remember_is_not_come_back_to() -> None:
    departure = await Browser().sign_in.begin("acme", "/" + "x" * 3_000)
    assert len(departure.note) < 4_000


async def test_unknown_key_ids_do_not_flood_the_provider() -> None:
    browser = Browser()
    await browser.through()
    browser.provider.signed_with = "k2"
    for _ in range(5):
        await refusal(browser.through())
    assert browser.provider.asked.count("/keys") == 1


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"name": "  Maya  "}, "Maya"),
        ({"name": "Ma\u202eya", "preferred_username": "maya"}, "maya"),
        (
            {"name": "", "preferred_username": 7, "email": "maya@acme.example", "email_verified": True},
            "maya@acme.example",
        ),
        ({"email": "ceo@acme.example"}, "248"),
        ({"name": "\u3164", "preferred_username": "\u2800"}, "248"),
        ({"name": "M" * 101}, "248"),
        ({}, "248"),
    ],
)
async def test_a_name_is_one_that_can_be_read(claims: dict[str, Any], name: str) -> None:
    browser = Browser()
    browser.provider.claims = {"sub": "248"} | claims
    assert (await browser.through()).name == name


@pytest.mark.parametrize(
    ("configured", "claimed", "groups"),
    [
        ({}, ["finance"], None),
        ({"groups_claim": "groups"}, ["finance", "ops"], {"finance", "ops"}),
        ({"groups_claim": "groups"}, "finance", {"finance"}),
        ({"groups_claim": "groups"}, ["finance", 7], {"finance"}),
        ({"groups_claim": "groups"}, None, set()),
        ({"groups_claim": "groups"}, ["g"] * 501, {"g"}),
        ({"groups_claim": "groups", "groups": {"9f-guid": "finance"}}, ["9f-guid", "cfo"], {"finance"}),
    ],
)
async def test_groups_count_only_as_the_settings_say(
    configured: dict[str, Any], claimed: object, groups: set[str] | None
) -> None:
    browser = Browser(**configured)
    browser.provider.claims |= {"groups": claimed}
    assert (await browser.through()).groups == groups


async def test_groups_that_only_userinfo_tells_count() -> None:
    browser = Browser(groups_claim="groups")
    browser.provider.userinfo = {"sub": "248", "groups": ["finance"], "name": "Not Signed"}
    identity = await browser.through()
    assert (identity.groups, identity.name) == ({"finance"}, "Maya Okafor")


@pytest.mark.parametrize(
    ("listed", "let_in"),
    [
        (["staff"], True),
        (["x", "staff"], True),
        ([7, "staff"], True),
        ("staff", True),
        (["x"], False),
        ("x staff", False),
        ({"staff": True}, False),
        (None, False),
    ],
)
async def test_only_members_may_sign_in_where_the_settings_name_them(listed: object, let_in: bool) -> None:
    """Whoever signs in reads the queue: a provider where anybody has an account must not let anybody in."""
    browser = Browser(groups_claim="groups", members_of=["staff"], groups={"staff": "finance"})
    browser.provider.claims |= {"groups": listed}
    if let_in:
        assert (await browser.through()).groups == {"finance"}
    else:
        assert "none of the groups" in await refusal(browser.through())


@pytest.mark.parametrize(
    ("hd", "told"), [("acme.example", None), ("evil.example", "hd"), (None, "hd"), (True, "hd")]
)
async def test_a_claim_the_settings_require_is_required(hd: object, told: str | None) -> None:
    browser = Browser(required={"hd": "acme.example"})
    browser.provider.claims |= {"hd": hd}
    if told is None:
        assert (await browser.through()).sub == "248"
    else:
        assert told in await refusal(browser.through())


async def test_a_provider_nobody_configured_is_not_found() -> None:
    assert (await refusal(Browser().sign_in.begin("evil", "/"))).startswith("not_found:")


@pytest.mark.parametrize("said", ["1700000000", "soon", [], {"at": 1}, True, -1, -0.5])
async def test_a_time_of_sign_in_that_is_no_number_is_left_out_and_logged(said: object) -> None:
    browser = Browser()
    browser.provider.id_token = {"auth_time": said}
    with capture_logs() as logged:
        assert (await browser.through()).auth_at is None
    why = [line["why"] for line in logged if line["event"] == "auth_time_not_used"]
    assert why == [f"it is {said!r}, no NumericDate"]


@pytest.mark.parametrize("said", [1700000000.5, 1.7e9, 0, 0.0])
async def test_a_time_of_sign_in_may_have_a_fraction(said: float) -> None:
    browser = Browser()
    browser.provider.id_token = {"auth_time": said}
    auth_at = (await browser.through()).auth_at
    assert auth_at is not None and auth_at.timestamp() == said


@pytest.mark.parametrize("amr", ["pwd", 7, {"pwd": 1}])
async def test_an_unused_claim_of_odd_form_is_ignored(amr: object) -> None:
    browser = Browser()
    browser.provider.id_token = {"amr": amr}
    assert (await browser.through()).sub == "248"


SECRETS = ["plain-secret_1.~", "a b+c%d", "a:b/c?d&e=f", "ä ö ü €", "%41%3A", "+", '"quoted"\\']


@pytest.mark.parametrize("secret", SECRETS)
async def test_basic_credentials_are_form_encoded(secret: str) -> None:
    """RFC 6749 section 2.3.1: without it, a '%' or '+' of a secret is another secret to the provider."""
    browser = Browser(client_secret=secret)
    browser.provider.secret = secret
    assert (await browser.through()).sub == "248"


async def test_a_wrong_secret_is_refused_in_words_for_the_person_and_for_the_operator() -> None:
    browser = Browser()
    browser.provider.refuses_codes = {
        "error": "invalid_client",
        "error_description": "AADSTS7000215: Invalid client\r\nsecret\u202e <b>provided</b>. " + "x" * 5_000,
    }
    with capture_logs() as logged:
        told = await refusal(browser.through())
    assert told == (
        "forbidden: Acme did not finish the sign-in (invalid_client); an operator has to look at client_id, the client "
        "secret and token_auth in the settings"
    )
    (line,) = [line for line in logged if line["event"] == "sign_in_refused"]
    assert (line["provider"], line["error"]) == ("acme", "invalid_client")
    assert line["description"].startswith("AADSTS7000215: Invalid client secret <b>provided</b>. xxx")
    assert len(line["description"]) == 301


@pytest.mark.parametrize("error", [7, None, {"code": "x"}, ["x"], "", "x\ny"])
async def test_an_error_of_any_form_is_a_refusal(error: object) -> None:
    browser = Browser()
    browser.provider.refuses_codes = {"error": error, "error_description": {"a": [1]}}
    told = await refusal(browser.through())
    assert told.startswith("forbidden: Acme did not finish the sign-in (")
    assert told.isprintable()


@pytest.mark.parametrize(
    ("description", "shown"),
    [
        ("User is not assigned to the app", ": User is not assigned to the app"),
        ("a\r\n\tb\u202ec\x00", ": a b c"),
        ("", ""),
        ("\u200b \n", ""),
        ("x" * 301, ": " + "x" * 300 + "…"),
    ],
)
async def test_a_refusal_is_shown_in_the_providers_words(description: str, shown: str) -> None:
    browser = Browser()
    answer = await browser.leave()
    del answer["code"]
    answer |= {"error": "access_denied", "error_description": description}
    with capture_logs() as logged:
        told = await refusal(browser.come_back(answer))
    assert told == f"forbidden: Acme did not sign you in (access_denied){shown}"
    assert logged[-1]["description"] == shown.removeprefix(": ")


async def test_an_ed25519_token_with_an_access_token_hash_holds() -> None:
    browser = Browser()
    half = hashlib.sha512(b"opaque").digest()[:32]
    at_hash = base64.urlsafe_b64encode(half).rstrip(b"=").decode()
    browser.provider.id_token = {"at_hash": at_hash}
    browser.provider.published, browser.provider.signed_with = ("ed",), "ed"
    browser.provider.header = {"alg": "Ed25519"}
    assert (await browser.through()).sub == "248"
    browser.provider.id_token = {"at_hash": at_hash[::-1]}
    assert (await refusal(browser.through())).startswith("forbidden:")
