"""Open what the settings name: the sources of bundles, and secrets in files."""

from __future__ import annotations

from pathlib import Path

from policy_service.channels.http.webhook_signatures import require_strong_secret
from policy_service.issuers import SignInProvider
from policy_service.pap.source import BundleSource, FolderSource
from policy_service.settings import Settings
from policy_service.storage.unit_of_work import Clock
from policy_service.tokens.secret_files import read_secret


def bundle_source(settings: Settings, clock: Clock) -> BundleSource:
    """The source of the active bundle."""
    if not settings.policies_repository:
        return FolderSource(settings.bundle_dir)
    from policy_service.pap.git.git_source import open_git_source  # imports dulwich

    return open_git_source(settings, clock, _policies_token(settings))


def shadow_source(settings: Settings, clock: Clock) -> BundleSource | None:
    """The source of the shadow candidate."""
    if settings.shadow_dir is not None:
        return FolderSource(settings.shadow_dir)
    if not settings.shadow_ref:
        return None
    from policy_service.pap.git.git_source import open_git_source

    return open_git_source(settings, clock, _policies_token(settings), shadow=True)


def read_secret_file(path: Path) -> bytes:
    """Read a secret from the file that a setting names.

    Raises:
        StartError: the file is missing, not a plain file, owned by another user, or readable by others.
    """
    return read_secret(path, what="the secret", get="write it there, readable only by this user: chmod 600")


def _policies_token(settings: Settings) -> str | None:
    file = settings.policies_token_file
    return None if file is None else read_secret_file(file).decode().strip()


def client_secrets(settings: Settings) -> dict[str, tuple[SignInProvider, str]]:
    """The sign-in providers by name, each with its client secret."""
    providers = {}
    for provider in settings.providers:
        if provider.client_secret is not None:
            secret = provider.client_secret.get_secret_value()
        else:
            secret = read_secret_file(Path(str(provider.client_secret_file))).decode().strip()
        providers[provider.name] = (provider, secret)
    return providers


def metrics_token(settings: Settings) -> bytes | None:
    """The bearer token of /metrics."""
    file = settings.metrics_token_file
    return None if file is None else read_secret_file(file).strip()


def webhook_secret(settings: Settings) -> bytes | None:
    """The secret that incoming webhooks are signed with."""
    file = settings.policies_webhook_secret_file
    return None if file is None else require_strong_secret(read_secret_file(file).strip())
