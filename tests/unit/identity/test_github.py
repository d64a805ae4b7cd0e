"""GitHub sign-in: accounts by number, teams page by page, never by name."""

from typing import Any

import httpx2
import pytest

from policy_service.errors import ServerError
from policy_service.identity.claims import effective_groups, listed_groups
from policy_service.identity.external_jwt import UntrustedTokenError
from policy_service.identity.oauth import GithubAccount, fetch_account
from policy_service.issuers import SignInProvider

CLIENT = {"client_id": "c", "client_secret": "s"}
GITHUB = {"name": "github", "title": "GitHub", "kind": "github", "issuer": "https://github.com"}
TABLE: dict[str, Any] = GITHUB | CLIENT | {"groups_claim": "teams", "members_of": ["acme/team-1"]}


async def asked(answers: dict[str, Any], **more: Any) -> GithubAccount:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.headers["authorization"] == "Bearer token"
        found = answers.get(str(request.url))
        return httpx2.Response(404) if found is None else httpx2.Response(200, json=found)

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
        return await fetch_account(client, SignInProvider(**TABLE | more), "token")


USER = "https://api.github.com/user"
PAGE = f"{USER}/teams?per_page=100&page="


def team(number: int) -> dict[str, Any]:
    return {"slug": f"team-{number}", "organization": {"login": "acme"}}


async def test_an_account_is_its_number_and_its_teams_are_read_to_the_end() -> None:
    pages = {f"{PAGE}1": [team(n) for n in range(100)], f"{PAGE}2": [team(100)]}
    account = await asked({USER: {"id": 7, "login": "maya", "name": "Maya Okafor"}} | pages)
    assert (account.sub, account.claims["teams"]) == ("7", [f"acme/team-{n}" for n in range(101)])
    assert (account.claims["name"], account.claims["preferred_username"]) == ("Maya Okafor", "maya")


async def test_more_teams_than_can_count_are_seen() -> None:
    pages = {f"{PAGE}{n}": [team(100 * n + m) for m in range(100)] for n in range(1, 9)}
    account = await asked({USER: {"id": 7}} | pages)
    table = SignInProvider(**TABLE)
    _, problem = effective_groups(table, listed_groups(table, [account.claims]))
    assert problem == "GitHub lists 600 groups for you; the first 500 count"


async def test_a_server_of_ones_own_has_its_own_api() -> None:
    more = {"issuer": "https://git.acme.example", "groups_claim": None, "members_of": []}
    account = await asked({"https://git.acme.example/api/v3/user": {"id": 7, "login": "maya"}}, **more)
    assert account.sub == "7"


@pytest.mark.parametrize("user", [{}, {"id": None}, {"id": "7"}, {"id": True}, {"id": 0}, ["id"]])
async def test_no_number_is_no_account(user: Any) -> None:
    with pytest.raises(UntrustedTokenError):
        await asked({USER: user})


async def test_a_team_without_a_name_does_not_hide_the_others() -> None:
    odd = [{"slug": "x"}, None, team(1) | {"slug": 7}, {"slug": "x", "organization": []}]
    account = await asked({USER: {"id": 7}, f"{PAGE}1": [*odd, team(1)]})
    assert account.claims["teams"] == [None] * 4 + ["acme/team-1"]


async def test_teams_it_may_not_read_are_an_error_and_not_no_teams() -> None:
    with pytest.raises(ServerError):
        await asked({USER: {"id": 7}})
