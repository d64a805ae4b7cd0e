"""The command ``settings``: every setting with its value, without the passwords that a URL may hold."""

from __future__ import annotations

from typing import Any

from sqlalchemy import make_url

from policy_service.channels.admin.output import AsJson, print_result, report_errors
from policy_service.settings import Settings, load_settings
from policy_service.settings_parsing import ENV_PREFIX, without_password

# Query parameters of a database URL that are not secret; others may hold a password.
_PLAIN = frozenset({"sslmode", "sslrootcert", "host", "port", "connect_timeout", "application_name"})


def _without_secrets(name: str, value: Any) -> str:
    """A setting's value without the password that a URL may hold."""
    if name == "policies_repository" and value:
        from policy_service.pap.git.remotes import parse_address  # imports dulwich

        return parse_address(value).shown
    if name == "https_proxy" and value:
        return without_password(value)
    if name != "database_url":
        return str(value)
    url = make_url(value)
    query = {key: given if key in _PLAIN else "***" for key, given in url.query.items()}
    return url.set(query=query).render_as_string(hide_password=True)


def show_settings(as_json: AsJson = False) -> None:
    """List every setting: its environment variable, its value here, and its meaning."""
    with report_errors():
        settings = load_settings()
        rows = [
            {
                "variable": ENV_PREFIX + name.upper(),
                "value": _without_secrets(name, getattr(settings, name)),
                "meaning": field.description,
            }
            for name, field in Settings.model_fields.items()
        ]
        print_result(
            rows, as_json, "\n".join(f"{r['variable']}={r['value']}\n    {r['meaning']}" for r in rows)
        )
