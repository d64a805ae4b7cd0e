"""The code flow against a misbehaving provider; the integration tests have correct ones."""

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
from tests.unit.identity.signing_in import DISCOVERY, HERE, NOW, Browser, refusal

NOW_S = int(NOW.timestamp())


async def test_a_person_is_issuer_and_subject() -> None:
    browser = Browser()
    expected = Identity(ISSUER, "248", "Maya Okafor", None, None, browser.table.trust)
    assert await browser.through() == expected


async def test_the_request_asks_for_a_code_with_a_challenge_a_state_and_a_nonce_of_its_own() -> None:
    browser, seen = Browser(), []
    for _ in range(2):
        departure = await browser.sign_in.begin("acme", "/")
        url = urlsplit(departure.url)
        assert f"{url.scheme}://{url.netloc}{url.path}" == f"{ISSUER}/authorize"
        query = parse_qs(url.query)
        assert query["redirect_uri"] == [f"{HERE}/sign-in/acme/callback"]
        assert (query["client_id"], query["scope"]) == ([CLIENT], ["openid profile email"])
        assert not {"prompt", "max_age"} & query.keys(), "only a fresh sign-in asks for them"
        seen += [query[name][0] for name in ("state", "nonce", "code_challenge")]
        assert departure.note.count(".") == 4, "the note is encrypted"
    assert len(set(seen)) == 6


async def test_a_fresh_sign_in_asks_the_provider_to_make_sure_of_them_anew() -> None:
    query = parse_qs(urlsplit((await Browser().sign_in.begin("acme", "/passkeys", fresh=True)).url).query)
    assert (query["prompt"], query["max_age"]) == (["login"], ["0"])


async def test_a_page_too_long_to_remember_is_not_come_back_to() -> None:
    assert len((await Browser().sign_in.begin("acme", "/" + "x" * 3_000)).note) < 4_000


async def test_an_unknown_provider_is_not_found() -> None:
    assert (await refusal(Browser().sign_in.begin("evil", "/"))).startswith("not_found:")


AHEAD = [(NOW_S + 3_600, NOW_S), (NOW_S + 3_600.5, NOW_S)]  # it would stay fresh for longer than it may
THEN = [(then, then) for then in (NOW_S, NOW_S - 40, NOW_S - 40.5, 1_700_000_000.5, 1.7e9, 0, 0.0)]


@pytest.mark.parametrize(("said", "at"), AHEAD + THEN)
async def test_a_time_of_sign_in_may_have_a_fraction(said: float, at: float) -> None:
    auth_at = (await Browser().but(id_token={"auth_time": said}).through()).auth_at
    assert auth_at is not None and auth_at.timestamp() == at


@pytest.mark.parametrize("said", ["1700000000", "soon", [], {"at": 1}, True, -1, -0.5])
async def test_a_time_of_sign_in_that_is_no_number_is_left_out_and_logged(said: object) -> None:
    with capture_logs() as logged:
        assert (await Browser().but(id_token={"auth_time": said}).through()).auth_at is None
    why = [line["why"] for line in logged if line["event"] == "auth_time_not_used"]
    assert why == [f"it is {said!r}, no NumericDate"]


# Of another issuer, audience, party or nonce, of another time, about another access token, or about no one.
WRONG: list[dict[str, Any]] = [
    *({"iss": issuer} for issuer in ("https://evil.example", None)),
    *({"aud": audience} for audience in ("somebody-else", None, [CLIENT, "b"])),
    *({"aud": "somebody-else", "azp": CLIENT}, {"aud": [CLIENT, "b"], "azp": "b"}, {"azp": "b"}),
    {"at_hash": "A" * 22},
    *({"nonce": nonce} for nonce in ("n", None)),
    *({"exp": end} for end in (NOW_S - 61, None, "9999999999")),
    *({name: NOW_S + 120} for name in ("iat", "nbf")),
    *({"sub": subject} for subject in (None, "", 248, "24\u202e8", "2" * 256)),
]


@pytest.mark.parametrize("claims", WRONG)
async def test_an_invalid_token_signs_no_one_in(claims: dict[str, Any]) -> None:
    """What is wrong with a header or a signature is in test_foreign_tokens.py."""
    message = await refusal(Browser().but(id_token=claims).through())
    assert message.startswith("forbidden: what Acme answered could not be verified")


HOLDS: dict[str, dict[str, Any]] = {
    "ours among other audiences, made for us": {"id_token": {"aud": [CLIENT, "b"], "azp": CLIENT}},
    **{f"amr is {amr!r}": {"id_token": {"amr": amr}} for amr in ("pwd", 7, {"pwd": 1})},
}


@pytest.mark.parametrize("odd", HOLDS.values(), ids=HOLDS.keys())
async def test_unused_odd_claims_are_ignored(odd: dict[str, Any]) -> None:
    assert (await Browser().but(**odd).through()).sub == "248"


async def test_an_ed25519_token_with_an_access_token_hash_holds() -> None:
    at_hash = base64.urlsafe_b64encode(hashlib.sha512(b"opaque").digest()[:32]).rstrip(b"=").decode()
    browser = Browser().but(published=("ed",), signed_with="ed", header={"alg": "Ed25519"})
    assert (await browser.but(id_token={"at_hash": at_hash}).through()).sub == "248"
    message = await refusal(browser.but(id_token={"at_hash": at_hash[::-1]}).through())
    assert message.startswith("forbidden:")


CHANGED = [("state", "another"), ("state", None), ("iss", "https://evil.example"), ("iss", None)]


@pytest.mark.parametrize(("member", "value"), [*CHANGED, ("code", None)])
async def test_an_answer_that_is_not_this_browsers_buys_nothing(member: str, value: str | None) -> None:
    browser = Browser()
    answer = await browser.leave() | {member: value}
    coming = browser.come_back({name: value for name, value in answer.items() if value is not None})
    assert (await refusal(coming)).startswith("bad_token:")
    assert "/token" not in browser.provider.asked, "a code that came in the wrong way is never spent"


@pytest.mark.parametrize("how", ["no note", "a later note", "a note not sealed", "too late", "other door"])
async def test_an_answer_without_this_departures_note_buys_nothing(how: str) -> None:
    browser, other = Browser(), Browser()
    answer = await browser.leave()
    if how == "no note":
        browser.note = None
    elif how == "a later note":
        await browser.leave()
    elif how == "a note not sealed":
        transport = browser.provider.transport
        other.sign_in = SignIn(other.sign_in._providers, HERE, b"y" * 32, lambda: NOW, transport)
        await other.leave()
        browser.note = other.note
    elif how == "too late":
        browser.now += timedelta(seconds=601)
    door = "other" if how == "other door" else "acme"
    assert (await refusal(browser.sign_in.finish(door, answer, browser.note))).startswith("bad_token:")
    assert "/token" not in browser.provider.asked, "a code that came in the wrong way is never spent"


async def test_a_code_is_spent_once() -> None:
    browser = Browser()
    answer = await browser.leave()
    await browser.come_back(answer)
    assert (await refusal(browser.come_back(answer))).startswith("forbidden:")


async def test_an_issuer_that_is_not_promised_may_be_left_out() -> None:
    browser = Browser().but(metadata={"authorization_response_iss_parameter_supported": False})
    answer = await browser.leave()
    del answer["iss"]
    assert (await browser.come_back(answer)).sub == "248"


@pytest.mark.parametrize("path", [DISCOVERY, "/keys", "/token"])
@pytest.mark.parametrize("how", ["down", "redirect", "endless", "no JSON", "500"])
async def test_an_answer_that_is_none_is_not_used(path: str, how: str) -> None:
    browser = Browser().failing(path, how)
    message = await refusal(browser.through())
    bought = path == "/token" and how != "down"
    assert message.startswith("issuer_unavailable:") or (bought and message.startswith("forbidden:"))
    assert "/elsewhere" not in browser.provider.asked


async def test_an_answer_that_drips_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuer_keys, "TOTAL_TIMEOUT_S", 0.05)
    message = await refusal(Browser().failing(DISCOVERY, "never").leave())
    assert message.startswith("issuer_unavailable:")


ASTRAY: list[tuple[str, str | None]] = [("issuer", "https://evil.example"), ("issuer", ISSUER + "/")]
ASTRAY += [("authorization_endpoint", url) for url in ("http://login.example/authorize", None)]
ASTRAY += [("token_endpoint", f"{host}/token") for host in ("http://10.0.0.1", "https://[::1]")]
ASTRAY += [("jwks_uri", f"https://{host}/keys") for host in ("169.254.169.254", "localhost")]
ASTRAY += [("jwks_uri", "file:///etc/passwd"), ("userinfo_endpoint", "http://127.0.0.1:2375/containers")]


@pytest.mark.parametrize(("member", "url"), ASTRAY)
async def test_a_discovery_that_leads_elsewhere_is_not_followed(member: str, url: str | None) -> None:
    message = await refusal(Browser().but(metadata={member: url}).through())
    assert message.startswith("issuer_unavailable:")


NO_KEYS = [{"leaks": True}, *({"published": (), "more_keys": keys} for keys in ([], {}, "x", None))]


@pytest.mark.parametrize("published", NO_KEYS)
async def test_a_key_set_that_is_none_or_private_is_not_taken(published: dict[str, Any]) -> None:
    assert (await refusal(Browser().but(**published).through())).startswith("issuer_unavailable:")


NAMES: list[tuple[dict[str, Any], str]] = [
    ({"name": "  Maya  "}, "Maya"),
    ({"name": "Ma\u202eya", "preferred_username": "maya"}, "maya"),
    ({"name": "", "preferred_username": 7, "email": "m@a.example", "email_verified": True}, "m@a.example"),
    *(({"name": name}, "248") for name in ("\u3164", "\u2800", "M" * 101)),
    *(({"email": "ceo@acme.example"}, "248"), ({}, "248")),
]


@pytest.mark.parametrize(("claims", "name"), NAMES)
async def test_a_name_is_one_that_can_be_read(claims: dict[str, Any], name: str) -> None:
    assert (await Browser().but(claims={"sub": "248"} | claims).through()).name == name


async def test_groups_count_only_as_the_settings_say() -> None:
    """Which entries count is in test_claims.py."""
    mapped = {"groups": {"9f-guid": "finance"}}
    for configured, listed, groups in (
        ({}, ["finance"], None),
        ({"groups_claim": "groups"}, ["finance", "ops"], {"finance", "ops"}),
        ({"groups_claim": "groups"} | mapped, ["9f-guid", "cfo"], {"finance"}),
    ):
        browser = Browser(**configured).but(id_token={"groups": listed})
        assert (await browser.through()).groups == groups
    browser = Browser(groups_claim="groups")
    browser.but(userinfo={"sub": "248", "groups": ["finance"], "name": "Not Signed"})
    identity = await browser.through()
    assert (identity.groups, identity.name) == ({"finance"}, "Maya Okafor")


async def test_only_members_may_sign_in_where_the_settings_name_them() -> None:
    """Everyone who signs in can read the queue, so a provider with public accounts must not admit all of them."""
    browser = Browser(groups_claim="groups", members_of=["staff"], groups={"staff": "finance"})
    for listed in (["staff"], ["x", "staff"], [7, "staff"], "staff"):
        assert (await browser.but(id_token={"groups": listed}).through()).groups == {"finance"}
    for other in (["x"], "x staff", {"staff": True}, None):
        assert "none of the groups" in await refusal(browser.but(id_token={"groups": other}).through())


async def test_a_claim_the_settings_require_is_required() -> None:
    browser = Browser(required={"hd": "acme.example"})
    assert (await browser.but(id_token={"hd": "acme.example"}).through()).sub == "248"
    for other in ("evil.example", None, True):
        assert "hd" in await refusal(browser.but(id_token={"hd": other}).through())


SECRETS = ["plain-secret_1.~", "a b+c%d", "a:b/c?d&e=f", "ä ö ü €", "%41%3A", "+", '"quoted"\\']


@pytest.mark.parametrize("secret", SECRETS)
async def test_basic_credentials_are_form_encoded(secret: str) -> None:
    """RFC 6749 section 2.3.1: without it, a '%' or '+' of a secret is another secret to the provider."""
    assert (await Browser(client_secret=secret).but(secret=secret).through()).sub == "248"


async def test_a_wrong_secret_is_refused_in_words_for_the_person_and_for_the_operator() -> None:
    said = "AADSTS7000215: Invalid client\r\nsecret\u202e <b>provided</b>. " + "x" * 5_000
    browser = Browser().but(refuses_codes={"error": "invalid_client", "error_description": said})
    with capture_logs() as logged:
        message = await refusal(browser.through())
    assert message.startswith("forbidden: Acme did not finish the sign-in (invalid_client); an operator")
    (line,) = [line for line in logged if line["event"] == "sign_in_refused"]
    assert (line["provider"], line["error"]) == ("acme", "invalid_client")
    assert line["description"].startswith("AADSTS7000215: Invalid client secret <b>provided</b>. xxx")
    assert len(line["description"]) == 301


@pytest.mark.parametrize("error", [7, None, {"code": "x"}, ["x"], "", "x\ny"])
async def test_an_error_of_any_form_is_a_refusal(error: object) -> None:
    answer = {"error": error, "error_description": {"a": [1]}}
    message = await refusal(Browser().but(refuses_codes=answer).through())
    assert message.startswith("forbidden: Acme did not finish the sign-in (")
    assert message.isprintable()


SHOWN = {None: "", "": "", "\u200b \n": "", "User is not assigned": ": User is not assigned"}
SHOWN |= {"a\r\n\tb\u202ec\x00": ": a b c", "x" * 301: ": " + "x" * 300 + "…"}


@pytest.mark.parametrize(("description", "shown"), SHOWN.items())
async def test_a_refusal_is_shown_in_the_providers_words(description: str | None, shown: str) -> None:
    browser = Browser()
    answer = await browser.leave() | {"error": "access_denied"}
    del answer["code"]
    answer |= {} if description is None else {"error_description": description}
    with capture_logs() as logged:
        message = await refusal(browser.come_back(answer))
    assert message == f"forbidden: Acme did not sign you in (access_denied){shown}"
    assert logged[-1]["description"] == shown.removeprefix(": ")


async def test_unknown_key_ids_do_not_flood_the_provider() -> None:
    browser = Browser()
    await browser.through()
    browser.but(signed_with="k2")
    for _ in range(5):
        await refusal(browser.through())
    assert browser.provider.asked.count("/keys") == 1
