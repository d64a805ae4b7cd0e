"""Groups of a token: each entry is accepted or refused on its own, with a reason."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from policy_service.identity.claims import claim_at, effective_groups, listed_groups
from policy_service.issuers import SignInProvider
from tests.unit.identity.signing_in import TABLE, Browser, refusal


def provider(**given: Any) -> SignInProvider:
    return SignInProvider(**TABLE | {"groups_claim": "groups"} | given)


def read(claimed: Any, **given: Any) -> tuple[frozenset[str] | None, str | None]:
    table = provider(**given)
    return effective_groups(table, listed_groups(table, [{"groups": claimed}]))


ALL_COUNT = {
    "a list": (["finance", "ops"], {"finance", "ops"}),
    **{f"the one group {text!r}": (text, {text}) for text in ("finance", "finance ops", "finance,ops")},
    "the same one twice": (["finance", "finance"], {"finance"}),
    "the longest": (["g" * 200], {"g" * 200}),
    "five hundred": ([f"g{n}" for n in range(500)], {f"g{n}" for n in range(500)}),
}


@pytest.mark.parametrize(("claimed", "names"), ALL_COUNT.values(), ids=ALL_COUNT.keys())
def test_usable_groups_count_and_nothing_is_logged(claimed: Any, names: set[str]) -> None:
    with capture_logs() as logged:
        assert read(claimed) == (names, None)
    assert logged == []


LEFT_OUT: list[tuple[Any, str]] = [
    *((odd, "/1 cannot be read") for odd in ("", "  ", "cf\u202eo", "cfo\n", "cfo\ud800")),
    *((7, "/1 is a number"), (7.5, "/1 is a number"), (None, "/1 is null"), (True, "/1 is true or false")),
    *(({"id": "cfo", "display": "cfo"}, "/1 is an object"), (["cfo"], "/1 is a list")),
    ("g" * 201, "/1 is longer than 200 characters"),
]


@pytest.mark.parametrize(("odd", "why"), LEFT_OUT)
def test_an_entry_that_names_no_group_is_left_out_by_pointer(odd: Any, why: str) -> None:
    with capture_logs() as logged:
        names, problem = read(["finance", odd, "ops"])
    assert (names, problem) == ({"finance", "ops"}, f"1 of 3 entries in 'groups' of Acme are left out: {why}")
    found = [(line["event"], line["claim"], line["why"]) for line in logged]
    assert found == [("groups_not_usable", "groups", problem)]


OVERAGE = "Acme left your groups out because they are too many (overage)"
SOURCES = {"src1": {"endpoint": "https://graph.example"}}
ODD_FORM = "the claim 'groups' of Acme is {}, not a list of texts"
FEW = "5 of 5 entries in 'groups' of Acme are left out: /0 is an object, /1 is an object, /2 is an object and 2 more"
ODD_FORMS = (({"a": 1}, "an object"), (7, "a number"), (True, "true or false"))
NO_CLAIM = ({}, {"groups": None}, {"_claim_names": {"roles": "src1"}})
WHY_NONE: list[tuple[dict[str, Any], str]] = [
    *((claims, "Acme sent no claim 'groups'") for claims in NO_CLAIM),
    *(({"groups": odd}, ODD_FORM.format(kind)) for odd, kind in ODD_FORMS),
    ({"groups": []}, "Acme lists no group for you"),
    ({"groups": ""}, "1 of 1 entries in 'groups' of Acme are left out: /0 cannot be read"),
    ({"groups": [{"id": "a"}] * 5}, FEW),
    ({"_claim_names": {"groups": "src1"}, "_claim_sources": SOURCES}, OVERAGE),
    ({"hasgroups": True}, OVERAGE),
]


@pytest.mark.parametrize(("claims", "why"), WHY_NONE)
def test_the_reason_for_no_groups_is_named(claims: dict[str, Any], why: str) -> None:
    table = provider()
    with capture_logs() as logged:
        names, problem = effective_groups(table, listed_groups(table, [claims]))
    assert names == frozenset() and problem is not None and problem.startswith(why)
    assert [line["why"] for line in logged] == [problem]


def test_groups_unknown_to_the_settings_are_reported() -> None:
    why = "the settings' groups of Acme hold none of those it lists for you: 'b', 'c', 'd' and 1 more"
    assert read(["b", "c", "d", "e"], groups={"a": "finance"}) == (frozenset(), why)


def test_of_too_many_groups_the_first_count_unless_the_settings_name_them() -> None:
    names, problem = read([f"g{n}" for n in range(750)])
    assert names == {f"g{n}" for n in range(500)}
    assert problem == "Acme lists 750 groups for you; the first 500 count"
    assert read([f"g{n}" for n in range(5_000)], groups={"g4999": "finance"}) == ({"finance"}, None)
    _, problem = read([f"{n}" + "g" * 199 for n in range(9)], groups={"a": "finance"})
    assert problem is not None
    assert len(problem) < 400


NOT_THERE: list[tuple[str, dict[str, Any]]] = [("a.b.c", {"a": {"b": ["a"]}}), ("a.0", {"a": [["x"]]})]
NOT_THERE += [("a.b", claims) for claims in ({"a": "b"}, {"a.b": None, "a": {"b": None}}, {})]
PATHS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "a name": ("groups", {"groups": ["a"]}, ["a"]),
    "a path": ("realm_access.roles", {"realm_access": {"roles": ["a"]}}, ["a"]),
    "a longer path": ("a.b.c", {"a": {"b": {"c": ["a"]}}}, ["a"]),
    "a name with dots": ("realm_access.roles", {"realm_access.roles": ["a"]}, ["a"]),
    "a namespace": ("https://example.com/groups", {"https://example.com/groups": ["a"]}, ["a"]),
    "a name with dots before a path": ("a.b", {"a.b": ["name"], "a": {"b": ["path"]}}, ["name"]),
    "a path through a name with dots": ("res.my.app.roles", {"res": {"my.app": {"roles": ["a"]}}}, ["a"]),
    "a path that ends in a name with dots": ("a.b.c", {"a": {"b.c": ["a"]}}, ["a"]),
    **{str(claims): (path, claims, None) for path, claims in NOT_THERE},
    "dots alone": ("..", {"": {"": {"": ["a"]}}}, ["a"]),
}


@pytest.mark.parametrize(("path", "claims", "value"), PATHS.values(), ids=PATHS.keys())
def test_a_claim_is_found_by_its_name_then_by_its_path(path: str, claims: dict[str, Any], value: Any) -> None:
    assert claim_at(claims, path) == value


@pytest.mark.parametrize("offered", [None, "groups", ["openid"], [["groups"], None], ["openid", "groups"]])
async def test_a_claim_that_no_scope_brings_is_named_with_the_scopes(offered: Any) -> None:
    browser = Browser(groups_claim="groups").but(metadata={"scopes_supported": offered})
    why = " in the ID token or userinfo; requested scopes: openid profile email; the provider may need another scope"
    if offered == ["openid", "groups"]:
        why = ": its scope 'groups' is not among the scopes of the settings (requested scopes: openid profile email)"
    assert str((await browser.through()).groups_problem).startswith("Acme sent no claim 'groups'" + why)


async def test_what_the_id_token_lists_wins_over_userinfo_by_name_and_by_path() -> None:
    browser = Browser(groups_claim="realm_access.roles")
    browser.but(id_token={"realm_access": {"other": []}})
    browser.but(userinfo={"sub": "248", "realm_access": {"roles": ["cfo"]}})
    assert (await browser.through()).groups == {"cfo"}
    browser.but(id_token={"realm_access": {"roles": ["finance"]}})
    browser.but(userinfo={"sub": "248", "realm_access.roles": ["cfo"]})
    assert (await browser.through()).groups == {"finance"}


async def test_unknown_groups_refuse_membership_and_the_page_names_the_reason() -> None:
    browser = Browser(groups_claim="groups", members_of=["staff"])
    message = await refusal(browser.but(id_token={"_claim_names": {"groups": "src1"}}).through())
    assert message.startswith("forbidden: Acme knows you, but you are in none of the groups")
    assert "Acme left your groups out" in message
