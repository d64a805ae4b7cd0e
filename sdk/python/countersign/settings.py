"""The SDK's settings in one frozen object, with the limits of the network and the lease. The defaults are safe.

Read from the environment by `Settings.from_env()`. Refused: a key file others can read, plain http to another machine
(an attacker on the way could replace keys and forge releases), invalid addresses, thumbprints, times and counts.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from countersign.contract.errors import BadKeyError
from countersign.contract.keys import PrivateKey, decode_base64url
from countersign.errors import SettingsError
from countersign.journal.location import JournalLocation, parse_location

if TYPE_CHECKING:
    from countersign.llm.budgets import Budget

URL_VARIABLE: Final = "COUNTERSIGN_URL"
AGENT_VARIABLE: Final = "COUNTERSIGN_AGENT"
KEY_VARIABLE: Final = "COUNTERSIGN_KEY"
TOKEN_VARIABLE: Final = "COUNTERSIGN_TOKEN_FILE"  # noqa: S105 - the name of a variable
JOURNAL_VARIABLE: Final = "COUNTERSIGN_JOURNAL"
JOURNAL_KEY_VARIABLE: Final = "COUNTERSIGN_JOURNAL_KEY"
ALLOW_DEV_VARIABLE: Final = "COUNTERSIGN_ALLOW_DEV"
ALLOW_HTTP_VARIABLE: Final = "COUNTERSIGN_ALLOW_HTTP"
ISSUER_VARIABLE: Final = "COUNTERSIGN_ISSUER"
ISSUER_KEYS_VARIABLE: Final = "COUNTERSIGN_ISSUER_KEYS"
HTTPS_PROXY_VARIABLE: Final = "COUNTERSIGN_HTTPS_PROXY"
CA_FILE_VARIABLE: Final = "COUNTERSIGN_CA_FILE"
BUDGETS_VARIABLE: Final = "COUNTERSIGN_BUDGETS"
PRICES_VARIABLE: Final = "COUNTERSIGN_PRICES"

_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_DEV_ENV: Final = Path(".countersign/env")  # in the working directory
_FALSE: Final = frozenset({"", "0", "false", "no", "off"})
_MOMENT: Final = 0.001
_THUMBPRINT_BYTES: Final = 32
_LEAST: Final[Mapping[str, float]] = MappingProxyType(
    {
        "connect_seconds": _MOMENT,
        "read_seconds": _MOMENT,
        "retries": 0,
        "retry_base_seconds": 0,
        "retry_max_seconds": 0,
        "poll_seconds": 0,
        "max_answer_bytes": 1,
        "max_answer_nodes": 1,
        "max_jwks_bytes": 1,
        "jwks_seconds": 0,
        "jwks_retry_seconds": 0,
        "lease_seconds": _MOMENT,
        "lease_wait_seconds": 0,
        "fire_margin_seconds": 0,
        "idempotent_tries": 1,
        "max_rounds": 1,
    }
)
"""The minimum of each number: below it nothing could be requested, awaited or fired."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The service's address, the agent, its journal, and all limits."""

    url: str
    agent: str
    key_path: Path | None  # the enrolled key; None: one created here, certified by the token
    journal_path: JournalLocation
    journal_key_path: Path | None = None  # seals secrets; None: next to the journal, created when needed
    token_path: Path | None = None  # the platform's token; see service/transport.py
    issuer: str = ""  # what `iss` of a release must be; empty: the url
    issuer_keys: tuple[str, ...] = ()  # thumbprints (RFC 7638) of the only accepted keys; empty: any
    https_proxy: str | None = field(default=None, repr=False)  # may hold a password; None: direct
    ca_file: Path | None = None  # the authorities of the service's certificate; None: those of this host
    allow_dev: bool = False  # accept releases whose votes came from the development sign-in
    allow_http: bool = False  # plain http to another machine; only inside a private network
    budgets: tuple[Budget, ...] = ()  # what calls to models may cost, in addition to those of the file
    budgets_path: Path | None = None  # see llm/budgets.py; read at the first call to a model
    prices_path: Path | None = None  # see llm/prices.py; read at the same time

    connect_seconds: float = 5.0
    read_seconds: float = 15.0  # on top of any time the service was asked to wait
    retries: int = 3  # further tries after a connection error or an overloaded service, same idempotency key
    retry_base_seconds: float = 0.1  # doubled each time, half of it random: agents do not retry in step
    retry_max_seconds: float = 2.0
    poll_seconds: int = 20  # one long poll; proxies drop idle connections at 30 to 60 s

    max_answer_bytes: int = 8 * 1024 * 1024  # 100 effects of 64 KiB and more
    max_answer_nodes: int = 200_000
    max_jwks_bytes: int = 64 * 1024  # three keys take less than 1 KiB
    jwks_seconds: float = 300.0  # half of the time the service publishes a key before it signs with it
    jwks_retry_seconds: float = 30.0  # an unknown kid causes one fetch in this time: tokens cannot flood it

    lease_seconds: float = 60.0  # renewed while its owner lives, by a heartbeat; see journal/leases.py
    lease_wait_seconds: float = 5.0  # how long a second run of the same key waits for the first
    fire_margin_seconds: float = 1.0  # a fire starts only if this much of fire_by is left
    idempotent_tries: int = 3  # calls of one idempotent tool with one call key, the first included
    max_rounds: int = 8  # times a redemption may be sent back to the policy before we give up

    def __post_init__(self) -> None:
        _require_address(self.url, allow_http=self.allow_http)
        _require_proxy(self.https_proxy)
        for pin in self.issuer_keys:
            _require_thumbprint(pin)
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= least):
                raise SettingsError(f"{name} must be a number, at least {least:g}, and is {value!r}")
        if not self.agent or len(self.agent) > 200:
            raise SettingsError(
                f"agent name {self.agent!r} must be 1 to 200 characters; it is the enrolled name"
            )
        if (self.key_path is None) == (self.token_path is None):
            raise SettingsError(
                f"set {KEY_VARIABLE} (the path of an enrolled key) or {TOKEN_VARIABLE} (the path of a token that "
                "your platform puts there), one of the two"
            )

    @property
    def tasks_url(self) -> str:
        """The service's page of tasks."""
        return f"{self.url.rstrip('/')}/tasks"

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read `COUNTERSIGN_URL`, `_AGENT`, `_KEY`, `_TOKEN_FILE`, `_JOURNAL`, `_JOURNAL_KEY`, `_ALLOW_DEV`,
        `_ALLOW_HTTP`, `_ISSUER`, `_ISSUER_KEYS`, `_HTTPS_PROXY`, `_CA_FILE`, `_BUDGETS` and `_PRICES`.

        Raises:
            SettingsError: a required variable is missing, or a value is unsafe.
        """
        env = os.environ if environment is None else environment
        agent = _required(env, AGENT_VARIABLE, "the name the agent was enrolled under")
        journal = env.get(JOURNAL_VARIABLE)
        return cls(
            url=_required(env, URL_VARIABLE, "the address of the policy service, like http://127.0.0.1:8420"),
            agent=agent,
            key_path=_path(env, KEY_VARIABLE),
            token_path=_path(env, TOKEN_VARIABLE),
            journal_path=parse_location(journal) if journal else default_journal_path(agent, env),
            journal_key_path=_path(env, JOURNAL_KEY_VARIABLE),
            issuer=env.get(ISSUER_VARIABLE, ""),
            issuer_keys=_listed(env, ISSUER_KEYS_VARIABLE),
            https_proxy=env.get(HTTPS_PROXY_VARIABLE) or None,
            ca_file=_path(env, CA_FILE_VARIABLE),
            allow_dev=_flag(env, ALLOW_DEV_VARIABLE),
            allow_http=_flag(env, ALLOW_HTTP_VARIABLE),
            budgets_path=_path(env, BUDGETS_VARIABLE),
            prices_path=_path(env, PRICES_VARIABLE),
        )


def journal_path_from_env(environment: Mapping[str, str] | None = None) -> JournalLocation:
    """The location of this agent's journal, for reading it without a service or a key.

    Raises:
        SettingsError: neither the journal nor the agent is named.
    """
    env = os.environ if environment is None else environment
    named = env.get(JOURNAL_VARIABLE)
    if named:
        return parse_location(named)
    return default_journal_path(_required(env, AGENT_VARIABLE, "the agent whose journal it is"), env)


def journal_key_path_from_env(environment: Mapping[str, str] | None = None) -> Path | None:
    """The file of this journal's sealing keys, if one is named."""
    return _path(os.environ if environment is None else environment, JOURNAL_KEY_VARIABLE)


def default_journal_path(agent: str, environment: Mapping[str, str]) -> Path:
    """The default location of the journal: the user's state folder, from any working directory."""
    state = environment.get("XDG_STATE_HOME")
    root = Path(state) if state else Path.home() / ".local" / "state"
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in agent)
    return root / "countersign" / f"{safe}.db"


def load_key(path: Path) -> PrivateKey:
    """Read the agent's private key.

    Raises:
        SettingsError: the file is missing, its mode is too open, or it holds no Ed25519 key.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise SettingsError(
                    f"key file {str(path)!r} is open to others (mode {mode:04o}); run: chmod 600 {path}"
                )
            pem = file.read(16_384)
    except OSError as error:
        raise SettingsError(
            f"key file {str(path)!r} cannot be read ({error.strerror}); enrol the agent, or set {KEY_VARIABLE}"
        ) from error
    try:
        return PrivateKey.from_pem(pem)
    except BadKeyError as error:
        raise SettingsError(f"key file {str(path)!r} holds no Ed25519 private key in PEM: {error}") from error


def _required(env: Mapping[str, str], name: str, meaning: str) -> str:
    value = env.get(name, "")
    if not value:
        here = (
            f" What `policy-service dev` made here is set by `. {_DEV_ENV}`."
            if os.access(_DEV_ENV, os.R_OK)
            else ""
        )
        raise SettingsError(
            f"{name} is not set; it is {meaning}.{here} To try things out write `policy-service dev my_agent.py`, "
            "which sets it; in a test take the fixture `countersign_runtime`; for a service of your own, "
            "`policy-service agent enroll NAME --key-out FILE` and export what that made"
        )
    return value


def _path(env: Mapping[str, str], name: str) -> Path | None:
    named = env.get(name)
    return Path(named) if named else None


def _listed(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    given = env.get(name, "").strip()
    return tuple(part.strip() for part in given.split(",")) if given else ()


def _flag(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name, "").strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise SettingsError(f"{name}={value!r} is neither yes nor no; write 1 or 0")


def _require_address(url: str, *, allow_http: bool) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise SettingsError(
            f"{url!r} is not the address of a service; write it like https://countersign.example"
        )
    if parts.scheme == "http" and not allow_http and not is_loopback(parts.hostname):
        raise SettingsError(
            f"{url!r} is plain http to another machine, where an attacker on the network could forge releases; "
            "use https, "
            f"or set {ALLOW_HTTP_VARIABLE}=1 inside a private network"
        )


def _require_proxy(proxy: str | None) -> None:
    """A proxy address may hold a password, so no message repeats it."""
    if proxy is None:
        return
    try:
        parts = urlsplit(proxy)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise SettingsError(
            f"{HTTPS_PROXY_VARIABLE} is not the address of a proxy; write it like http://proxy.example:3128"
        )


def _require_thumbprint(pin: str) -> None:
    try:
        sound = len(decode_base64url(pin)) == _THUMBPRINT_BYTES
    except ValueError:
        sound = False
    if not sound:
        raise SettingsError(
            f"{ISSUER_KEYS_VARIABLE}: {pin[:64]!r} is not the thumbprint of a key (RFC 7638: 43 characters); "
            "`policy-service issuer-keys` prints them, separated by commas"
        )


def is_loopback(host: str) -> bool:
    """Whether that host is this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
