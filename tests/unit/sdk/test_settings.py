"""Settings are safe or refused, and every variable is documented."""

import re
import traceback
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path

import pytest

import countersign
from countersign import Settings, SettingsError
from countersign import settings as settings_module
from countersign.contract import PrivateKey
from countersign.journal.location import JournalUrl, default_key_path
from countersign.service.enforcement import issuer_of
from countersign.settings import journal_key_path_from_env, journal_path_from_env, load_key
from tests.fakes.desk import write_key

ENV = {
    "COUNTERSIGN_URL": "http://127.0.0.1:8420/",
    "COUNTERSIGN_AGENT": "support",
    "COUNTERSIGN_KEY": "/keys/agent.pem",
}
PAGE = Path(countersign.__file__).parents[3] / "docs/reference/sdk-settings.md"


def test_three_variables_are_enough() -> None:
    settings = Settings.from_env(ENV | {"XDG_STATE_HOME": "/state"})
    assert issuer_of(settings) == "http://127.0.0.1:8420"
    assert settings.journal_path == Path("/state/countersign/support.db")
    assert (settings.allow_dev, settings.allow_http) == (False, False)


def test_the_key_of_the_journal_is_named_or_next_to_it() -> None:
    assert Settings.from_env(ENV).journal_key_path is None
    named = {"COUNTERSIGN_JOURNAL_KEY": "/keys/journal"}
    assert Settings.from_env(ENV | named).journal_key_path == Path("/keys/journal")
    assert journal_key_path_from_env(named) == Path("/keys/journal")
    assert default_key_path(Path("/state/support.db")) == Path("/state/support.db.key")
    assert default_key_path(JournalUrl("postgresql://db.example/journals")) is None


def test_a_missing_variable_is_named() -> None:
    for missing in ENV:
        with pytest.raises(SettingsError, match=missing):
            Settings.from_env({name: value for name, value in ENV.items() if name != missing})


def test_where_dev_was_its_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError) as elsewhere:
        Settings.from_env({})
    (tmp_path / ".countersign").mkdir()
    (tmp_path / ".countersign/env").write_text("export COUNTERSIGN_AGENT=support\n")
    with pytest.raises(SettingsError, match=r"made here is set by `\. \.countersign/env`\. To try"):
        Settings.from_env({})
    assert ".countersign/env" not in str(elsewhere.value)


SAFE = ["https://countersign.example", "https://countersign.example/prefix", "http://localhost:8420"]
SAFE += ["http://[::1]:8420", "http://127.0.0.7"]
UNSAFE = ["http://countersign.example", "http://127.0.0.1.example", "http://10.0.0.1", "ftp://a.example"]
UNSAFE += ["countersign.example", "https://", "https://countersign.example?x=1", ""]


@pytest.mark.parametrize("url", [*SAFE, *UNSAFE])
def test_addresses(url: str) -> None:
    with nullcontext() if url in SAFE else pytest.raises(SettingsError):
        Settings.from_env(ENV | {"COUNTERSIGN_URL": url})
    asked = {"COUNTERSIGN_URL": "http://policy-service:8420", "COUNTERSIGN_ALLOW_HTTP": "1"}
    assert Settings.from_env(ENV | asked).allow_http


def test_pinned_keys_are_a_list_with_commas() -> None:
    pins = [PrivateKey.generate().public.kid for _ in range(2)]
    given = ENV | {"COUNTERSIGN_ISSUER_KEYS": f" {pins[0]}, {pins[1]}\n"}
    assert Settings.from_env(given).issuer_keys == tuple(pins)
    assert Settings.from_env(ENV | {"COUNTERSIGN_ISSUER_KEYS": " "}).issuer_keys == ()
    for bad in (",", f"{pins[0]},", f"{pins[0]} {pins[1]}"):
        with pytest.raises(SettingsError, match="not the thumbprint"):
            Settings.from_env(ENV | {"COUNTERSIGN_ISSUER_KEYS": bad})


@pytest.mark.parametrize("value", ["maybe", "2", "y e s"])
def test_a_flag_is_yes_or_no(value: str) -> None:
    with pytest.raises(SettingsError, match="neither yes nor no"):
        Settings.from_env(ENV | {"COUNTERSIGN_ALLOW_DEV": value})


def test_a_key_file_holds_a_key_that_only_its_owner_reads(tmp_path: Path) -> None:
    key = PrivateKey.generate()
    assert load_key(write_key(tmp_path / "agent.pem", key)).public == key.public
    for text in ("-----BEGIN PRIVATE KEY-----\ncanary\n", "canary"):
        (tmp_path / "agent.pem").write_text(text)
        with pytest.raises(SettingsError, match="no Ed25519") as refused:
            load_key(tmp_path / "agent.pem")
        assert "canary" not in "".join(traceback.format_exception(refused.value))
    with pytest.raises(SettingsError, match="cannot be read"):
        load_key(tmp_path / "gone.pem")
    for mode in (0o644, 0o640, 0o604, 0o660, 0o601):
        (tmp_path / "agent.pem").chmod(mode)
        with pytest.raises(SettingsError, match="chmod 600"):
            load_key(tmp_path / "agent.pem")


def test_an_agents_name_makes_no_path_of_its_own() -> None:
    path = journal_path_from_env({"COUNTERSIGN_AGENT": "../../etc/passwd", "XDG_STATE_HOME": "/state"})
    assert path == Path("/state/countersign/.._.._etc_passwd.db")


def test_every_variable_is_documented() -> None:
    names = {value for name, value in vars(settings_module).items() if name.endswith("_VARIABLE")}
    assert len(names) == 14
    assert names <= set(re.findall(r"COUNTERSIGN_\w+", PAGE.read_text()))


NUMBERS = [one.name for one in fields(Settings) if one.type in {"int", "float"}]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_is_none_is_refused(name: str) -> None:
    """Of some 0 is too little: nothing could happen then."""
    assert set(NUMBERS) == set(settings_module._LEAST)
    zero = [0] if name in {"connect_seconds", "lease_seconds", "idempotent_tries", "max_rounds"} else []
    for value in (-1, float("nan"), float("inf"), *zero):
        with pytest.raises(SettingsError, match=f"{name} must be a number, at least .*, and is {value!r}"):
            replace(Settings.from_env(ENV), **{name: value})
