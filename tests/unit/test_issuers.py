"""What the operator may write about those who vouch, and what is refused before anybody is believed."""

from pathlib import Path
from typing import Any

import pytest

from policy_service.errors import StartError
from policy_service.settings import Settings, load_settings

PROVIDER = {"name": "acme", "title": "Acme", "issuer": "https://login.acme.example"}
PROVIDER |= {"client_id": "c", "client_secret": "very-secret"}
AGENTS = [{"agent": "desk", "claims": {"sub": "system:serviceaccount:shop:desk"}}]
TRUSTED = {"name": "cluster", "issuer": "https://kubernetes.example", "agents": AGENTS}


def settings(folder: Path, **given: Any) -> Settings:
    return load_settings(data_dir=folder, **given)


def test_a_provider_and_an_issuer_are_read_from_the_file(tmp_path: Path) -> None:
    provider = PROVIDER | {"groups_claim": "groups"}
    mesh = {"name": "mesh", "kind": "spiffe", "trust_domain": "acme.example"}
    mesh["jwks_url"] = "https://spire.acme.example/keys"
    lines = ["[[providers]]", *(f'{name} = "{value}"' for name, value in provider.items())]
    lines += ['groups = { "9f2c" = "finance" }', "[[trusted_issuers]]"]
    lines += [f'{name} = "{value}"' for name, value in mesh.items()]
    lines += ['agents = [{ agent = "desk", claims = { sub = "spiffe://acme.example/desk" } }]']
    (tmp_path / "countersign.toml").write_text("\n".join(lines))
    read = settings(tmp_path)
    assert read.providers[0].groups == {"9f2c": "finance"}
    assert read.trusted_issuers[0].trust_domain == "acme.example"


ACME = "https://login.acme.example"
WRONG_PROVIDERS: list[tuple[dict[str, Any], str]] = [
    *(({"name": name}, "name") for name in ("dev", "a/../b", "")),
    *(
        ({"issuer": url}, "https")
        for url in ("http://a.example", "file:///etc/passwd", "https://u:p@a.example")
    ),
    *(({"issuer": ACME + rest}, why) for rest, why in (("?x=1", "query"), ("/x|y", "'\\|'"))),
    *(({"issuer": f"{ACME}/{odd}"}, "plain") for odd in ("x y", "\u202e")),
    *(({"algorithms": [name]}, "algorithms") for name in ("HS256", "none")),
    *(({"client_secret": None}, "client_secret_file"), ({"client_secret_file": "/x"}, "one of them")),
    *(({"scopes": ["profile"]}, "openid"), ({"isuer": "https://x.example"}, "isuer")),
    *(({"groups": {"a": "b"}}, "groups_claim"), ({"members_of": ["staff"]}, "groups_claim")),
    # everybody at GitHub or at Google
    ({"kind": "github", "required": {"hd": "x"}}, "GitHub"),
    ({"kind": "github", "issuer": "https://github.com"}, "members_of"),
    ({"issuer": "https://accounts.google.com"}, "hd"),
]


@pytest.mark.parametrize(("wrong", "output"), WRONG_PROVIDERS)
def test_an_insecure_provider_is_refused(tmp_path: Path, wrong: dict[str, Any], output: str) -> None:
    with pytest.raises(StartError, match=output) as caught:
        settings(tmp_path, providers=[PROVIDER | wrong])
    assert "very-secret" not in str(caught.value)


WRONG_ISSUERS = {
    "neither issuer nor domain": ({"issuer": None}, "issuer"),
    "both": ({"trust_domain": "acme.example"}, "never both"),
    "a mesh without keys": ({"kind": "spiffe", "issuer": None, "trust_domain": "acme.example"}, "jwks"),
    "keys twice": ({"jwks_url": "https://x.example", "jwks_file": "/x"}, "not both"),
    "no agent": ({"agents": []}, "agents"),
    "any token at all": ({"agents": [{"agent": "desk", "claims": {}}]}, "claims"),
    "a symmetric algorithm": ({"algorithms": ["HS512"]}, "algorithms"),
}


@pytest.mark.parametrize(("wrong", "output"), WRONG_ISSUERS.values(), ids=WRONG_ISSUERS.keys())
def test_an_insecure_issuer_is_refused(tmp_path: Path, wrong: dict[str, Any], output: str) -> None:
    with pytest.raises(StartError, match=output):
        settings(tmp_path, trusted_issuers=[TRUSTED | wrong])


def test_two_providers_never_share_a_name_or_an_issuer(tmp_path: Path) -> None:
    for second in ({}, {"name": "other"}, {"issuer": "https://other.example"}):
        with pytest.raises(StartError, match="twice"):
            settings(tmp_path, providers=[PROVIDER, PROVIDER | second])


def test_a_password_in_an_address_is_not_quoted(tmp_path: Path) -> None:
    with pytest.raises(StartError) as caught:
        settings(tmp_path, providers=[PROVIDER | {"issuer": "https://maya:hunter2@login.acme.example"}])
    assert "hunter2" not in str(caught.value)


def test_a_table_in_the_environment_is_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERSIGN_PROVIDERS", "[{very-secret")
    with pytest.raises(StartError, match="JSON") as caught:
        settings(tmp_path)
    assert "very-secret" not in str(caught.value)


def test_a_secret_is_never_shown(tmp_path: Path) -> None:
    read = settings(tmp_path, providers=[PROVIDER])
    assert "very-secret" not in repr(read) + str(read) + read.model_dump_json()
