"""A third-party provider in shapes that real ones have: groups in every form, signed userinfo, shared key ids, odd
secrets. One deployment for all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from joserfc.jwk import ECKey, RSAKey

from policy_service.identity.people import Person
from tests.counterparts import node
from tests.fakes.operated import free_port
from tests.integration.identity.browsing import Browser
from tests.integration.identity.test_people import OIDC, Deployment

SECRET = "a b+c%41d&e=:/?~*"
SCOPES = ["openid", "profile", "email", "groups"]
PEOPLE: dict[str, dict[str, Any]] = {
    "list": {"groups": ["finance", "ops"]},
    "text": {"groups": "finance"},
    "odd": {"groups": ["finance", {"id": "cfo"}, 7, None, ["cfo"]]},
    "none": {},
    "overage": {"_claim_names": {"groups": "s"}, "_claim_sources": {"s": {"endpoint": "https://graph.example"}}},
    "path": {"realm_access": {"roles": ["finance"]}},
}  # fmt: skip
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "basic": ({}, {"scopes": SCOPES}),
    "post": ({"token_endpoint_auth_method": "client_secret_post"}, {"token_auth": "client_secret_post"}),
    "signed": (
        {"userinfo_signed_response_alg": "ES256", "id_token_signed_response_alg": "RS256"},
        {"scopes": SCOPES, "groups_claim": "realm_access.roles"},
    ),
}


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


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    port = free_port()
    with ExitStack() as stack:
        providers = []
        for name, (client, settings) in WAYS.items():
            callback = f"http://127.0.0.1:{port}/sign-in/{name}/callback"
            client = {"client_secret": SECRET} | client
            issuer = stack.enter_context(
                node.oidc_provider(callback, PEOPLE, {"keys": SIGNING}, LISTED, **client)
            )
            named = {"name": name, "title": name.title(), "issuer": issuer, "client_secret": SECRET}
            providers.append(OIDC | {"groups_claim": "groups"} | named | settings)
        data = tmp_path_factory.mktemp("shapes") / "data"
        yield stack.enter_context(Deployment(data, port, *providers))


def signed_in(deployment: Deployment, way: str, login: str) -> tuple[Person, str]:
    """Who somebody is here after they signed in this way, and the page they then see."""
    browser = Browser(deployment.url)
    back = browser.sign_in_there(browser.to_the_provider(way), login=login, password="x")
    page = browser.get(back)
    assert page.status_code == 200, page.text
    browser.close()
    issuer = next(one.issuer for one in deployment.world.settings.providers if one.name == way)
    return deployment.person(issuer, login), page.text


def test_groups_in_the_forms_of_real_providers_count(deployment: Deployment) -> None:
    for way, login, groups in (
        ("basic", "list", {"finance", "ops"}),
        ("basic", "text", {"finance"}),
        ("signed", "path", {"finance"}),
    ):
        person, page = signed_in(deployment, way, login)
        assert (person.groups, person.groups_problem) == (groups, None)
        assert "At your last sign-in" not in page


ASKED = "requested scopes: openid profile email"
WHY: dict[tuple[str, str], tuple[set[str], str]] = {
    ("basic", "odd"): (
        {"finance"},
        "4 of 5 entries in 'groups' of Basic are left out: /1 is an object, /2 is",
    ),
    ("basic", "overage"): (set(), "Basic left your groups out because they are too many (overage)"),
    ("basic", "none"): (set(), f"Basic sent no claim 'groups' in the ID token or userinfo; {ASKED} groups"),
    ("post", "list"): (
        set(),
        "Post sent no claim 'groups': its scope 'groups' is not among the scopes of the",
    ),
    ("signed", "list"): (set(), "Signed sent no claim 'realm_access.roles' in the ID token or userinfo"),
}


def test_the_reason_for_missing_groups_is_on_the_persons_page(deployment: Deployment) -> None:
    for (way, login), (groups, why) in WHY.items():
        person, page = signed_in(deployment, way, login)
        assert person.groups == groups
        assert str(person.groups_problem).startswith(why)
        assert f"At your last sign-in: {why.replace(chr(39), '&#39;')}" in page
