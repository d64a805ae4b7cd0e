"""Sign-in at third-party providers of every kind, and what the queue then shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
import pytest
from joserfc.jwk import ECKey, RSAKey
from sqlalchemy import select

from examples.local_service import free_port
from policy_service.identity.people import Person, find_person
from policy_service.storage.core import table
from policy_service.storage.credential_tables import SessionRow
from tests.counterparts import node
from tests.fakes.listening import Listening
from tests.fakes.world import SUPPORT_BUNDLE
from tests.integration.identity.browsing import Browser

PEOPLE: dict[str, dict[str, Any]] = {
    "maya": {"name": "Maya Okafor", "email": "maya@acme.example", "groups": ["finance"]},
    "tom": {"name": "Tom Reed", "email": "tom@acme.example", "groups": ["interns"]},
    "text": {"groups": "finance"},
    "odd": {"groups": ["finance", {"id": "cfo"}, 7, None, ["cfo"]]},
    "path": {"realm_access": {"roles": ["finance"]}},
}
SECRET = "a b+c%41d&e=:/?~*"
OIDC: dict[str, Any] = {"title": "Acme SSO", "client_id": "countersign", "client_secret": SECRET}
SCOPES = ["openid", "profile", "email", "groups"]
SIGNED = {"userinfo_signed_response_alg": "ES256", "id_token_signed_response_alg": "RS256"}
SIGNING: list[Any] = [
    RSAKey.generate_key(2048).as_dict(private=True) | {"kid": "one", "use": "sig"},
    ECKey.generate_key("P-256").as_dict(private=True) | {"kid": "two", "use": "sig"},
]
LISTED: list[Any] = [
    ECKey.generate_key("P-256").as_dict(private=False) | {"kid": "one"},
    RSAKey.generate_key(2048).as_dict(private=False) | {"kid": "one"},
    RSAKey.generate_key(2048).as_dict(private=False) | {"kid": "enc", "use": "enc"},
    {"kty": "AKP", "alg": "ML-DSA-44", "kid": "two"},
    {"kty": "RSA", "e": "AQAB", "n": "_" * 170 + "w", "kid": "short"},
    None,
]


class Deployment(Listening):
    """The service behind a socket, at an address known before it starts, as a provider's registration needs it."""

    def __init__(self, data: Path, port: int, *providers: dict[str, Any]) -> None:
        super().__init__(data, SUPPORT_BUNDLE, providers=providers, dev_signin=False)
        self.url = f"http://127.0.0.1:{port}"

    def person(self, issuer: str, sub: str) -> Person:
        """Somebody who has signed in, as the service knows them."""
        found = self.do(
            lambda world: world.service.db.read(
                lambda conn: find_person(conn, issuer, sub, "oidc", world.clock(), 3600)
            )
        )
        assert found is not None
        return found


@contextmanager
def oidc_deployment(data: Path, **ways: tuple[dict[str, Any], str]) -> Iterator[Deployment]:
    """A deployment whose people sign in with `oidc-provider`; by name its client's settings and the groups' claim."""
    port = free_port()
    with ExitStack() as stack:
        providers = []
        for name, (client, claim) in ways.items():
            here = f"http://127.0.0.1:{port}/sign-in/{name}"
            app = {"client_secret": SECRET, "backchannel_logout_uri": f"{here}/backchannel-logout"} | client
            app["backchannel_logout_session_required"] = True
            provider = node.oidc_provider(f"{here}/callback", PEOPLE, {"keys": SIGNING}, LISTED, **app)
            named = {"name": name, "issuer": stack.enter_context(provider)}
            providers.append(OIDC | named | {"groups_claim": claim, "scopes": SCOPES})
        yield stack.enter_context(Deployment(data, port, *providers))


def acme_deployment(data: Path) -> AbstractContextManager[Deployment]:
    """One with a single provider, Acme SSO."""
    return oidc_deployment(data, acme=({}, "groups"))


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One for all tests of this file; its second provider signs what the first one sends in the clear."""
    ways: dict[str, tuple[dict[str, Any], str]]
    ways = {"acme": ({}, "groups"), "signed": (SIGNED, "realm_access.roles")}
    with oidc_deployment(tmp_path_factory.mktemp("acme") / "data", **ways) as deployment:
        yield deployment


@pytest.fixture
def browser(acme: Deployment) -> Iterator[Browser]:
    one = Browser(acme.url)
    yield one
    one.close()


def back_from_there(browser: Browser, next_path: str = "/", login: str = "maya") -> str:
    """The address that somebody's browser is sent back to."""
    return browser.sign_in_there(browser.to_the_provider("acme", next_path), login=login, password="x")


def signed_in(browser: Browser, login: str) -> Browser:
    answer = browser.get(back_from_there(browser, login=login))
    assert answer.status_code == 200, answer.text
    return browser


def test_the_way_back_never_leads_elsewhere(browser: Browser) -> None:
    page = browser.get("/reviews/rev_unknown")
    assert 'href="/sign-in/acme?next=/reviews/rev_unknown"' in page.text
    assert "Continue with Acme SSO" in page.text
    for path, leads in (("/?cursor=", "/?cursor="), ("//evil.example/", "/"), ("/\\evil.example", "/")):
        answer = browser.http.get(back_from_there(browser, path))
        assert (answer.status_code, answer.headers["location"]) == (303, leads)


def test_a_person_is_known_by_issuer_and_subject(acme: Deployment, browser: Browser) -> None:
    assert "Maya Okafor" in signed_in(browser, "maya").get("/").text
    issuer = acme.world.settings.providers[0].issuer
    person = acme.person(issuer, "maya")
    assert (person.key, person.groups) == (f"{issuer}|maya", {"finance"})
    first = browser.http.cookies["countersign_dev"]
    # a session of its own, which ends the other
    cookie = signed_in(browser, "maya").http.cookies["countersign_dev"]
    assert cookie != first
    assert acme.do(lambda world: world.service.sessions.find(first)) is None
    query = select(table(SessionRow))
    rows = acme.do(lambda world: world.service.db.read(lambda conn: conn.execute(query).all()))
    assert rows and cookie not in str(rows)


def test_a_way_back_works_once_and_in_the_browser_that_left(acme: Deployment, browser: Browser) -> None:
    back, stolen = back_from_there(browser), Browser(acme.url)
    refused = stolen.http.get(back)
    assert (refused.status_code, "countersign_dev=" in refused.headers.get("set-cookie", "")) == (400, False)
    assert browser.http.get(back).status_code == 303
    assert browser.http.get(back).status_code == 400
    stolen.close()


def test_a_changed_callback_signs_no_one_in(acme: Deployment, browser: Browser) -> None:
    changes = ({"iss": "https://evil.example"}, {"state": "x"}, {"code": "x"}, "&state=y")  # or there twice
    for change in changes:
        back = back_from_there(browser)
        url = urlsplit(back)
        if isinstance(change, str):
            changed = back + change
        else:
            changed = url._replace(query=urlencode(dict(parse_qsl(url.query)) | change)).geturl()
        refused = browser.http.get(changed)
        assert refused.status_code in {400, 403}, change
        assert "countersign_dev=" not in refused.headers.get("set-cookie", "")
        assert dict(parse_qsl(url.query))["code"] not in refused.text
        assert browser.http.get(back).status_code == 400, "the note is gone"
    asked = dict(parse_qsl(urlsplit(browser.to_the_provider("acme")).query))
    answer = {"error": "access_denied", "error_description": "Ask <b>IT</b>.", "state": asked["state"]}
    answer["iss"] = acme.world.settings.providers[0].issuer
    refused = browser.http.get(f"{acme.url}/sign-in/acme/callback?{urlencode(answer)}")
    assert refused.status_code == 403
    assert "did not sign you in (access_denied): Ask &lt;b&gt;IT&lt;/b&gt;." in refused.text


def test_a_cookie_of_almost_our_name_is_not_ours(browser: Browser) -> None:
    """Another site under the same domain may set such a cookie, and a lenient parser takes it for ours."""
    ours = b"countersign_dev=" + signed_in(browser, "maya").http.cookies["countersign_dev"].encode()
    with httpx2.Client() as bare:

        def status(cookie: bytes) -> int:
            return bare.send(httpx2.Request("GET", browser.ours, headers=[(b"cookie", cookie)])).status_code

        for before in (b"\xa0", b"\x85", b"\x1c"):
            assert status(before + ours) in {303, 400}  # to the sign-in, or no HTTP at all
        assert (status(ours + b"; " + ours), status(b"a=b; " + ours)) == (303, 200)


def test_a_person_signs_in_with_github(tmp_path: Path) -> None:
    """The secret is in the body, and there is no ID token."""
    port = free_port()
    app = {"client_id": "countersign", "client_secret": "a-secret", "name": "Countersign"}
    app["redirect_uris"] = [f"http://127.0.0.1:{port}/sign-in/github/callback"]
    maya = {"email": "maya@acme.example", "name": "Maya Okafor", "login": "maya"}
    with node.emulate("github", {"users": [maya], "oauth_apps": [app]}, tmp_path) as address:
        provider = OIDC | {"name": "github", "kind": "github", "issuer": address, "api_url": address}
        provider |= {"scopes": ["read:user"], "client_secret": app["client_secret"]}
        provider["token_auth"] = "client_secret_post"
        with Deployment(tmp_path / "data", port, provider) as deployment:
            browser = Browser(deployment.url)
            back = browser.sign_in_there(browser.to_the_provider("github"), choose="Maya Okafor")
            assert "Maya Okafor" in browser.get(back).text
            browser.close()


def test_who_signs_out_at_the_provider_is_signed_out_here(acme: Deployment, browser: Browser) -> None:
    other = Browser(acme.url)
    assert "Maya Okafor" in signed_in(browser, "maya").get("/").text
    assert "Maya Okafor" in signed_in(other, "maya").get("/").text
    browser.sign_out_there(acme.world.settings.providers[0].issuer)
    assert "Maya Okafor" not in browser.get(acme.url + "/").text
    assert "Maya Okafor" in other.get(acme.url + "/").text  # another session of hers over there
    other.close()


def known(acme: Deployment, browser: Browser, way: str, login: str) -> tuple[Person, str]:
    """Who somebody is here after they signed in this way, and the page they then see."""
    page = browser.get(browser.sign_in_there(browser.to_the_provider(way), login=login, password="x"))
    assert page.status_code == 200, page.text
    issuer = next(one.issuer for one in acme.world.settings.providers if one.name == way)
    return acme.person(issuer, login), page.text


WHY = [
    ("acme", "text", {"finance"}, ""),
    ("signed", "path", {"finance"}, ""),
    (
        "acme",
        "odd",
        {"finance"},
        "4 of 5 entries in 'groups' of Acme SSO are left out: /1 is an object, /2 is",
    ),
    ("signed", "text", set(), "Acme SSO sent no claim 'realm_access.roles' in the ID token or userinfo"),
]


@pytest.mark.parametrize(("way", "login", "groups", "why"), WHY)
def test_groups_of_real_providers_count_or_the_page_says_why_not(
    acme: Deployment, browser: Browser, way: str, login: str, groups: set[str], why: str
) -> None:
    person, page = known(acme, browser, way, login)
    assert person.groups == groups
    assert (person.groups_problem or "").startswith(why)
    assert ("At your last sign-in: " in page) is bool(why)
    assert why.replace("'", "&#39;") in page
