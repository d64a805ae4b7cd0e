"""People sign in at third-party providers, and what the queue then knows of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
import pytest
from sqlalchemy import select

from policy_service.identity.people import find_person
from policy_service.storage.core import table
from policy_service.storage.credentials import SessionRow
from tests.counterparts import node
from tests.fakes.listening import Listening
from tests.fakes.operated import free_port
from tests.fakes.world import SUPPORT_BUNDLE
from tests.integration.identity.browsing import Browser

PEOPLE = {
    "maya": {"name": "Maya Okafor", "email": "maya@acme.example", "groups": ["finance"]},
    "tom": {"name": "Tom Reed", "email": "tom@acme.example", "groups": ["interns"]},
}
OIDC = {"name": "acme", "title": "Acme SSO", "client_id": "countersign", "client_secret": "a-secret"}


class Deployment(Listening):
    """The service behind a socket, at an address known before it starts, as a provider's registration needs it."""

    def __init__(self, data: Path, port: int, *providers: dict[str, Any]) -> None:
        super().__init__(data, SUPPORT_BUNDLE, providers=providers, dev_signin=False)
        self.url = f"http://127.0.0.1:{port}"


@contextmanager
def acme_deployment(data: Path, people: Mapping[str, Mapping[str, Any]] = PEOPLE) -> Iterator[Deployment]:
    """A deployment whose people sign in with `oidc-provider`."""
    port = free_port()
    here = f"http://127.0.0.1:{port}/sign-in/acme"
    logout = {
        "backchannel_logout_uri": f"{here}/backchannel-logout",
        "backchannel_logout_session_required": True,
    }
    with node.oidc_provider(f"{here}/callback", people, **logout) as issuer:
        provider = OIDC | {
            "issuer": issuer,
            "groups_claim": "groups",
            "scopes": ["openid", "profile", "email", "groups"],
        }
        with Deployment(data, port, provider) as deployment:
            yield deployment


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One for all tests of this file."""
    with acme_deployment(tmp_path_factory.mktemp("acme") / "data") as deployment:
        yield deployment


@pytest.fixture
def browser(acme: Deployment) -> Iterator[Browser]:
    one = Browser(acme.url)
    yield one
    one.close()


def signed_in(browser: Browser, login: str, next_path: str = "/") -> Browser:
    back = browser.sign_in_there(browser.to_the_provider("acme", next_path), login=login, password="x")
    answer = browser.get(back)
    assert answer.status_code == 200, answer.text
    return browser


def test_the_page_offers_the_provider_and_the_way_leads_back_to_what_was_wanted(browser: Browser) -> None:
    page = browser.get("/reviews/rev_unknown")
    assert 'href="/sign-in/acme?next=/reviews/rev_unknown"' in page.text
    assert "Continue with Acme SSO" in page.text
    back = browser.sign_in_there(browser.to_the_provider("acme", "/?cursor="), login="maya", password="x")
    answer = browser.http.get(back)
    assert (answer.status_code, answer.headers["location"]) == (303, "/?cursor=")


def test_a_person_is_known_by_issuer_and_subject_with_the_groups_of_the_token(
    acme: Deployment, browser: Browser
) -> None:
    page = signed_in(browser, "maya").get("/")
    assert "Maya Okafor" in page.text
    issuer = acme.world.settings.providers[0].issuer
    person = acme.do(
        lambda world: world.service.db.read(
            lambda conn: find_person(conn, issuer, "maya", "oidc", world.clock(), 3600)
        )
    )
    assert person is not None
    assert (person.key, person.groups) == (f"{issuer}|maya", {"finance"})


def test_a_way_back_works_once_and_in_the_browser_that_left(acme: Deployment, browser: Browser) -> None:
    back = browser.sign_in_there(browser.to_the_provider("acme"), login="maya", password="x")
    stolen = Browser(acme.url)
    refused = stolen.http.get(back)
    assert refused.status_code == 400
    assert "countersign_dev=" not in refused.headers.get("set-cookie", "")
    assert browser.http.get(back).status_code == 303
    assert browser.http.get(back).status_code == 400
    stolen.close()


@pytest.mark.parametrize(
    "change", [{"iss": "https://evil.example"}, {"state": "x"}, {"code": "x"}, {"code": ""}, "&state=y"]
)
def test_a_way_back_that_was_changed_signs_nobody_in(browser: Browser, change: dict[str, str] | str) -> None:
    back = browser.sign_in_there(browser.to_the_provider("acme"), login="maya", password="x")
    url = urlsplit(back)
    if isinstance(change, str):  # a parameter that is there twice
        changed = back + change
    else:
        changed = url._replace(query=urlencode(dict(parse_qsl(url.query)) | change)).geturl()
    refused = browser.http.get(changed)
    assert refused.status_code in {400, 403}
    assert "countersign_dev=" not in refused.headers.get("set-cookie", "")


def test_a_refusal_over_there_is_told_here(acme: Deployment, browser: Browser) -> None:
    url = browser.to_the_provider("acme")
    state = dict(parse_qsl(urlsplit(url).query))["state"]
    issuer = acme.world.settings.providers[0].issuer
    words = "Ask <b>IT</b>.\n<script>alert(1)</script>"
    answer = {"error": "access_denied", "error_description": words, "state": state, "iss": issuer}
    refused = browser.http.get(f"{acme.url}/sign-in/acme/callback?{urlencode(answer)}")
    assert refused.status_code == 403
    assert "Acme SSO did not sign you in (access_denied): Ask &lt;b&gt;IT&lt;/b&gt;." in refused.text
    assert "<script>alert" not in refused.text


@pytest.mark.parametrize(
    "path", ["//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"]
)
def test_the_way_back_never_leads_elsewhere(browser: Browser, path: str) -> None:
    back = browser.sign_in_there(browser.to_the_provider("acme", path), login="maya", password="x")
    assert browser.http.get(back).headers["location"] == "/"


def test_each_sign_in_is_a_session_of_its_own_and_ends_the_one_before(
    acme: Deployment, browser: Browser
) -> None:
    signed_in(browser, "maya")
    first = browser.http.cookies["countersign_dev"]
    signed_in(browser, "maya")
    cookie = browser.http.cookies["countersign_dev"]
    assert cookie != first
    assert acme.do(lambda world: world.service.sessions.find(first)) is None
    query = select(table(SessionRow))
    rows = acme.do(lambda world: world.service.db.read(lambda conn: conn.execute(query).all()))
    assert rows
    assert cookie not in str(rows)


def _form(browser: Browser, page: str, **fields: str) -> int:
    token = page.split('name="csrf_token" value="')[1].split('"')[0]
    answer = browser.http.post(
        f"{browser.ours}/sign-out", data={"csrf_token": token, **fields}, headers={"Origin": browser.ours}
    )
    return answer.status_code


@pytest.mark.parametrize(
    ("fields", "left"), [({"everywhere": "yes"}, [303, 303, 200]), ({}, [303, 200, 200])], ids=["all", "this"]
)
def test_signing_out_ends_every_browser_of_this_person_or_this_one(
    acme: Deployment, fields: dict[str, str], left: list[int]
) -> None:
    browsers = [Browser(acme.url) for _ in range(3)]
    for one, login in zip(browsers, ("maya", "maya", "tom"), strict=True):
        signed_in(one, login)
    laptop = browsers[0]
    assert _form(laptop, laptop.get("/").text, **fields) == 303
    assert [one.http.get(acme.url).status_code for one in browsers] == left
    for one in browsers:
        one.close()


@pytest.mark.parametrize("before", [b"\xa0", b"\x85", b"\x1c"])
def test_a_cookie_of_almost_our_name_is_not_ours(browser: Browser, before: bytes) -> None:
    """A neighbour under the same domain may set such a cookie, and a lenient parser takes it for ours."""
    signed_in(browser, "maya")
    cookie = browser.http.cookies["countersign_dev"].encode()
    raw = httpx2.Request("GET", browser.ours, headers=[(b"cookie", before + b"countersign_dev=" + cookie)])
    with httpx2.Client() as bare:
        assert bare.send(raw).status_code in {303, 400}  # to the sign-in, or no HTTP at all
        twice = b"countersign_dev=" + cookie
        doubled = httpx2.Request("GET", browser.ours, headers=[(b"cookie", twice + b"; " + twice)])
        assert bare.send(doubled).status_code == 303
        once = httpx2.Request("GET", browser.ours, headers=[(b"cookie", b"a=b; " + twice)])
        assert bare.send(once).status_code == 200


def test_a_refused_way_back_uses_the_note_up_and_shows_no_code(acme: Deployment, browser: Browser) -> None:
    signed_in(browser, "maya")
    back = browser.sign_in_there(browser.to_the_provider("acme"), login="maya", password="x")
    refused = browser.http.get(back.replace("state=", "state=x"))
    assert refused.status_code == 400
    code = dict(parse_qsl(urlsplit(back).query))["code"]
    assert code not in refused.text
    assert browser.http.get(back).status_code == 400, "the note is gone"


MAYA = {"email": "maya@acme.example", "name": "Maya Okafor"}
CLIENTS = [{"client_id": "countersign", "client_secret": "a-secret"}]
TENANT = "/9188040d-6c67-4c5b-b112-36a304b66dad/v2.0"
VENDORS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    # what the vendor's emulation is given, the path of its issuer, and our settings
    "google": (
        {"users": [MAYA | {"hd": "acme.example"}], "oauth_clients": CLIENTS},
        "",
        {"required": {"hd": "acme.example"}},
    ),
    "okta": (
        {
            "users": [MAYA | {"login": "maya@acme.example", "first_name": "Maya", "last_name": "Okafor"}],
            "oauth_clients": CLIENTS,
        },
        "",
        {},
    ),
    "microsoft": ({"users": [MAYA], "oauth_clients": CLIENTS}, TENANT, {}),
    "github": (
        {"users": [MAYA | {"login": "maya"}], "oauth_apps": [CLIENTS[0] | {"name": "Countersign"}]},
        "",
        {"kind": "github", "scopes": ["read:user"]},
    ),
}


@pytest.mark.parametrize(
    "vendor",
    ["github", *(pytest.param(name, marks=pytest.mark.long) for name in VENDORS if name != "github")],
)
def test_the_shapes_of_the_vendors(tmp_path: Path, vendor: str) -> None:
    """Each with its own ways: a tenant in the issuer, the secret in the body, no ID token at all."""
    seed, path, more = VENDORS[vendor]
    port = free_port()
    for client in seed.get("oauth_clients", []) + seed.get("oauth_apps", []):
        client["redirect_uris"] = [f"http://127.0.0.1:{port}/sign-in/{vendor}/callback"]
    with node.emulate(vendor, seed, tmp_path) as address:
        provider = OIDC | {"name": vendor, "title": vendor.title(), "issuer": address + path} | more
        provider |= {"token_auth": "client_secret_post"} | (
            {"api_url": address} if vendor == "github" else {}
        )
        with Deployment(tmp_path / "data", port, provider) as deployment:
            browser = Browser(deployment.url)
            back = browser.sign_in_there(browser.to_the_provider(vendor), choose="Maya Okafor")
            answer = browser.get(back)
            assert answer.status_code == 200, answer.text
            assert "Maya Okafor" in answer.text
            browser.close()


def test_who_signs_out_at_the_provider_is_signed_out_here(acme: Deployment, browser: Browser) -> None:
    other = Browser(acme.url)
    assert "Maya Okafor" in signed_in(browser, "maya").get("/").text
    assert "Maya Okafor" in signed_in(other, "maya").get("/").text
    browser.sign_out_there(acme.world.settings.providers[0].issuer)
    assert "Maya Okafor" not in browser.get(acme.url + "/").text
    assert "Maya Okafor" in other.get(acme.url + "/").text  # another session of hers over there
    other.close()
