"""Settings of fact hosts and directories: ambiguous ones are refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from policy_service.errors import StartError
from policy_service.remote_hosts import DirectoryApi, FactsHost
from policy_service.settings import load_settings

HOST = {"url": "https://facts.example/accounts"}
DIRECTORY = {"url": "https://acme.example/scim/v2", "person": "https://login.example|{value}"}


NO_PEOPLE = ["{value}", "https://a.example|{userName}", "https://a.example|maya", "|{value}", "a|b|{value}"]


def test_a_member_is_spelt_by_an_id_and_by_nothing_else() -> None:
    for person in ("https://login.example|{value}", "urn:x|{externalId}"):
        assert DirectoryApi.model_validate(DIRECTORY | {"person": person}).person == person
    for other in NO_PEOPLE:
        with pytest.raises(ValidationError, match="must be ISSUER"):
            DirectoryApi.model_validate(DIRECTORY | {"person": other})


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    **{
        url: ({"url": url}, "plain https URL")
        for url in ("http://a.example/", "https://user:secret@a.example/")
    },
    "a query": ({"url": "https://facts.example/?a=b"}, "write https"),
    "two tokens": ({"token_file": "a", "token_env": "A"}, "not both"),
    "a network that is none": ({"addresses": ["10.0.0.1/8"]}, "addresses"),
    "no concurrency": ({"at_once": 0}, "at_once"),
    "what we do not know": ({"verify": False}, "verify"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_an_entry_that_is_wrong_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message) as refused:
        FactsHost.model_validate(HOST | changes)
    assert "secret" not in str(refused.value.errors(include_input=False))


def test_directory_max_age_must_exceed_the_poll_interval() -> None:
    assert load_settings(directory_poll_s=30, directory_max_age_s=31)
    with pytest.raises(StartError, match="longer than directory_poll_s"):
        load_settings(directory_poll_s=30, directory_max_age_s=30)
