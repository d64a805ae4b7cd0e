"""Operator verbs about people: who there is, who decides no more, their passkeys, their Slack accounts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from policy_service.errors import InvalidRequestError, NotFoundError
from policy_service.identity import agents, people
from policy_service.settings import Settings
from policy_service.slack import EVENTS_PATH, SlackApp
from policy_service.storage.core import find
from policy_service.storage.database import Tx
from policy_service.storage.plumbing import PasskeyRow
from policy_service.storage.types import time_text
from policy_service.workflow.oversight import revoke
from policy_service.workflow.passkeys import lost as lost_passkeys
from policy_service.workflow.slack import admin, linking
from policy_service.workflow.slack.admin import standing_of

Arguments = dict[str, Any]


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
            "last_used_at": None if row.last_used_at is None else time_text(row.last_used_at),
            "removed_at": None if row.removed_at is None else time_text(row.removed_at),
        }
        for row in sorted(find(tx.conn, PasskeyRow), key=lambda row: row.passkey_id)
    ]


def _revoke_passkey(tx: Tx, settings: Settings, args: Arguments) -> Any:
    done = lost_passkeys.revoke_passkey(tx, args["passkey_id"], args["reason"])
    return {"passkey_id": args["passkey_id"], "votes": done.votes, "vouched_for": list(done.passkeys[1:])}


def _reset_passkeys(tx: Tx, settings: Settings, args: Arguments) -> Any:
    iss, _, sub = args["person"].partition("|")
    return {"person": args["person"], "removed": lost_passkeys.reset_passkeys(tx, iss, sub, args["reason"])}


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
        for link in people.every_slack_link(tx.conn)
    ]


def _slack_status(tx: Tx, settings: Settings, args: Arguments) -> Any:
    if settings.slack is None:
        return {"configured": False, "met": False}
    http = settings.slack.signing_secret_file is not None
    ways = {
        "http": f"{settings.public_url}{EVENTS_PATH}" if http else None,
        "socket_mode": settings.slack.app_token_file is not None,
    }
    found = standing_of(tx.conn, settings.slack, tx.now)
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
        "since": None if found.since is None else time_text(found.since),
        "resting": resting,
    }


def _retry_slack(tx: Tx, settings: Settings, args: Arguments) -> Any:
    return {"messages": admin.try_again(tx, _slack(settings))}


def _drop_slack(tx: Tx, settings: Settings, args: Arguments) -> Any:
    done = admin.drop(tx, _slack(settings), args["place"], args["reason"])
    return {"place": args["place"], "messages": done.messages, "cards": done.cards}


def _slack(settings: Settings) -> SlackApp:
    if settings.slack is None:
        raise NotFoundError("the settings have no [slack]; see deploy/slack/README.md")
    return settings.slack


def _unlink_slack(tx: Tx, settings: Settings, args: Arguments) -> Any:
    was = linking.unlink_in(tx, args["team"], args["user"], actor=agents.OPERATOR, reason=args["reason"])
    if was is None:
        raise NotFoundError(
            f"the account {args['user']!r} of {args['team']!r} is nobody's; `policy-service slack links` lists them"
        )
    return {"team": args["team"], "user": args["user"], "person": was}


OF_PEOPLE: dict[str, Callable[[Tx, Settings, Arguments], Any]] = {
    "passkey-list": _list_passkeys,
    "passkey-revoke": _revoke_passkey,
    "passkeys-reset": _reset_passkeys,
    "people-list": _list_people,
    "reinstate-approver": _reinstate_approver,
    "revoke-approver": _revoke_approver,
    "slack-drop": _drop_slack,
    "slack-links": _list_slack_links,
    "slack-retry": _retry_slack,
    "slack-status": _slack_status,
    "slack-unlink": _unlink_slack,
}
