"""What the developer's terminal says: plain lines that begin with `dev`, between the script's own.

Keys and the names of tools are agents' words: whatever in them would move the cursor, erase or begin a line is written
out instead.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

import typer

from countersign.contract import TaskKind, manifest_file
from policy_service.channels.operator.dev.folder import DevFolder
from policy_service.channels.operator.speaking import visible
from policy_service.channels.presentation.formatting import question_text

KEYS = "keys, each with Enter: l another sign-in link, r run again, q end (as Ctrl-C)"

_OF_ITSELF: Final = {
    TaskKind.COMPENSATION_DUE: (
        "    (its agent's next run takes it back and closes this; settle it only if none can)",
    ),
}
"""What else would settle a task."""

_BAR: Final = "!" * 100
_OPTIONS = frozenset({"--policies", "--port", "--role"})


def say(*lines: str) -> None:
    """Print lines at once: the script writes to the same terminal."""
    for line in lines:
        typer.echo(f"dev | {visible(line)}")


def welcome(folder: DevFolder, url: str, wanted_port: int, variables: Mapping[str, str]) -> None:
    """Where everything is."""
    script, state = folder.script.name, folder.shown(folder.state)
    if not url.endswith(f":{wanted_port}"):
        say(f"port {wanted_port} is in use, so this is another one; --port names the one you want")
    say(
        f"{script} runs as agent {folder.agent!r}, the service listens on {url}",
        f"{state}/ holds keys, database, journal and the service's log; delete it to begin anew",
        "what the SDK reads, for another terminal (or there: . " + folder.shown(folder.env) + ")",
    )
    say(*(f"    {name}={value}" for name, value in variables.items()))
    say(f"the script reads no keyboard here. {KEYS}")
    if not folder.has_operators_door:
        say("this folder lies so deep that `policy-service signin` and its like cannot reach this service")


def tell_unused(
    folder: DevFolder, arguments: Sequence[str], wanted: Sequence[str], kept: Sequence[str]
) -> None:
    """Options that do nothing: those behind the script, which are its own, and roles of an agent that has others."""
    if any(word.partition("=")[0] in _OPTIONS for word in arguments):
        told = shlex.join(arguments)
        say(f"handed to {folder.script.name}: {told}; options of dev stand before the script")
    if wanted and set(wanted) != set(kept):
        asked = " ".join(f"--role {role}" for role in wanted)
        had = " and ".join(kept) or "no role"
        say(
            f"{asked} does nothing: {folder.agent!r} was enrolled with {had} and keeps that; delete "
            f"{folder.shown(folder.state)}/ to enrol it anew"
        )


def tell_review(tool: str, groups: Sequence[str], url: str) -> None:
    """People are asked."""
    say(f"{tool} waits for {' and '.join(groups)}; decide here: {url}", "    (signed out? press l and Enter)")


def tell_task(tool: str, kind: TaskKind, url: str, *, of_compensation: bool) -> None:
    """Something only a person can settle."""
    asked = question_text(kind, of_compensation=of_compensation)
    said = f"{tool}: {asked[0].lower()}{asked[1:]}"
    say(
        f"{said}{'' if said.endswith('?') else ';'} settle it here: {url}",
        *_OF_ITSELF.get(kind, ()),
        "    (signed out? press l and Enter)",
    )


def tell_unknown(tool: str, bundle: str) -> None:
    """Loudly: nobody has reviewed what is about to happen."""
    say(
        _BAR,
        f"UNKNOWN TOOL {tool!r}: {bundle}/tools/ has no manifest of it, so no policy has weighed this call.",
        "You are asked only because this is dev. Everywhere else it is denied. Draft its manifest with",
        "`countersign tools export --tools MODULE` (of an MCP server: --mcp FILE, with what it answers to tools/list), "
        f"review it, and put it at {bundle}/tools/{manifest_file(tool)}",
        "Then deny this question and run the program again, under another key where it names one: that is denied.",
        _BAR,
    )


def tell_kept_out(tool: str, bundle: str, problem: str) -> None:
    """As loudly, but its manifest is there: what keeps it out is a fault of another file, perhaps."""
    say(
        _BAR,
        f"{tool!r} has a manifest that is not in force: {bundle}/ was refused as a whole, so no policy has weighed "
        "this call.",
        f"Mend that first: {bundle}/{problem}",
        "Then deny this question and run the program again, under another key where it names one, to ask by it.",
        _BAR,
    )


def tell_known_by_now(tool: str) -> None:
    """Asked of people while nobody had reviewed the tool: what they were shown is not what its manifest says."""
    say(
        f"{tool} was asked before it had a manifest; deny that question and run the program again, "
        "under another key where it names one, to ask by it"
    )


def ended(script: str, status: int) -> str:
    """How a run ended."""
    how = "" if status == 0 else f" with exit status {status}"
    return f"{script} ended{how}; it runs again at the next save, or press r and Enter"
