"""Operator commands on the database, one unit of work each with its audit row.

They run in the service when they arrive through its socket, otherwise in the command line's own process.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from countersign.contract import PublicKey
from policy_service.errors import InvalidRequestError, NotFoundError
from policy_service.identity import agents, dev_signin, people
from policy_service.queries.stops import list_stops
from policy_service.settings import Settings
from policy_service.slack import EVENTS_PATH, SlackApp
from policy_service.storage.archive_tables import archived_count
from policy_service.storage.core import find
from policy_service.storage.database import Tx
from policy_service.storage.system_tables import PasskeyRow
from policy_service.storage.types import time_text
from policy_service.workflow import active_commit, authorization, webhooks
from policy_service.workflow.revocation import revoke
from policy_service.workflow.shadow import recorded_calls
from policy_service.workflow.slack import account_links, admin
from policy_service.workflow.slack.admin import slack_health

Arguments = dict[str, Any]
Command = Callable[[Tx, Settings, Arguments], Any]


def _time_text(at: datetime | None) -> str | None:
    return None if at is None else time_text(at)


def _revoke_approver(tx: Tx, settings: Settings, args: Arguments) -> Any:
    iss, _, sub = args["person"].partition("|")  # a subject may hold one too (Auth0), an issuer may not
    if not iss or not sub:
        raise InvalidRequestError(f"{args['person']!r} is not a person; write ISSUER|SUBJECT")
    known = people.is_known(tx.conn, iss, sub)
    votes = revoke.revoke_approver(tx, iss, sub, args["reason"])
    return {"person": args["person"], "votes": votes, "known": known}


def _reinstate_approver(tx: Tx, settings: Settings, args: Arguments) -> Any:
    iss, _, sub = args["person"].partition("|")  # a subject may hold one too (Auth0), an issuer may not
    revoke.reinstate_approver(tx, iss, sub, args.get("reason"))
    return {"person": args["person"]}


def _list_people(tx: Tx, settings: Settings, args: Arguments) -> Any:
    return [
        {
            "person": f"{row.iss}|{row.sub}",
            "name": row.name,
            "groups": row.groups,
            "last_seen_at": time_text(row.last_seen_at),
            "revoked": row.revoked_at is not None,
        }
        for row in people.list_people(tx.conn)
    ]


def _list_passkeys(tx: Tx, settings: Settings, args: Arguments) -> Any:
    return [
        {
            "passkey_id": row.passkey_id,
            "person": f"{row.iss}|{row.sub}",
            "name": row.name,
            "key": row.key_digest,
            "created_at": time_text(row.created_at),
            "counts_from": time_text(row.counts_from),
            "last_used_at": _time_text(row.last_used_at),
            "removed_at": _time_text(row.removed_at),
        }
        for row in sorted(find(tx.conn, PasskeyRow), key=lambda row: row.passkey_id)
    ]


def _revoke_passkey(tx: Tx, settings: Settings, args: Arguments) -> Any:
    done = revoke.revoke_passkey(tx, args["passkey_id"], args["reason"])
    return {"passkey_id": args["passkey_id"], "votes": done.votes, "vouched_for": list(done.passkeys[1:])}


def _reset_passkeys(tx: Tx, settings: Settings, args: Arguments) -> Any:
    iss, _, sub = args["person"].partition("|")
    return {"person": args["person"], "removed": revoke.reset_passkeys(tx, iss, sub, args["reason"])}


def _list_slack_links(tx: Tx, settings: Settings, args: Arguments) -> Any:
    return [
        {
            "team": link.team_id,
            "user": link.user_id,
            "account": link.account,
            "person": link.person,
            "assurance": link.assurance,
            "direct": link.direct,
            "linked_at": time_text(link.linked_at),
        }
        for link in people.list_slack_links(tx.conn)
    ]


def _slack_status(tx: Tx, settings: Settings, args: Arguments) -> Any:
    if settings.slack is None:
        return {"configured": False, "met": False}
    http = settings.slack.signing_secret_file is not None
    ways = {
        "http": f"{settings.public_url}{EVENTS_PATH}" if http else None,
        "socket_mode": settings.slack.app_token_file is not None,
    }
    found = slack_health(tx.conn, settings.slack, tx.now)
    if found is None:
        return {"configured": True, "met": False, "deliveries": ways}
    resting = [
        {"place": row.place, "error": row.last_error, "since": time_text(row.since or tx.now)}
        for row in found.resting
    ]
    return {
        "configured": True,
        "met": True,
        "deliveries": ways,
        "team": settings.slack.team_id,
        "waiting": found.waiting,
        "set_aside": found.dead,
        "failures": found.failures,
        "last_error": found.last_error,
        "since": _time_text(found.since),
        "resting": resting,
    }


def _retry_slack(tx: Tx, settings: Settings, args: Arguments) -> Any:
    return {"messages": admin.retry(tx, _slack(settings))}


def _drop_slack(tx: Tx, settings: Settings, args: Arguments) -> Any:
    done = admin.drop_place(tx, _slack(settings), args["place"], args["reason"])
    return {"place": args["place"], "messages": done.messages, "cards": done.cards}


def _slack(settings: Settings) -> SlackApp:
    if settings.slack is None:
        raise NotFoundError("the settings have no [slack]; see deploy/slack/README.md")
    return settings.slack


def _unlink_slack(tx: Tx, settings: Settings, args: Arguments) -> Any:
    was = account_links.unlink_in(
        tx, args["team"], args["user"], actor=agents.OPERATOR, reason=args["reason"]
    )
    if was is None:
        raise NotFoundError(
            f"the account {args['user']!r} of {args['team']!r} is not linked; `policy-service slack links` lists them"
        )
    return {"team": args["team"], "user": args["user"], "person": was}


def _enroll(tx: Tx, settings: Settings, args: Arguments) -> Any:
    agents.enroll(
        tx, args["name"], owner=args.get("owner"), roles=args.get("roles", ()), teams=args.get("teams", ())
    )
    if args.get("jwk") is not None:
        agents.add_key(tx, args["name"], PublicKey.from_jwk(args["jwk"]))
    return {"agent": args["name"]}


def _add_key(tx: Tx, settings: Settings, args: Arguments) -> Any:
    key = PublicKey.from_jwk(args["jwk"])
    agents.add_key(tx, args["name"], key)
    return {"agent": args["name"], "kid": key.kid}


def _revoke_key(tx: Tx, settings: Settings, args: Arguments) -> Any:
    return {"kid": args["kid"], "ended": agents.revoke_key(tx, args["kid"], args.get("reason"))}


def _list_agents(tx: Tx, settings: Settings, args: Arguments) -> Any:
    return [
        {
            "agent": row.name,
            "owner": row.owner,
            "roles": row.roles,
            "teams": row.teams,
            "enrolled_at": time_text(row.enrolled_at),
            "frozen": row.frozen_at is not None,
            "keys": [
                {
                    "kid": key.kid,
                    "revoked": key.revoked_at is not None,
                    "revoked_at": _time_text(key.revoked_at),
                    "issuer": key.issuer,
                    "until": _time_text(key.expires_at),
                    "over": key.expires_at is not None and tx.now >= key.expires_at,
                }
                for key in agents.list_keys(tx.conn, row.name)
            ],
        }
        for row in agents.list_agents(tx.conn)
    ]


def _api_key(tx: Tx, settings: Settings, args: Arguments) -> Any:
    if not settings.api_keys:
        raise NotFoundError(
            "API keys are disabled; start the service with COUNTERSIGN_API_KEYS=true on loopback"
        )
    return {"api_key": agents.make_api_key(tx, args["name"])}


def _revoke_api_keys(tx: Tx, settings: Settings, args: Arguments) -> Any:
    # Allowed while API keys are disabled: enabling them later must not revive a revoked key.
    return {"agent": args["name"], "revoked": agents.revoke_api_keys(tx, args["name"])}


def _freeze(tx: Tx, settings: Settings, args: Arguments) -> Any:
    agents.freeze(tx, args["agent"], args.get("reason"))
    return {"agent": args["agent"], "frozen": True}


def _unfreeze(tx: Tx, settings: Settings, args: Arguments) -> Any:
    agents.unfreeze(tx, args["agent"], args.get("reason"))
    return {"agent": args["agent"], "frozen": False}


def _freeze_tools(tx: Tx, settings: Settings, args: Arguments) -> Any:
    return {"tool": args["tool"], "began": authorization.freeze_tool(tx, args["tool"], args["reason"])}


def _list_stops(tx: Tx, settings: Settings, args: Arguments) -> Any:
    held = [
        {
            "what": "everything" if stop.tool is None else "tool",
            "name": stop.tool,
            "since": time_text(stop.since),
            "reason": stop.reason,
            "by": stop.by,
        }
        for stop in list_stops(tx.conn)
    ]
    frozen = [(row, row.frozen_at) for row in agents.frozen_agents(tx.conn) if row.frozen_at is not None]
    return held + [
        {
            "what": "agent",
            "name": row.name,
            "since": time_text(since),
            "reason": row.frozen_reason,
            "by": row.frozen_by,
        }
        for row, since in frozen
    ]


def _unfreeze_tools(tx: Tx, settings: Settings, args: Arguments) -> Any:
    return {"tool": args["tool"], "ended": authorization.unfreeze_tool(tx, args["tool"], args.get("reason"))}


def _revoke_effect(tx: Tx, settings: Settings, args: Arguments) -> Any:
    return {"txn": revoke.revoke_effect(tx, args["effect_id"], args["reason"])}


def _revoke_transaction(tx: Tx, settings: Settings, args: Arguments) -> Any:
    revoke.revoke_transaction(tx, args["txn"], args["reason"])
    return {"txn": args["txn"]}


def _revoke_if_open(tx: Tx, settings: Settings, args: Arguments) -> Any:
    return {"txn": args["txn"], "ended": revoke.revoke_if_open(tx, args["txn"], args["reason"])}


def _revoke_effect_if_open(tx: Tx, settings: Settings, args: Arguments) -> Any:
    ended = revoke.revoke_effect_if_open(tx, args["effect_id"], args["reason"])
    return {"effect_id": args["effect_id"], "ended": ended}


def _revoke_agent(tx: Tx, settings: Settings, args: Arguments) -> Any:
    return {"agent": args["agent"], "open": revoke.revoke_agent(tx, args["agent"], args["reason"])}


def _revoke_commit(tx: Tx, settings: Settings, args: Arguments) -> Any:
    found = revoke.revoke_commit(tx, args["commit"], args["reason"])
    return {"commit": args["commit"], "open": found, "archived": archived_count(tx.conn)}


def _accept_policies(tx: Tx, settings: Settings, args: Arguments) -> Any:
    active_commit.allow_commit(tx, args["commit"], args["reason"])
    return {"commit": args["commit"]}


def _sign_in_link(tx: Tx, settings: Settings, args: Arguments) -> Any:
    return {"url": dev_signin.create_link(tx, settings, args["sub"], args["name"])}


def _list_webhooks(tx: Tx, settings: Settings, args: Arguments) -> Any:
    return [
        {
            "name": webhook.name,
            "host": urlsplit(webhook.url).netloc,  # its path may be a secret
            "kinds": list(webhook.kinds),
            "standing": _webhook_status(webhooks.receiver_status(tx.conn, webhook.name)),
        }
        for webhook in settings.webhooks
    ]


def _webhook_status(found: webhooks.ReceiverStatus | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "waiting": found.waiting,
        "oldest": _time_text(found.oldest),
        "given_up": found.dead,
        "behind": found.behind,
        "failures": found.failures,
        "last_error": found.last_error,
        "not_before": _time_text(found.not_before),
        "disabled_at": _time_text(found.disabled_at),
    }


def _retry_webhook(tx: Tx, settings: Settings, args: Arguments) -> Any:
    return {"webhook": args["webhook"], "messages": webhooks.retry_deliveries(tx, settings, args["webhook"])}


def _recorded_calls(tx: Tx, settings: Settings, args: Arguments) -> Any:
    since = tx.now - timedelta(days=args["days"])
    secrets = bool(args["with_secrets"])
    return recorded_calls.recorded_calls(tx.conn, since, settings.environment, with_secrets=secrets)


def _recorded_call(tx: Tx, settings: Settings, args: Arguments) -> Any:
    found = recorded_calls.recorded_call(tx.conn, args["effect_id"], settings.environment)
    if found is None:
        raise NotFoundError(f"there is no submitted effect {args['effect_id']!r}")
    return found


COMMANDS: dict[str, Command] = {
    "agent-enroll": _enroll,
    "agent-key-add": _add_key,
    "agent-key-revoke": _revoke_key,
    "agent-list": _list_agents,
    "api-key": _api_key,
    "api-key-revoke": _revoke_api_keys,
    "freeze": _freeze,
    "go-on": _unfreeze_tools,
    "passkey-list": _list_passkeys,
    "passkey-revoke": _revoke_passkey,
    "passkeys-reset": _reset_passkeys,
    "people-list": _list_people,
    "policies-accept": _accept_policies,
    "recorded-call": _recorded_call,
    "recorded-calls": _recorded_calls,
    "reinstate-approver": _reinstate_approver,
    "revoke-agent": _revoke_agent,
    "revoke-approver": _revoke_approver,
    "revoke-commit": _revoke_commit,
    "revoke-effect": _revoke_effect,
    "revoke-effect-if-open": _revoke_effect_if_open,
    "revoke-transaction": _revoke_transaction,
    "revoke-transaction-if-open": _revoke_if_open,
    "sign-in-link": _sign_in_link,
    "slack-drop": _drop_slack,
    "slack-links": _list_slack_links,
    "slack-retry": _retry_slack,
    "slack-status": _slack_status,
    "slack-unlink": _unlink_slack,
    "stop": _freeze_tools,
    "stop-list": _list_stops,
    "unfreeze": _unfreeze,
    "webhooks-list": _list_webhooks,
    "webhooks-retry": _retry_webhook,
}

READ_ONLY = frozenset(
    {
        "agent-list",
        "passkey-list",
        "people-list",
        "recorded-call",
        "recorded-calls",
        "slack-links",
        "slack-status",
        "stop-list",
        "webhooks-list",
    }
)
"""Commands that also run on a database that lost something, over a connection that cannot write."""
