"""``policy-service freeze``, ``unfreeze``, ``revoke``, ``reinstate`` and ``policies accept``. Each records a reason.

A freeze is temporary; a revocation is permanent. A command that ends several transactions ends them one by one and can
be repeated: it skips those that have ended. Every output names the database, because the operator may be in the wrong
folder.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from policy_service.channels.admin.output import AsJson, print_result, report_errors
from policy_service.channels.admin.policy_cli.bundles import configured_bundle_files
from policy_service.channels.admin.socket import describe_database, run_admin_command
from policy_service.errors import StartError
from policy_service.pap.bundle import build_bundle
from policy_service.pap.problems import BundleError
from policy_service.settings import load_settings

freeze_app = typer.Typer(
    no_args_is_help=True, help="Stop an agent, a tool or everything at once. Can be undone."
)
unfreeze_app = typer.Typer(no_args_is_help=True, help="End a freeze.")
revoke_app = typer.Typer(no_args_is_help=True, help="Revoke a permission permanently.")
reinstate_app = typer.Typer(no_args_is_help=True, help="Undo the revocation of a person.")

Reason = Annotated[str, typer.Option(help="The reason; it is recorded in the audit log.", prompt=True)]
OptionalReason = Annotated[
    str | None, typer.Option("--reason", help="The reason; it is recorded in the audit log.")
]
AgentName = Annotated[str, typer.Argument(help="The agent.")]
KeyId = Annotated[str, typer.Argument(help="The key's id, as `policy-service agent list` shows it.")]
ToolName = Annotated[str, typer.Argument(help="The tool, as policies name it.")]
PersonKey = Annotated[
    str, typer.Argument(help="The person: ISSUER|SUBJECT, as `policy-service people` shows it.")
]


@freeze_app.command("agent")
def freeze_agent(name: AgentName, reason: Reason, as_json: AsJson = False) -> None:
    """Freeze an agent. Its earlier effects can still be compensated."""
    with report_errors():
        done = _run_command("freeze", {"agent": name, "reason": reason})
        _print_done(
            done, as_json, f"{name} is frozen: it stages, redeems and renews nothing until it is unfrozen"
        )


@freeze_app.command("tool")
def freeze_tool(name: ToolName, reason: Reason, as_json: AsJson = False) -> None:
    """Freeze a tool for every agent, also as a compensation."""
    _freeze(name, reason, as_json)


@freeze_app.command("everything")
def freeze_everything(reason: Reason, as_json: AsJson = False) -> None:
    """Freeze every tool of every agent, including compensations."""
    _freeze(None, reason, as_json)


def _freeze(tool: str | None, reason: str, as_json: bool) -> None:
    with report_errors():
        done = _run_command("stop", {"tool": tool, "reason": reason})
        if tool is not None:
            _warn_of_unknown(tool, done.pop("tools", None) or _tools_here())
        _print_done(done, as_json, f"{tool or 'everything'} is frozen: no effect fires until it is unfrozen")


@freeze_app.command("list")
def freeze_list(as_json: AsJson = False) -> None:
    """List what is frozen, since when and why."""
    with report_errors():
        settings = load_settings()
        found = run_admin_command(settings, "stop-list", {})
        lines = [
            " ".join([one["what"], *([one["name"]] if one["name"] else [])])
            + f"  since {one['since']} by {one['by']}{'  ' + one['reason'] if one['reason'] else ''}"
            for one in found
        ]
        print_result(found, as_json, "\n".join([*lines, *([] if lines else ["nothing is frozen"])]))


def _warn_of_unknown(tool: str, tools: list[str]) -> None:
    if tools and tool not in tools:
        typer.echo(
            f"WARNING: the bundle has no tool {tool!r}, so this may stop nothing; it has {', '.join(tools)}",
            err=True,
        )


def _tools_here() -> list[str]:
    """The tools of the configured bundle, for when no running service reports the active one."""
    try:
        return sorted(build_bundle(configured_bundle_files(load_settings())).manifests)
    except BundleError:
        return []


@unfreeze_app.command("agent")
def unfreeze_agent(name: AgentName, reason: OptionalReason = None, as_json: AsJson = False) -> None:
    """Unfreeze an agent. Releases that expired meanwhile stay expired."""
    with report_errors():
        done = _run_command("unfreeze", {"agent": name, "reason": reason})
        _print_done(done, as_json, f"{name} may act again")


@unfreeze_app.command("tool")
def unfreeze_tool(name: ToolName, reason: OptionalReason = None, as_json: AsJson = False) -> None:
    """Unfreeze a tool."""
    _unfreeze(name, reason, as_json)


@unfreeze_app.command("everything")
def unfreeze_everything(reason: OptionalReason = None, as_json: AsJson = False) -> None:
    """End the freeze of everything. Agents and tools that were frozen separately stay frozen."""
    _unfreeze(None, reason, as_json)


def _unfreeze(tool: str | None, reason: str | None, as_json: bool) -> None:
    with report_errors():
        done = _run_command("go-on", {"tool": tool, "reason": reason})
        what = tool or "everything"
        _print_done(done, as_json, f"{what} is unfrozen" if done["ended"] else f"{what} was not frozen")


@revoke_app.command("effect")
def revoke_effect(
    effect_id: Annotated[str, typer.Argument(help="The effect's id.")],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """Revoke one effect that is in review or released. Its transaction ends with it."""
    with report_errors():
        done = _run_command("revoke-effect", {"effect_id": effect_id, "reason": reason})
        _print_done(done, as_json, f"revoked; its transaction {done['txn']} ended")


@revoke_app.command("transaction")
def revoke_transaction(
    txn: Annotated[str, typer.Argument(help="The transaction's id.")], reason: Reason, as_json: AsJson = False
) -> None:
    """Revoke a transaction that is in review or ready."""
    with report_errors():
        done = _run_command("revoke-transaction", {"txn": txn, "reason": reason})
        _print_done(done, as_json, f"revoked {txn}")


@revoke_app.command("agent")
def revoke_agent(name: AgentName, reason: Reason, as_json: AsJson = False) -> None:
    """Freeze an agent, revoke its keys and end all its transactions that are in review or ready."""
    with report_errors():
        done = _run_command("revoke-agent", {"agent": name, "reason": reason})
        ended = _revoke_each("transaction", "txn", done["open"], reason)
        _print_done(
            done | {"ended": ended}, as_json, f"revoked {name}: its keys, and {ended} open transactions"
        )


KEY_IDS = {"ignore_unknown_options": True}
"""One key id in 64 begins with a hyphen and must not be parsed as an option."""


@revoke_app.command("key", context_settings=KEY_IDS)
def revoke_key(kid: KeyId, reason: Reason, as_json: AsJson = False) -> None:
    """Revoke one key of an agent. Releases issued to it can no longer be redeemed."""
    with report_errors():
        done = _run_command("agent-key-revoke", {"kid": kid, "reason": reason})
        others = len(done["ended"]) - 1
        and_others = (
            f" and {others} more that were enrolled with the same issuer's tokens" if others > 0 else ""
        )
        _print_done(done, as_json, f"revoked {kid}{and_others}")


@revoke_app.command("approver")
def revoke_approver(person: PersonKey, reason: Reason, as_json: AsJson = False) -> None:
    """Revoke a person: their sessions end and their votes no longer count.

    A person who has never signed in is refused at sign-in.
    """
    with report_errors():
        done = _run_command("revoke-approver", {"person": person, "reason": reason})
        text = f"revoked {person}: {done['votes']} votes no longer count, every session ended"
        if not done["known"]:
            text = f"revoked {person}, who has never signed in and will be refused; check the spelling"
        _print_done(done, as_json, text)


@revoke_app.command("commit")
def revoke_commit(
    commit: Annotated[str, typer.Argument(help="The full commit id of the policies, as in decisions.")],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """Revoke all open transactions that a policy commit decided. Activate another commit first."""
    with report_errors():
        done = _run_command("revoke-commit", {"commit": commit, "reason": reason})
        ended = _revoke_each("effect", "effect_id", done["open"], reason)
        text = (
            f"revoked {ended} open transactions and compensations decided by {commit}; left out: {done['archived']} "
            "archived transactions, of which nothing is open"
        )
        _print_done(done | {"ended": ended}, as_json, text)


@reinstate_app.command("approver")
def reinstate_approver(person: PersonKey, reason: OptionalReason = None, as_json: AsJson = False) -> None:
    """Reinstate a revoked person. Their earlier votes still do not count."""
    with report_errors():
        done = _run_command("reinstate-approver", {"person": person, "reason": reason})
        _print_done(done, as_json, f"{person} may decide again")


def _run_command(command: str, args: dict[str, Any]) -> dict[str, Any]:
    """Run a command and add the database to its result."""
    settings = load_settings()
    return {**run_admin_command(settings, command, args), "database": describe_database(settings)}


def _revoke_each(kind: str, name: str, ids: list[str], reason: str) -> int:
    """Revoke them one by one and skip those that have already ended. Returns how many it ended."""
    settings, command = load_settings(), f"revoke-{kind}-if-open"
    return sum(run_admin_command(settings, command, {name: one, "reason": reason})["ended"] for one in ids)


def _print_done(done: dict[str, Any], as_json: bool, text: str) -> None:
    print_result(done, as_json, f"{text}\n(in the database {done['database']})")


policies_app = typer.Typer(no_args_is_help=True, help="The policies of this service.")


@policies_app.command("accept")
def accept_commit(
    commit: Annotated[str, typer.Argument(help="The full commit id, as in the refusal.")],
    reason: Annotated[str, typer.Option(help="The reason; it is recorded in the audit log.", prompt=True)],
    as_json: AsJson = False,
) -> None:
    """Accept a rewritten or rewound branch, once and for this commit only."""
    with report_errors():
        if not load_settings().policies_repository:
            raise StartError("policies_repository is not set: a folder has no history to compare")
        done = _run_command("policies-accept", {"commit": commit, "reason": reason})
        text = (
            f"{commit} becomes active at the next refresh, if the branch is still at it, it loads and has the required "
            "signature"
        )
        _print_done(done, as_json, text)
