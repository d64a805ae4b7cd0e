"""The settings of the service: every limit, timeout and path, with its unit and its reason.

Read from the environment (``COUNTERSIGN_...``), then from ``countersign.toml`` (``COUNTERSIGN_CONFIG``, else in
``data_dir``), then from the defaults below, which are safe when nothing is set: loopback, no development sign-in, no
API keys. The object is frozen. No other module reads the environment, except ``tracing.py`` for OpenTelemetry's own
``OTEL_...``.

Refused: an unknown key in the file, a development sign-in, an API key or the environment ``dev`` on anything but
loopback, and a public address without TLS.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from policy_service.errors import StartError
from policy_service.issuers import SignInProvider, TrustedIssuer, require_distinct
from policy_service.remote_hosts import DirectoryApi, FactsHost, Webhook
from policy_service.settings_parsing import (
    ENV_PREFIX,
    config_file,
    is_loopback,
    require_origin,
    require_proxy,
    setting_error,
    with_driver,
)
from policy_service.slack import SlackApp


class Settings(BaseSettings):
    """The service's settings. :func:`load_settings` reports invalid ones in a sentence."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="forbid", validate_default=True
    )

    # -- paths ---------------------------------------------------------------------------------------------
    data_dir: Path = Field(
        Path("countersign-data"), description="folder of the database, the keys and the lock"
    )
    database_url: Annotated[str, AfterValidator(with_driver)] = Field(
        "",
        description="sqlite:///FILE or postgresql://...; empty: a file in data_dir; docs/how-to/postgresql.md",
    )
    key_dir: Path = Field(
        Path(), description="folder of the private keys and the epoch mark; empty: keys/ in data_dir"
    )
    bundle_dir: Path = Field(Path("policies"), description="folder of the policy bundle")
    shadow_dir: Path | None = Field(
        None,
        description="folder of a candidate bundle, compared on live traffic; docs/how-to/shadow-policies.md",
    )
    shadow_ref: str = Field(
        "",
        description="branch or tag of policies_repository whose head is the candidate, in place of shadow_dir",
    )

    # -- policies from git: docs/how-to/policies-from-git.md ------------------------------------------------------
    policies_repository: str = Field(
        "",
        description="the policies' git repository: folder, https or ssh; empty: the folder bundle_dir",
    )
    policies_ref: str = Field("main", min_length=1, description="the branch or tag to follow")
    policies_subfolder: str = Field("", description="the bundle's folder in that repository; empty: its root")
    policies_allowed_signers: Path | None = Field(
        None,
        description="who may sign its head (OpenSSH allowed_signers); empty: no signature is required",
    )
    policies_token_file: Path | None = Field(None, description="the password or token for https, in a file")
    policies_webhook_secret_file: Path | None = Field(
        None, description="the secret that a webhook to /v1/policies/sync is signed with"
    )
    policies_require_cases: bool | None = Field(
        None,
        description="new policies must pass their own cases and the active ones; empty: on with policies_repository, "
        "off in dev and for a folder",
    )
    policies_timeout_s: float = Field(30, gt=0, le=600, description="limit of one read of the repository")
    policies_poll_s: float = Field(
        30, gt=0, description="interval of reading the repository; a webhook is faster"
    )

    # -- addresses -----------------------------------------------------------------------------------------
    host: str = Field("127.0.0.1", description="address to listen on; anything but loopback needs public_url")
    port: int = Field(8420, ge=0, le=65535, description="port to listen on")
    workers: int = Field(1, ge=1, le=64, description="processes that serve; several need PostgreSQL")
    public_url: Annotated[str, AfterValidator(require_origin)] = Field(
        "", description="where people and agents reach the service; also `iss` of all it signs"
    )

    https_proxy: Annotated[str | None, AfterValidator(require_proxy)] = Field(
        None,
        repr=False,
        description="http://HOST:PORT of the proxy for https to Slack, sign-in, issuers, policies and traces; plain "
        "http, facts and webhooks use none, and HTTPS_PROXY and its like are ignored",
    )
    ca_file: Path | None = Field(
        None,
        description="the authorities (PEM) to trust for those hosts; empty: those of this host",
    )

    # -- modes ---------------------------------------------------------------------------------------------
    environment: Literal["production", "staging", "dev"] = Field(
        "production",
        description="what policies see as context.env; in dev, on loopback only, an unknown tool is a review",
    )
    dev_signin: bool = Field(False, description="sign-in by a one-time link from the terminal; loopback only")
    api_keys: bool = Field(False, description="let agents use a bearer key instead of a proof; loopback only")

    # -- monitoring ----------------------------------------------------------------------------------------
    metrics_token_file: Path | None = Field(
        None, description="bearer token of /metrics; required except on loopback"
    )

    # -- admission -----------------------------------------------------------------------------------------
    max_body_bytes: int = Field(4_194_304, gt=0, description="one request; 16 effects with the largest args")
    max_wait_s: int = Field(30, ge=0, description="longest Prefer: wait; proxies give up at 60")
    submissions_per_minute: int = Field(
        6_000, gt=0, description="of one agent on each replica, including dry runs; more are refused with 429"
    )
    open_reviews_per_agent: int = Field(
        200, gt=0, description="open reviews of one agent, on all replicas; more are refused with 429"
    )
    denied_before_hours: int = Field(
        24,
        gt=0,
        le=720,
        description="a review shows denials of the same tool and resource that are no older than this",
    )
    waits_per_agent: int = Field(1_000, gt=0, description="waiting requests of one agent, on each replica")
    page_size: int = Field(50, gt=0, le=200, description="rows of a page without a requested limit")
    max_page_size: int = Field(200, gt=0, le=1000, description="rows of a page at most")

    # -- releases ------------------------------------------------------------------------------------------
    release_ttl_s: int = Field(
        120, gt=0, le=300, description="life of a release token, from the request for it"
    )
    fire_window_s: int = Field(
        30, gt=0, le=300, description="from redemption to fire_by; renewable, not extendable"
    )
    clock_leeway_s: int = Field(5, ge=0, le=30, description="how far an agent's clock may be off")
    outcome_grace_s: int = Field(60, gt=0, description="after fire_by, if the manifest names no timeout")

    # -- proofs --------------------------------------------------------------------------------------------
    proof_max_age_s: int = Field(60, gt=0, le=300, description="age of an agent's proof at most")
    nonce_period_s: int = Field(
        60, gt=0, le=300, description="life of a nonce; the previous one is also valid"
    )

    # -- people --------------------------------------------------------------------------------------------
    providers: tuple[SignInProvider, ...] = Field(
        (), description="[[providers]]: where people sign in; docs/how-to/sign-in.md has one for each vendor"
    )
    session_idle_s: int = Field(3_600, gt=0, description="an hour without a request signs a person out")
    session_max_s: int = Field(43_200, gt=0, le=86_400, description="a working day, regardless of activity")
    session_touch_s: int = Field(60, ge=0, description="precision of recorded activity: one write a minute")
    sign_in_link_s: int = Field(600, gt=0, le=3_600, description="life of a development sign-in link")
    max_group_age_s: int = Field(43_200, gt=0, description="age of groups from a token when a vote is cast")

    # -- passkeys: docs/how-to/passkeys.md -------------------------------------------------------------------------
    fresh_sign_in_s: int = Field(
        300, gt=0, le=3_600, description="age of a sign-in that may enrol a first passkey"
    )
    challenge_s: int = Field(300, gt=0, le=900, description="life of a passkey challenge; it is valid once")
    passkey_wait_s: int = Field(
        86_400,
        ge=0,
        description="a passkey that replaces lost ones counts after this; one vouched for by an older one, at once",
    )

    # -- agents without an enrolled key --------------------------------------------------------------------
    trusted_issuers: tuple[TrustedIssuer, ...] = Field(
        (),
        description="[[trusted_issuers]]: issuers whose tokens let an agent enrol a key; docs/how-to/agents.md",
    )
    agent_key_max_s: int = Field(
        3_600, gt=0, le=86_400, description="life of a key enrolled with a token; never longer than the token"
    )

    # -- sources of facts and groups -------------------------------------------------------------------------
    facts_http: tuple[FactsHost, ...] = Field(
        (),
        description="[[facts_http]]: hosts that a bundle's sources may request; docs/how-to/facts-and-groups.md",
    )
    directory: DirectoryApi | None = Field(
        None,
        description="[directory]: the SCIM directory that groups are read from; docs/how-to/facts-and-groups.md",
    )
    directory_poll_s: float = Field(30, gt=0, description="interval of reading the directory's groups")
    directory_max_age_s: int = Field(
        900, gt=0, description="groups read longer ago do not count: they are then empty"
    )

    webhooks: tuple[Webhook, ...] = Field(
        (), description="[[webhooks]]: receivers of signed events; docs/how-to/webhooks.md"
    )
    webhook_give_up_hours: int = Field(
        72, gt=0, le=720, description="how long delivery of an event is retried"
    )

    # -- Slack: docs/how-to/slack.md --------------------------------------------------------------------------------
    slack: SlackApp | None = Field(
        None, description="[slack]: the Slack app for reviews; docs/how-to/slack.md"
    )

    # -- storage -------------------------------------------------------------------------------------------
    max_batch: int = Field(
        256, gt=0, le=4096, description="units of work in one commit; bounds how long the first one waits"
    )
    durability: Literal["full", "normal"] = Field(
        "full",
        description="normal may lose acknowledged decisions at power loss: SQLite, never in production",
    )
    busy_timeout_ms: int = Field(5_000, gt=0, description="timeout for a lock that another process holds")
    read_threads: int = Field(4, gt=0, le=64, description="concurrent queries")
    pool_size: int = Field(8, gt=0, le=100, description="PostgreSQL connections that write")
    max_runs: int = Field(
        5, gt=0, le=20, description="attempts of a unit of work when PostgreSQL requests a retry"
    )

    # -- jobs ----------------------------------------------------------------------------------------------
    sequencer_s: float = Field(
        0.5, gt=0, le=1, description="interval of indexing and following the audit log; at most a second"
    )
    sequencer_batch: int = Field(500, gt=0, description="rows indexed in one unit of work, on PostgreSQL")
    poll_bundle_s: float = Field(2, gt=0, description="interval of checking the bundle folder for changes")
    watch_s: float = Field(5, gt=0, le=60, description="interval of the health checks that /readyz reports")
    log_lag_s: float = Field(10, gt=0, description="an audit row without an index for longer is an error")
    outbox_late_s: float = Field(900, gt=0, description="a message that waits for longer is a warning")
    disk_low_mb: int = Field(512, ge=0, description="less free space for data or keys is a warning")
    sweep_s: float = Field(
        5, gt=0, description="interval of expiry and late outcomes; both are also checked at use"
    )
    housekeeping_s: float = Field(300, gt=0, description="interval of deleting old keys, sessions and links")
    lease_s: int = Field(15, gt=0, description="a job's lease; a dead replica is replaced after this")
    archive_after_days: int = Field(
        0, ge=0, le=36_500, description="age of settled transactions that move to archive_dir; 0: never"
    )
    archive_dir: Path = Field(Path(), description="folder of the archive files; empty: archive/ in data_dir")
    idempotency_keep_hours: int = Field(72, ge=24, description="how long a key remembers what it made")
    outbox_max_attempts: int = Field(20, gt=0, description="delivery attempts before a message is abandoned")
    outbox_backoff_s: float = Field(1, gt=0, description="first pause, doubled each time")
    outbox_max_backoff_s: float = Field(900, gt=0, description="longest pause")

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Derive settings from others, so that the frozen object is complete."""
        defaults = {name: field.default for name, field in cls.model_fields.items()}
        merged = defaults | given
        data_dir = Path(merged["data_dir"]).expanduser().absolute()
        host, port = merged["host"], merged["port"]
        shown = f"[{host}]" if ":" in str(host) else host
        return given | {
            "data_dir": data_dir,
            "database_url": merged["database_url"] or f"sqlite:///{data_dir / 'countersign.db'}",
            "key_dir": Path(given.get("key_dir") or data_dir / "keys").expanduser().absolute(),
            "archive_dir": Path(given.get("archive_dir") or data_dir / "archive").expanduser().absolute(),
            "bundle_dir": Path(merged["bundle_dir"]).expanduser().absolute(),
            "shadow_dir": Path(merged["shadow_dir"]).expanduser().absolute()
            if merged["shadow_dir"]
            else None,
            "public_url": merged["public_url"]
            or (f"http://{shown}:{port}" if is_loopback(str(host)) else ""),
        }

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if not self.public_url:
            raise ValueError(
                f"host {self.host!r} is not loopback: set public_url to the https address people will use"
            )
        if not self.loopback:
            if urlsplit(self.public_url).scheme != "https":
                raise ValueError(f"public_url {self.public_url!r} is not loopback: it must be https")
            if self.environment == "dev":
                raise ValueError(
                    "environment 'dev' opens reviews for tools without a manifest, so it is for loopback only, but "
                    f"this is {self.public_url!r} on {self.host!r}; write 'staging', or listen on 127.0.0.1"
                )
            for name in ("dev_signin", "api_keys"):
                if getattr(self, name):
                    raise ValueError(
                        f"{name} is for loopback only, but this is {self.public_url!r} on {self.host!r}; "
                        f"unset {ENV_PREFIX}{name.upper()} or listen on 127.0.0.1"
                    )
        if self.durability != "full":
            self._require_durability_allowed()
        require_distinct(self.providers)
        require_distinct(self.trusted_issuers)
        if len({webhook.name for webhook in self.webhooks}) != len(self.webhooks):
            raise ValueError("each webhook needs a distinct name")
        if self.shadow_ref and (self.shadow_dir is not None or not self.policies_repository):
            raise ValueError("shadow_ref is a branch of policies_repository, and replaces shadow_dir")
        if self.directory_poll_s >= self.directory_max_age_s:
            raise ValueError("directory_max_age_s must be longer than directory_poll_s")
        if self.session_idle_s > self.session_max_s:
            raise ValueError("session_idle_s cannot be longer than session_max_s")
        return self

    def _require_durability_allowed(self) -> None:
        """Invariant I-7 holds only with durability full; less is never for production."""
        if self.environment == "production":
            raise ValueError(
                f"durability {self.durability!r} may lose acknowledged decisions, and this is production; "
                f"unset {ENV_PREFIX}DURABILITY, or set {ENV_PREFIX}ENVIRONMENT to dev or staging for a trial"
            )
        if not self.database_url.startswith("sqlite"):
            raise ValueError(
                f"durability {self.durability!r} is for SQLite only; PostgreSQL commits are always durable"
            )

    def rows(self, limit: int | None) -> int:
        """Rows of a page for a requested ``limit``, or for none."""
        return min(limit or self.page_size, self.max_page_size)

    @property
    def cases_required(self) -> bool:
        """Whether a bundle must pass its cases before activation."""
        if self.policies_require_cases is not None:
            return self.policies_require_cases
        return bool(self.policies_repository) and self.environment != "dev"

    @property
    def loopback(self) -> bool:
        """Whether both the listening address and the public URL are loopback."""
        return is_loopback(self.host) and is_loopback(urlsplit(self.public_url).hostname or "")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then environment, then the file. No .env: settings must not depend on the working folder."""
        given = init_settings() | {}
        data_dir = (
            given.get("data_dir") or env_settings().get("data_dir") or cls.model_fields["data_dir"].default
        )
        file = config_file(Path(data_dir))
        try:
            return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=file)
        except (OSError, ValueError) as error:
            raise StartError(f"settings: the file {str(file)!r} cannot be read: {error}") from error


def load_settings(**given: Any) -> Settings:
    """Read the settings.

    Raises:
        StartError: a setting is invalid; the sentence names it.
    """
    try:
        return Settings(**given)
    except SettingsError as error:
        raise StartError(f"settings: {error}; write lists and tables in the environment as JSON") from None
    except ValidationError as error:
        faults = "; ".join(
            setting_error(one) for one in error.errors(include_url=False, include_context=False)
        )
        raise StartError(
            f"settings: {faults}"
        ) from None  # the error itself quotes every value, including secrets
