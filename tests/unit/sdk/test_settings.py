"""Settings are safe or refused, and every variable is documented."""

import os
import re
import subprocess
import sys
import traceback
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path

import pytest

import countersign
from countersign import Settings, SettingsError
from countersign import settings as settings_module
from countersign.contract import PrivateKey
from countersign.journal.place import JournalUrl, default_key_path
from countersign.settings import journal_key_path_from_env, journal_path_from_env, load_key
from tests.fakes.desk import write_key
from tests.house.repository import ROOT

ENV = {
    "COUNTERSIGN_URL": "http://127.0.0.1:8420/",
    "COUNTERSIGN_AGENT": "support",
    "COUNTERSIGN_KEY": "/keys/agent.pem",
}
README = Path(countersign.__file__).parents[1] / "README.md"


def test_three_variables_are_enough() -> None:
    settings = Settings.from_env(ENV | {"XDG_STATE_HOME": "/state"})
    assert settings.iss == "http://127.0.0.1:8420"
    assert settings.journal_path == Path("/state/countersign/support.db")
    assert (settings.allow_dev, settings.allow_http) == (False, False)


def test_the_key_of_the_journal_is_named_or_lies_beside_it() -> None:
    assert Settings.from_env(ENV).journal_key_path is None
    named = {"COUNTERSIGN_JOURNAL_KEY": "/keys/journal"}
    assert Settings.from_env(ENV | named).journal_key_path == Path("/keys/journal")
    assert journal_key_path_from_env(named) == Path("/keys/journal")
    assert default_key_path(Path("/state/support.db")) == Path("/state/support.db.key")
    assert default_key_path(JournalUrl("postgresql://db.example/journals")) is None


@pytest.mark.parametrize("missing", ENV)
def test_a_missing_variable_is_named(missing: str) -> None:
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


@pytest.mark.skipif(
    os.getuid() != 0, reason="only root can be somebody else: run it as root, as a container does"
)
def test_what_somebody_elses_dev_made_is_not_looked_into(tmp_path: Path) -> None:
    (tmp_path / ".countersign").mkdir(mode=0o700)
    script = "from countersign.settings import Settings; import os; os.setuid(65534); Settings.from_env({})"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={"PYTHONPATH": str(ROOT / "sdk/python")},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "SettingsError" in done.stderr and "PermissionError" not in done.stderr


SAFE = ["https://countersign.example", "https://countersign.example/prefix", "http://localhost:8420"]
SAFE += ["http://[::1]:8420", "http://127.0.0.7"]
UNSAFE = [
    "http://countersign.example",
    "http://127.0.0.1.example",
    "http://10.0.0.1",
    "ftp://countersign.example",
]
UNSAFE += ["countersign.example", "https://", "https://countersign.example?x=1", ""]


@pytest.mark.parametrize("url", [*SAFE, *UNSAFE])
def test_addresses(url: str) -> None:
    with nullcontext() if url in SAFE else pytest.raises(SettingsError):
        Settings.from_env(ENV | {"COUNTERSIGN_URL": url})


def test_plain_http_to_another_machine_has_to_be_asked_for() -> None:
    asked = ENV | {"COUNTERSIGN_URL": "http://policy-service:8420", "COUNTERSIGN_ALLOW_HTTP": "1"}
    assert Settings.from_env(asked).allow_http


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


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o601])
def test_a_key_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = write_key(tmp_path / "agent.pem", PrivateKey.generate())
    path.chmod(mode)
    with pytest.raises(SettingsError, match="chmod 600"):
        load_key(path)


def test_a_key_file_holds_a_key(tmp_path: Path) -> None:
    key = PrivateKey.generate()
    assert load_key(write_key(tmp_path / "agent.pem", key)).public == key.public
    for text in ("-----BEGIN PRIVATE KEY-----\ncanary\n", "canary"):
        (tmp_path / "agent.pem").write_text(text)
        with pytest.raises(SettingsError, match="no Ed25519") as refused:
            load_key(tmp_path / "agent.pem")
        assert "canary" not in "".join(traceback.format_exception(refused.value))
    with pytest.raises(SettingsError, match="cannot be read"):
        load_key(tmp_path / "gone.pem")


def test_an_agents_name_makes_no_path_of_its_own() -> None:
    path = journal_path_from_env({"COUNTERSIGN_AGENT": "../../etc/passwd", "XDG_STATE_HOME": "/state"})
    assert path == Path("/state/countersign/.._.._etc_passwd.db")


def test_every_variable_is_in_the_readme() -> None:
    names = {value for name, value in vars(settings_module).items() if name.endswith("_VARIABLE")}
    assert len(names) == 14
    assert names <= set(re.findall(r"COUNTERSIGN_\w+", README.read_text()))


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    for name in countersign.__all__:
        assert getattr(countersign, name).__doc__, name
    assert set(countersign.__all__) == set(countersign._HOME_OF)
    assert "tool" in dir(countersign)
    with pytest.raises(AttributeError, match="no attribute"):
        _ = countersign.nothing_of_ours  # type: ignore[attr-defined]


NUMBERS = [one.name for one in fields(Settings) if one.type in {"int", "float"}]


def test_every_number_has_a_least() -> None:
    assert set(NUMBERS) == set(settings_module._LEAST)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_a_number_that_is_none_is_refused(name: str, value: float) -> None:
    with pytest.raises(SettingsError, match=f"{name} must be a number, at least .*, and is {value!r}"):
        replace(Settings.from_env(ENV), **{name: value})


@pytest.mark.parametrize("name", ["connect_seconds", "lease_seconds", "idempotent_tries", "max_rounds"])
def test_none_at_all_is_refused_where_nothing_could_happen_then(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        replace(Settings.from_env(ENV), **{name: 0})
