"""Safe when nothing is set, refused when something is wrong, and every setting explains itself."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from policy_service.errors import StartError
from policy_service.settings import Settings, load_settings
from policy_service.settings_parsing import is_loopback


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"COUNTERSIGN_{name.upper()}", raising=False)
    monkeypatch.delenv("COUNTERSIGN_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)


def test_nothing_set_is_safe(tmp_path: Path) -> None:
    settings, data = load_settings(), tmp_path / "countersign-data"
    assert (settings.loopback, settings.dev_signin, settings.api_keys) == (True, False, False)
    assert (settings.environment, settings.durability) == ("production", "full")
    assert settings.public_url == f"http://127.0.0.1:{settings.port}"
    assert (settings.data_dir, settings.key_dir) == (data, data / "keys")
    with pytest.raises(ValidationError, match="frozen"):
        settings.port = 1
    assert settings.database_url == f"sqlite:///{data}/countersign.db"


def test_every_setting_says_what_it_is() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_environment_beats_file_beats_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "countersign-data").mkdir()
    (tmp_path / "countersign-data" / "countersign.toml").write_text("port = 9001\nmax_wait_s = 7\n")
    monkeypatch.setenv("COUNTERSIGN_PORT", "9002")
    settings = load_settings()
    assert (settings.port, settings.max_wait_s, settings.release_ttl_s) == (9002, 7, 120)


def test_the_settings_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "countersign.toml").write_text("port = 9001\n")
    assert load_settings(data_dir=tmp_path).port == 9001
    monkeypatch.setenv("COUNTERSIGN_DATA_DIR", str(tmp_path))
    assert load_settings().port == 9001
    (tmp_path / "my.toml").write_text("port = 9003\n")
    monkeypatch.setenv("COUNTERSIGN_CONFIG", str(tmp_path / "my.toml"))
    assert load_settings().port == 9003


FILES_OF_SECRETS = {"bot_token_file": "/secrets/bot", "signing_secret_file": "/secrets/signing"}
SLACK_ALONE = {"team_id": "T0ACME", "app_id": "A0COUNTERSIGN", **FILES_OF_SECRETS}
SLACK = {**SLACK_ALONE, "default_channel": "#a"}
TWO_HOSTS = [{"url": "https://a.example"}, {}]
NONE_OF_OURS = r"settings: \[slack\]: 'bot_token' is not a setting of this service; see docs/"
OUT_OF_RANGE = [("port", 70_000), ("release_ttl_s", 0), ("release_ttl_s", 3600), ("sequencer_s", 5)]
OUT_OF_RANGE += [("session_idle_s", 50_000), ("idempotency_keep_hours", 1)]
NO_ORIGINS = ["https://x.example/app", "https://x.example/", "ftp://x.example", "x.example"]
REFUSED = {
    "an unknown setting": ({"prot": 1}, "'prot' is not a setting"),
    **{f"{name} of {value}": ({name: value}, name) for name, value in OUT_OF_RANGE},
    "an open address without a public one": ({"host": "0.0.0.0"}, "set public_url"),
    "a public address without tls": ({"host": "0.0.0.0", "public_url": "http://x.example"}, "must be https"),
    "a public name without tls on loopback": ({"public_url": "http://x.example"}, "must be https"),
    **{url: ({"public_url": url}, "not an origin") for url in NO_ORIGINS},
    "a user in the public address": ({"public_url": "https://me@x.example"}, "name no user"),
    "capitals in the public address": ({"public_url": "https://X.example"}, "lower case"),
    "a member that a table lacks": ({"slack": SLACK_ALONE}, r"\[slack\]: default_channel is missing; see docs/"),
    "a member of a table that is wrong": ({"slack": SLACK | {"team_id": "acme"}}, r"\[slack\]: team_id: 'acme' is"),
    "a member that no table has": ({"slack": SLACK | {"bot_token": "x"}}, NONE_OF_OURS),
    "a member that the second of several lacks": ({"facts_http": TWO_HOSTS}, r"\[\[facts_http\]\] no. 2: url is mis"),
    "a table that is none": ({"slack": 1}, "settings: slack: "),
}  # fmt: skip


@pytest.mark.parametrize(("given", "says"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_setting_is_refused_by_name(given: dict[str, object], says: str) -> None:
    with pytest.raises(StartError, match=says):
        load_settings(**given)


FILES = {
    "not there": (None, "my.toml"),
    "unreadable": ("port = = 1\n", r"my\.toml"),
    "with an unknown key": ("relase_ttl_s = 60\n", "'relase_ttl_s' is not a setting"),
}


@pytest.mark.parametrize(("text", "says"), FILES.values(), ids=FILES)
def test_a_wrong_file_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: Any, says: str) -> None:
    if text is not None:
        (tmp_path / "my.toml").write_text(text)
    monkeypatch.setenv("COUNTERSIGN_CONFIG", str(tmp_path / "my.toml"))
    with pytest.raises(StartError, match=says):
        load_settings()


LOCAL, ELSEWHERE = "http://localhost:8420", "https://x.example"
OPEN = [("0.0.0.0", ELSEWHERE), ("127.0.0.1", ELSEWHERE), ("0.0.0.0", LOCAL), ("::", LOCAL)]
OPEN += [("localhost.example", LOCAL)]


@pytest.mark.parametrize("name", ["dev_signin", "api_keys"])
def test_loopback_settings_are_refused_elsewhere(name: str) -> None:
    for host, url in OPEN:
        with pytest.raises(StartError):
            load_settings(host=host, public_url=url, **{name: True})
    for host in ("127.0.0.1", "localhost", "::1"):
        assert getattr(load_settings(host=host, dev_signin=True, api_keys=True), name)


def test_addresses_that_are_fine() -> None:
    assert load_settings(host="::1", port=1).public_url == "http://[::1]:1"
    assert load_settings(host="0.0.0.0", public_url="https://x.example")  # a proxy with TLS in front


def test_a_refusal_does_not_quote_the_value_of_another_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERSIGN_DATABASE_URL", "postgresql+psycopg://u:canary@db/x")
    with pytest.raises(StartError) as caught:
        load_settings(port=70_000)
    assert "canary" not in str(caught.value)


def test_a_postgresql_address_gets_the_driver_this_service_has() -> None:
    ours = "postgresql+psycopg://u:canary@db/x?sslmode=require"
    for scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        given = f"{scheme}://u:canary@db/x?sslmode=require"
        assert load_settings(database_url=given).database_url == ours


OTHER_DATABASES = "mysql://u:canary@db/x postgresql+asyncpg://u:canary@db/x canary sqlite+aiosqlite:///canary"


@pytest.mark.parametrize("given", OTHER_DATABASES.split())
def test_another_database_is_refused_without_quoting_its_password(given: str) -> None:
    with pytest.raises(StartError, match=r"write sqlite:///FILE or postgresql://") as caught:
        load_settings(database_url=given)
    assert "canary" not in str(caught.value)


def test_only_this_machine_is_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")))
    others = ("0.0.0.0", "::", "", "localhost.example", "127.0.0.1.example", "192.168.0.1")
    assert not any(map(is_loopback, (*others, "::ffff:192.168.0.1", "LOCALHOST.")))


def test_durability_normal_is_refused_in_production() -> None:
    assert load_settings(durability="normal", environment="dev").durability == "normal"
    with pytest.raises(StartError, match="COUNTERSIGN_ENVIRONMENT"):
        load_settings(durability="normal")
    with pytest.raises(StartError, match="PostgreSQL"):
        load_settings(durability="normal", environment="staging", database_url="postgresql://u@h/d")
    with pytest.raises(StartError):
        load_settings(durability="off", environment="dev")
