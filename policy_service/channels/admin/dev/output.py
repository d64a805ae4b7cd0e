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
from policy_service.channels.admin.dev.folder import DevFolder
from policy_service.channels.admin.output import escape_unprintable
from policy_service.channels.presentation.formatting import question_text

KEYS_HELP = "keys, each with Enter: l another sign-in link, r run again, q end (as Ctrl-C)"

_TASK_NOTES: Final = {
    TaskKind.COMPENSATION_DUE: (
        "    (its agent's next run takes it back and closes this; settle it only if none can)",
    ),
}
"""What else would settle a task."""

_BAR: Final = "!" * 100
_OPTIONS = frozenset({"--policies", "--port", "--role"})


def print_lines(*lines: str) -> None:
    """Print lines at once: the script writes to the same terminal."""
    for line in lines:
        typer.echo(f"dev | {escape_unprintable(line)}")


def print_welcome(folder: DevFolder, url: str, wanted_port: int, variables: Mapping[str, str]) -> None:
    """Where everything is."""
    script, state = folder.script.name, folder.shown(folder.state)
    if not url.endswith(f":{wanted_port}"):
        print_lines(f"port {wanted_port} is in use, so this is another one; --port names the one you want")
    print_lines(
        f"{script} runs as agent {folder.agent!r}, the service listens on {url}",
        f"{state}/ holds keys, database, journal and the service's log; delete it to begin anew",
        "what the SDK reads, for another terminal (or there: . " + folder.shown(folder.env) + ")",
    )
    print_lines(*(f"    {name}={value}" for name, value in variables.items()))
    print_lines(f"the script reads no keyboard here. {KEYS_HELP}")
    if not folder.has_admin_socket:
        print_lines(
            "this folder lies so deep that `policy-service signin` and its like cannot reach this service"
        )


def warn_unused_options(
    folder: DevFolder, arguments: Sequence[str], wanted: Sequence[str], kept: Sequence[str]
) -> None:
    """Options that do nothing: those behind the script, which are its own, and roles of an agent that has others."""
    if any(word.partition("=")[0] in _OPTIONS for word in arguments):
        told = shlex.join(arguments)
        print_lines(f"handed to {folder.script.name}: {told}; options of dev stand before the script")
    if wanted and set(wanted) != set(kept):
        asked = " ".join(f"--role {role}" for role in wanted)
        had = " and ".join(kept) or "no role"
        print_lines(
            f"{asked} does nothing: {folder.agent!r} was enrolled with {had} and keeps that; delete "
            f"{folder.shown(folder.state)}/ to enrol it anew"
        )


def print_review(tool: str, groups: Sequence[str], url: str) -> None:
    """People are asked."""
    print_lines(
        f"{tool} waits for {' and '.join(groups)}; decide here: {url}", "    (signed out? press l and Enter)"
    )


def print_task(tool: str, kind: TaskKind, url: str, *, of_compensation: bool) -> None:
    """Something only a person can settle."""
    asked = question_text(kind, of_compensation=of_compensation)
    said = f"{tool}: {asked[0].lower()}{asked[1:]}"
    print_lines(
        f"{said}{'' if said.endswith('?') else ';'} settle it here: {url}",
        *_TASK_NOTES.get(kind, ()),
        "    (signed out? press l and Enter)",
    )


def warn_unknown_tool(tool: str, bundle: str) -> None:
    """Loudly: nobody has reviewed what is about to happen."""
    print_lines(
        _BAR,
        f"UNKNOWN TOOL {tool!r}: {bundle}/tools/ has no manifest of it, so no policy has weighed this call.",
        "You are asked only because this is dev. Everywhere else it is denied. Draft its manifest with",
        "`countersign tools export --tools MODULE` (of an MCP server: --mcp FILE, with what it answers to tools/list), "
        f"review it, and put it at {bundle}/tools/{manifest_file(tool)}",
        "Then deny this question and run the program again, under another key where it names one: that is denied.",
        _BAR,
    )


def warn_manifest_not_in_force(tool: str, bundle: str, problem: str) -> None:
    """As loudly, but its manifest is there: what keeps it out is a fault of another file, perhaps."""
    print_lines(
        _BAR,
        f"{tool!r} has a manifest that is not in force: {bundle}/ was refused as a whole, so no policy has weighed "
        "this call.",
        f"Mend that first: {bundle}/{problem}",
        "Then deny this question and run the program again, under another key where it names one, to ask by it.",
        _BAR,
    )


def print_manifest_added(tool: str) -> None:
    """Asked of people while nobody had reviewed the tool: what they were shown is not what its manifest says."""
    print_lines(
        f"{tool} was asked before it had a manifest; deny that question and run the program again, "
        "under another key where it names one, to ask by it"
    )


def exit_text(script: str, status: int) -> str:
    """How a run ended."""
    how = "" if status == 0 else f" with exit status {status}"
    return f"{script} ended{how}; it runs again at the next save, or press r and Enter"
