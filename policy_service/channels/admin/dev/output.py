"""Terminal of a dev session: lines that begin with `dev`, between the script's own, and the keyboard.

Run keys and tool names come from agents, so their control characters are escaped.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import typer

from countersign.contract import TaskKind, manifest_file
from policy_service.channels.admin.dev.folder import DevFolder
from policy_service.channels.admin.output import escape_unprintable
from policy_service.channels.presentation.formatting import question_text

KEYS_HELP = "keys, each with Enter: l another sign-in link, r run again, q end (as Ctrl-C)"

_TASK_NOTES: Final = {
    TaskKind.COMPENSATION_DUE: (
        "    (its agent's next run compensates it and closes this task; settle it only if no run can)",
    ),
}
"""What else settles a task, by kind."""

_BAR: Final = "!" * 100
_OPTIONS = frozenset({"--policies", "--port", "--role"})


def print_lines(*lines: str) -> None:
    """Print lines immediately, because the script writes to the same terminal."""
    for line in lines:
        typer.echo(f"dev | {escape_unprintable(line)}")


def print_welcome(folder: DevFolder, url: str, wanted_port: int, variables: Mapping[str, str]) -> None:
    """Print the paths, the variables and the keys."""
    script, state = folder.script.name, folder.shown(folder.state)
    if not url.endswith(f":{wanted_port}"):
        print_lines(f"port {wanted_port} is in use, so another one was chosen; set one with --port")
    print_lines(
        f"{script} runs as agent {folder.agent!r}, the service listens on {url}",
        f"{state}/ holds keys, database, journal and the service's log; delete it to start over",
        "the SDK's variables, for another terminal (or run there: . " + folder.shown(folder.env) + ")",
    )
    print_lines(*(f"    {name}={value}" for name, value in variables.items()))
    print_lines(f"the script has no keyboard input here. {KEYS_HELP}")
    if not folder.has_admin_socket:
        print_lines(
            "this folder's path is too long for `policy-service signin` and other commands to reach this service"
        )


def warn_unused_options(
    folder: DevFolder, arguments: Sequence[str], wanted: Sequence[str], kept: Sequence[str]
) -> None:
    """Warn of options without effect: those after the script belong to it, and an enrolled agent keeps its roles."""
    if any(word.partition("=")[0] in _OPTIONS for word in arguments):
        given = shlex.join(arguments)
        print_lines(f"passed to {folder.script.name}: {given}; options of dev go before the script")
    if wanted and set(wanted) != set(kept):
        asked = " ".join(f"--role {role}" for role in wanted)
        had = " and ".join(kept) or "no role"
        print_lines(
            f"{asked} has no effect: {folder.agent!r} was enrolled with {had} and keeps it; delete "
            f"{folder.shown(folder.state)}/ to enrol it again"
        )


def print_review(tool: str, groups: Sequence[str], url: str, *, unseen: bool) -> None:
    """Print a new review. ``unseen``: policies cannot evaluate all arguments."""
    print_lines(f"{tool} waits for {' and '.join(groups)}; decide here: {url}")
    if unseen:
        print_lines(
            '    (unseen: policies cannot evaluate lists of objects, free-form maps and nulls; a permit with @unseen("'
            'ARGUMENT") lets them pass)'
        )
    print_lines("    (signed out? press l and Enter)")


def print_task(tool: str, kind: TaskKind, url: str, *, of_compensation: bool) -> None:
    """Print a task that needs a human answer."""
    asked = question_text(kind, of_compensation=of_compensation)
    line = f"{tool}: {asked[0].lower()}{asked[1:]}"
    print_lines(
        f"{line}{'' if line.endswith('?') else ';'} settle it here: {url}",
        *_TASK_NOTES.get(kind, ()),
        "    (signed out? press l and Enter)",
    )


def warn_unknown_tool(tool: str, bundle: str) -> None:
    """Warn of a tool without a manifest: its call has not been reviewed."""
    print_lines(
        _BAR,
        f"UNKNOWN TOOL {tool!r}: {bundle}/tools/ has no manifest for it, so no policy evaluated this call.",
        "It is reviewed only because this is dev. Everywhere else it is denied. Draft its manifest with",
        "`countersign tools export --tools MODULE` (for an MCP server: --mcp FILE, with its response to tools/list), "
        f"review it, and save it as {bundle}/tools/{manifest_file(tool)}",
        "Then deny this review and run the program again, with another run key if it sets one.",
        _BAR,
    )


def warn_manifest_not_in_force(tool: str, bundle: str, problem: str) -> None:
    """Warn of a tool whose manifest is not active, because some file of the bundle is invalid."""
    print_lines(
        _BAR,
        f"{tool!r} has a manifest that is not active: {bundle}/ was refused as a whole, so no policy evaluated "
        "this call.",
        f"Fix that first: {bundle}/{problem}",
        "Then deny this review and run the program again, with another run key if it sets one.",
        _BAR,
    )


def print_manifest_added(tool: str) -> None:
    """Warn of a review that was opened before the tool had a manifest and does not show what the manifest says."""
    print_lines(
        f"the review of {tool} was opened before it had a manifest; deny it and run the program again, with another "
        "run key if it sets one"
    )


def exit_text(script: str, status: int) -> str:
    """The line that reports the end of a run."""
    how = "" if status == 0 else f" with exit status {status}"
    return f"{script} ended{how}; it runs again at the next save, or press r and Enter"


def read_keyboard(heard: Callable[[str], None]) -> None:
    """Pass each typed line to ``heard`` from a daemon thread, until the input ends."""
    loop = asyncio.get_running_loop()

    def listen() -> None:
        rest = b""
        try:
            while chunk := os.read(0, 4096):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    loop.call_soon_threadsafe(heard, line.decode(errors="replace").strip())
        except (OSError, RuntimeError):  # no terminal to read from, or the loop has ended
            return

    threading.Thread(target=listen, daemon=True, name="keys").start()
