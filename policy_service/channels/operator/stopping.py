"""Decisions of the operator with a reason: freeze, unfreeze, revoke, reinstate, and accept a commit of the policies.

A freeze takes nothing away and ends; a revocation is for good. What takes several transactions goes one by one and can
be repeated: what has ended meanwhile is passed over. Every answer names the database it was done in, because the
operator may be in the wrong folder.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from policy_service.channels.operator.author.naming import bundle_of
from policy_service.channels.operator.socket import place_of, run_verb
from policy_service.channels.operator.speaking import AsJson, say, sentences
from policy_service.errors import StartError
from policy_service.pap.bundle import prepare_bundle
from policy_service.pap.problems import BundleError
from policy_service.settings import load_settings

freeze_app = typer.Typer(no_args_is_help=True, help="Stop at once, without taking anything away.")
unfreeze_app = typer.Typer(no_args_is_help=True, help="End a freeze.")
revoke_app = typer.Typer(no_args_is_help=True, help="End for good what was allowed.")
reinstate_app = typer.Typer(no_args_is_help=True, help="Take a revocation of a person back.")

Reason = Annotated[str, typer.Option(help="Why, in your words; it stays in the log.", prompt=True)]
OptionalReason = Annotated[
    str | None, typer.Option("--reason", help="Why, in your words; it stays in the log.")
]
AgentName = Annotated[str, typer.Argument(help="The agent.")]
KeyId = Annotated[str, typer.Argument(help="The key's id, as `policy-service agent list` shows it.")]
ToolName = Annotated[str, typer.Argument(help="The tool, as policies name it.")]
PersonKey = Annotated[
    str, typer.Argument(help="The person: ISSUER|SUBJECT, as `policy-service people` shows it.")
]


@freeze_app.command("agent")
def freeze_agent(name: AgentName, reason: Reason, as_json: AsJson = False) -> None:
    """Stop an agent; what it has begun may still be taken back."""
    with sentences():
        done = _done("freeze", {"agent": name, "reason": reason})
        _say(done, as_json, f"{name} is frozen: it stages, redeems and renews nothing until it is unfrozen")


@freeze_app.command("tool")
def freeze_tool(name: ToolName, reason: Reason, as_json: AsJson = False) -> None:
    """Stop a tool for every agent, as a compensation too."""
    _stop(name, reason, as_json)


@freeze_app.command("everything")
def freeze_everything(reason: Reason, as_json: AsJson = False) -> None:
    """Stop every tool of every agent, compensations too."""
    _stop(None, reason, as_json)


def _stop(tool: str | None, reason: str, as_json: bool) -> None:
    with sentences():
        done = _done("stop", {"tool": tool, "reason": reason})
        if tool is not None:
            _warn_of_unknown(tool, done.pop("tools", None) or _tools_here())
        _say(done, as_json, f"{tool or 'everything'} is frozen: nothing of it fires until it is unfrozen")


@freeze_app.command("list")
def freeze_list(as_json: AsJson = False) -> None:
    """What is frozen now, since when and why."""
    with sentences():
        settings = load_settings()
        found = run_verb(settings, "stop-list", {})
        lines = [
            " ".join([one["what"], *([one["name"]] if one["name"] else [])])
            + f"  since {one['since']} by {one['by']}{'  ' + one['reason'] if one['reason'] else ''}"
            for one in found
        ]
        say(found, as_json, "\n".join([*lines, *([] if lines else ["nothing is frozen"])]))


def _warn_of_unknown(tool: str, tools: list[str]) -> None:
    if tools and tool not in tools:
        typer.echo(
            f"WARNING: the bundle holds no tool {tool!r}, so this may stop nothing; it holds {', '.join(tools)}",
            err=True,
        )


def _tools_here() -> list[str]:
    """The tools of the bundle as this shell's settings have it, where no running service says which is in force."""
    try:
        return sorted(prepare_bundle(bundle_of(load_settings())).manifests)
    except BundleError:
        return []


@unfreeze_app.command("agent")
def unfreeze_agent(name: AgentName, reason: OptionalReason = None, as_json: AsJson = False) -> None:
    """Let a frozen agent act again; what lapsed meanwhile stays lapsed."""
    with sentences():
        done = _done("unfreeze", {"agent": name, "reason": reason})
        _say(done, as_json, f"{name} may act again")


@unfreeze_app.command("tool")
def unfreeze_tool(name: ToolName, reason: OptionalReason = None, as_json: AsJson = False) -> None:
    """Let a frozen tool be used again."""
    _go_on(name, reason, as_json)


@unfreeze_app.command("everything")
def unfreeze_everything(reason: OptionalReason = None, as_json: AsJson = False) -> None:
    """Go on. Agents and tools that are frozen by themselves stay so."""
    _go_on(None, reason, as_json)


def _go_on(tool: str | None, reason: str | None, as_json: bool) -> None:
    with sentences():
        done = _done("go-on", {"tool": tool, "reason": reason})
        what = tool or "everything"
        _say(done, as_json, f"{what} may go on" if done["ended"] else f"{what} was not frozen")


@revoke_app.command("effect")
def revoke_effect(
    effect_id: Annotated[str, typer.Argument(help="The effect's id.")],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """End one effect that waits or is released; its transaction ends with it."""
    with sentences():
        done = _done("revoke-effect", {"effect_id": effect_id, "reason": reason})
        _say(done, as_json, f"revoked; its transaction {done['txn']} ended")


@revoke_app.command("transaction")
def revoke_transaction(
    txn: Annotated[str, typer.Argument(help="The transaction's id.")], reason: Reason, as_json: AsJson = False
) -> None:
    """End a transaction that waits or is ready."""
    with sentences():
        done = _done("revoke-transaction", {"txn": txn, "reason": reason})
        _say(done, as_json, f"revoked {txn}")


@revoke_app.command("agent")
def revoke_agent(name: AgentName, reason: Reason, as_json: AsJson = False) -> None:
    """Freeze an agent, end all its keys and everything of its that waits or is released."""
    with sentences():
        done = _done("revoke-agent", {"agent": name, "reason": reason})
        ended = _each("transaction", "txn", done["open"], reason)
        _say(done | {"ended": ended}, as_json, f"revoked {name}: its keys, and {ended} open transactions")


KEY_IDS = {"ignore_unknown_options": True}
"""One key id in 64 begins with a hyphen; it is no option."""


@revoke_app.command("key", context_settings=KEY_IDS)
def revoke_key(kid: KeyId, reason: Reason, as_json: AsJson = False) -> None:
    """End one key of an agent; what was released to it can no longer be redeemed with it."""
    with sentences():
        done = _done("agent-key-revoke", {"kid": kid, "reason": reason})
        others = len(done["ended"]) - 1
        and_others = f" and {others} more that the same issuer's tokens brought" if others > 0 else ""
        _say(done, as_json, f"revoked {kid}{and_others}")


@revoke_app.command("approver")
def revoke_approver(person: PersonKey, reason: Reason, as_json: AsJson = False) -> None:
    """Take a person out of every decision: their sessions end and none of their votes counts any more.

    Somebody who never signed in is refused when they come.
    """
    with sentences():
        done = _done("revoke-approver", {"person": person, "reason": reason})
        text = f"revoked {person}: {done['votes']} votes left the count, every session ended"
        if not done["known"]:
            text = f"revoked {person}, who never signed in and is refused when they come; is that how they are named?"
        _say(done, as_json, text)


@revoke_app.command("commit")
def revoke_commit(
    commit: Annotated[str, typer.Argument(help="The commit of the policies, in full, as decisions name it.")],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """End everything open that a commit of the policies decided last. Put another commit in force first."""
    with sentences():
        done = _done("revoke-commit", {"commit": commit, "reason": reason})
        ended = _each("effect", "effect_id", done["open"], reason)
        told = f"revoked {ended} open transactions and compensations decided by {commit}"
        _say(done | {"ended": ended}, as_json, told)


@reinstate_app.command("approver")
def reinstate_approver(person: PersonKey, reason: OptionalReason = None, as_json: AsJson = False) -> None:
    """Let a revoked person decide again; the votes that left the count stay out of it."""
    with sentences():
        done = _done("reinstate-approver", {"person": person, "reason": reason})
        _say(done, as_json, f"{person} may decide again")


def _done(verb: str, args: dict[str, Any]) -> dict[str, Any]:
    """Run a verb; what it did, and in which database."""
    settings = load_settings()
    return {**run_verb(settings, verb, args), "database": place_of(settings)}


def _each(kind: str, name: str, ids: list[str], reason: str) -> int:
    """Revoke them one by one, past those that have ended by themselves or with a sibling; how many it ended."""
    settings, verb = load_settings(), f"revoke-{kind}-if-open"
    return sum(run_verb(settings, verb, {name: one, "reason": reason})["ended"] for one in ids)


def _say(done: dict[str, Any], as_json: bool, text: str) -> None:
    say(done, as_json, f"{text}\n(in the database {done['database']})")


policies_app = typer.Typer(no_args_is_help=True, help="The policies this service follows.")


@policies_app.command("accept")
def accept(
    commit: Annotated[str, typer.Argument(help="The commit in full, as the refusal names it.")],
    reason: Annotated[str, typer.Option(help="Why, in your words; it stays in the log.", prompt=True)],
    as_json: AsJson = False,
) -> None:
    """Let a rewritten or rewound branch come into force, once and for this commit only."""
    with sentences():
        settings = load_settings()
        if not settings.policies_repository:
            raise StartError("policies_repository is not set: a folder has no history to keep to")
        done = {**run_verb(settings, "policies-accept", {"commit": commit, "reason": reason})}
        done["database"] = place_of(settings)
        text = (
            f"{commit} comes into force at the next look, if the branch is there by then, it loads and is signed as "
            f"asked for\n(in the database {done['database']})"
        )
        say(done, as_json, text)
