"""``policy-service webhooks``: list receivers with their delivery status, test, retry, and create a secret."""

from __future__ import annotations

import asyncio
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from policy_service.channels.admin.output import AsJson, print_result, report_errors
from policy_service.channels.admin.socket import run_admin_command
from policy_service.errors import NotFoundError, StartError
from policy_service.remote_hosts import Webhook
from policy_service.settings import Settings, load_settings
from policy_service.storage.types import time_text
from policy_service.tokens.keys import make_webhook_key, read_webhook_keys
from policy_service.workflow.webhooks import DeliveryResult, deliver

webhooks_app = typer.Typer(no_args_is_help=True, help="List webhook receivers and their delivery status.")

Name = Annotated[str, typer.Argument(help="The webhook's name in the settings.")]
_TEST = "webhook_test"


@webhooks_app.command("list")
def webhooks_list(as_json: AsJson = False) -> None:
    """List every webhook: waiting and abandoned events, and the last error."""
    with report_errors():
        found = run_admin_command(load_settings(), "webhooks-list", {})
        print_result(
            found, as_json, "\n".join(map(_status_line, found)) or "the settings have no [[webhooks]]"
        )


def _status_line(one: dict[str, Any]) -> str:
    if one["standing"] is None:
        return f"{one['name']}  {one['host']}  not used yet"
    status = one["standing"]
    parts = [f"{one['name']}  {one['host']}  waiting {status['waiting']}  abandoned {status['given_up']}"]
    if status["disabled_at"]:
        parts.append(f"DISABLED since {status['disabled_at']}, {status['behind']} audit rows behind")
    if status["failures"]:
        parts.append(f"{status['failures']} failures in a row, the last: {status['last_error']}")
    return "  ".join(parts)


@webhooks_app.command("test")
def webhooks_test(name: Name, as_json: AsJson = False) -> None:
    """Send one event of the kind webhook_test from here and print the result. Nothing is recorded."""
    with report_errors():
        settings = load_settings()
        webhook = _find_webhook(settings, name)
        answer = asyncio.run(_test(settings, webhook))
        result = {"webhook": name, "status": answer.status, "error": answer.error}
        print_result(result, as_json, f"{name} accepted it: {answer.status}" if answer.error is None else "")
        if answer.error is not None:
            raise StartError(f"{name} did not accept it: {answer.error}")


def _find_webhook(settings: Settings, name: str) -> Webhook:
    known = {webhook.name: webhook for webhook in settings.webhooks}
    if name not in known:
        names = ", ".join(sorted(known)) or "none"
        raise NotFoundError(f"there is no webhook {name!r}; the settings have {names}")
    return known[name]


async def _test(settings: Settings, webhook: Webhook) -> DeliveryResult:
    keys = read_webhook_keys(webhook.name, webhook.secret_files)
    now = datetime.now(UTC)
    event = {
        "type": _TEST,
        "timestamp": time_text(now),
        "data": {"iss": settings.public_url, "webhook": webhook.name},
    }
    return await deliver(webhook, keys, f"test_{secrets.token_hex(16)}", event, now)


@webhooks_app.command("retry")
def webhooks_retry(name: Name, as_json: AsJson = False) -> None:
    """Retry abandoned events, and enable a receiver that was disabled because it returned 410 Gone."""
    with report_errors():
        done = run_admin_command(load_settings(), "webhooks-retry", {"webhook": name})
        print_result(done, as_json, f"{name} is enabled; {done['messages']} abandoned events are retried")


@webhooks_app.command("secret")
def webhooks_secret(
    file: Annotated[Path, typer.Argument(help="The new file, readable only by this user.")],
    ed25519: Annotated[
        bool, typer.Option("--ed25519", help="Create a key pair: receivers verify with the public key.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a secret for signing webhooks. It is not printed; give the receiver the file's content."""
    with report_errors():
        try:
            key = make_webhook_key(file, own=ed25519)
        except FileExistsError:
            raise StartError(f"{file} exists; a secret is never overwritten, name another file") from None
        except OSError as error:
            raise StartError(f"the secret cannot be written to {file}: {error.strerror}") from error
        text = f"give the receiver the content of {file}" if key.public is None else key.public
        print_result({"file": str(file), "public": key.public}, as_json, text)
