"""The files of a dev session: `.countersign/` with local state, `policies/` with manifests, and a watcher for saves.

Files are created only if missing. `.countersign/` is ignored by git and readable only by this user. A starter policy is
written only into a folder without policies. The SDK's own command imports the script, in a separate process. A manifest
that people have edited is never overwritten; an unedited draft is updated from the code. If one tool cannot be
described, no manifest is written. A save is reported once two polls agree, so that an editor that writes in two steps
is not read in between.
"""

from __future__ import annotations

import asyncio
import difflib
import getpass
import json
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from countersign.contract import ContractError, KeySet, load_manifest, manifest_file
from policy_service.channels.admin.dev import processes
from policy_service.errors import StartError
from policy_service.identity.dev_signin import DEV_ISSUER
from policy_service.settings_parsing import ENV_PREFIX
from policy_service.storage.sqlite import DatabaseInUseError

_STATE: Final = ".countersign"
_LONGEST_SOCKET: Final = 107  # bytes of a Unix socket's address on Linux

# The last name is always there, because some shells require at least one.
_UNSET_INHERITED: Final = (
    f"unset $(env | sed -n 's/^\\({ENV_PREFIX}[A-Za-z0-9_]*\\)=.*/\\1/p') {ENV_PREFIX}URL\n"
)

STARTER: Final = Path(__file__).with_name("starter")
"""Templates of a first policy and its groups."""


@dataclass(frozen=True, slots=True)
class DevFolder:
    """The paths of one script."""

    script: Path
    bundle: Path

    @property
    def agent(self) -> str:
        """The agent's name: the name of the script's file."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.script.stem).strip("-._")[:100] or "agent"

    @property
    def state(self) -> Path:
        """The local state: keys, database, journal. May be deleted to start over."""
        return self.script.parent / _STATE

    @property
    def key(self) -> Path:
        """The agent's private key."""
        return self.state / f"{self.agent}.pem"

    @property
    def public_key(self) -> Path:
        """The agent's public key, the only half that the service reads."""
        return self.key.with_suffix(".jwk")

    @property
    def journal(self) -> Path:
        """The agent's journal."""
        return self.state / f"{self.agent}-journal.db"

    @property
    def drafts(self) -> Path:
        """The last drafts of manifests from the code."""
        return self.state / "drafts"

    @property
    def log(self) -> Path:
        """The log of the service."""
        return self.state / "service.log"

    @property
    def env(self) -> Path:
        """A file of environment variables for another terminal."""
        return self.state / "env"

    @property
    def has_admin_socket(self) -> bool:
        """Whether the path of the operator's socket is short enough."""
        return len(bytes(self.state / "admin.sock")) <= _LONGEST_SOCKET

    def shown(self, path: Path) -> str:
        """A path relative to the script's folder, if it is inside."""
        home = self.script.parent
        return str(path.relative_to(home) if path.is_relative_to(home) else path)


@contextmanager
def exclusive_use(folder: DevFolder) -> Iterator[None]:
    """Report a database that another process holds.

    Raises:
        StartError: another process holds it, for example another dev session in this folder.
    """
    try:
        yield
    except DatabaseInUseError as error:
        raise StartError(
            f"this folder is in use by {error.holder}; end that process first (dev: press q and Enter), or put "
            f"{folder.script.name} into another folder"
        ) from None


def current_user() -> str:
    """The current user, as the development sign-in names them."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return "developer"
    return name if name.isprintable() and name.strip() == name and 0 < len(name) <= 100 else "developer"


def prepare_folder(script: Path, bundle: Path | None) -> DevFolder:
    """Create missing files next to the script.

    Raises:
        StartError: the script does not exist, or the folder is not writable.
    """
    if script.suffix != ".py" or not script.is_file():
        raise StartError(
            f"{str(script)!r} is not a Python file; write `policy-service dev my_agent.py`, with options before it and "
            "the script's own arguments after it"
        )
    if script.stem in sys.stdlib_module_names | {"countersign", "policy_service"}:
        raise StartError(
            f"{script.name!r} would shadow the module {script.stem!r}; give the file another name, such as my_agent.py"
        )
    script = script.resolve()
    folder = DevFolder(script, (bundle or script.parent / "policies").absolute())
    try:
        _make_state(folder)
        _make_bundle(folder.bundle)
    except OSError as error:
        raise StartError(
            f"{error.filename!r} cannot be created: {error.strerror}; put the script into a writable folder"
        ) from error
    return folder


def _make_state(folder: DevFolder) -> None:
    folder.state.mkdir(mode=0o700, exist_ok=True)
    folder.drafts.mkdir(exist_ok=True)
    (folder.state / ".gitignore").write_text("*\n")


def _make_bundle(bundle: Path) -> None:
    (bundle / "tools").mkdir(parents=True, exist_ok=True)
    if any(bundle.glob("*.cedar")):
        return
    (bundle / "starter.cedar").write_bytes((STARTER / "starter.cedar").read_bytes())
    if not (bundle / "groups.toml").exists():
        name = current_user()
        text = (STARTER / "groups.template").read_text()
        text = text.format(person=json.dumps(f"{DEV_ISSUER}|{name}"), name=json.dumps(name))
        (bundle / "groups.toml").write_text(text)


def sdk_variables(folder: DevFolder, url: str, keys: KeySet) -> dict[str, str]:
    """The SDK's environment variables; `keys` are pinned."""
    return {
        "COUNTERSIGN_URL": url,
        "COUNTERSIGN_AGENT": folder.agent,
        "COUNTERSIGN_KEY": str(folder.key),
        "COUNTERSIGN_JOURNAL": str(folder.journal),
        "COUNTERSIGN_ALLOW_DEV": "1",
        "COUNTERSIGN_ISSUER_KEYS": ",".join(key.kid for key in keys),
    }


def write_env(folder: DevFolder, variables: Mapping[str, str]) -> None:
    """Write the file for `. .countersign/env` in another terminal. It first unsets variables of any other service."""
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
    folder.env.write_text(_UNSET_INHERITED + "".join(lines))


_SECONDS = 60.0  # to import a script on a busy machine


class ToolsError(Exception):
    """The script's tools cannot be read; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that the code declares: the draft of each manifest, references that nothing defines, and the imported
    files.
    """

    drafts: Mapping[str, str]
    reads: frozenset[str]
    files: tuple[Path, ...]
    missing: tuple[str, ...] = ()


async def read_tools(script: Path, env: Mapping[str, str]) -> Tools:
    """Import the script in another process and list its tools.

    Raises:
        ToolsError: it cannot be imported, has no tools, or a tool cannot be described.
    """
    words = ("-m", "countersign.cli", "tools", "list", "--tools", str(script), "--json")
    try:
        code, out, err = await processes.capture_process(words, env, seconds=_SECONDS)
    except TimeoutError:
        raise ToolsError(
            f"importing {script.name} took longer than {_SECONDS:.0f} s and was stopped; move its main code below "
            '`if __name__ == "__main__":`'
        ) from None
    if code != 0:
        lines = err.replace(f"{script.parent}{os.sep}", "").strip().splitlines()
        raise ToolsError(
            lines[-1].removeprefix("misuse: ") if lines else f"its import ended with status {code}"
        )
    listing = json.loads(out)
    if problems := [tool["problem"] for tool in listing["tools"] if tool["problem"]]:
        raise ToolsError("\n".join(problems))
    return Tools(
        {tool["tool"]: tool["draft"] for tool in listing["tools"]},
        frozenset(tool["tool"] for tool in listing["tools"] if tool["kind"] == "read"),
        tuple(Path(file) for file in listing["files"]),
        tuple(f"{tool['tool']}: {each}" for tool in listing["tools"] for each in tool.get("missing", ())),
    )


def merge_manifests(folder: DevFolder, tools: Tools) -> list[str]:
    """Update the bundle's manifests from the code. Returns lines that say what was done and what is left to do."""
    lines = [line for name, draft in tools.drafts.items() for line in _merge_one(folder, tools, name, draft)]
    return [*lines, *tools.missing, *_removed_tools(folder, tools)]


def _merge_one(folder: DevFolder, tools: Tools, name: str, draft: str) -> Iterator[str]:
    file = manifest_file(name)
    place, seen = folder.bundle / "tools" / file, folder.drafts / file
    before = seen.read_text() if seen.exists() else None
    now = place.read_text() if place.exists() else None
    kind = "a read" if name in tools.reads else "a write"
    if now is None:
        place.write_text(draft)
        yield f"drafted {folder.shown(place)} ({kind}); review it before use: it is what people approve"
    elif now == before != draft:
        place.write_text(draft)
        yield f"{folder.shown(place)} was updated from the code ({kind})"
    elif before not in {None, draft} and not _same_manifest(now, draft):
        yield f"{folder.shown(place)} was edited by you and is unchanged, but its tool has changed:"
        yield from _diff(before or "", draft)
        yield f"make the same change, or delete the file and save {folder.script.name} to draft it again"
    seen.write_text(draft)


def _same_manifest(one: str, other: str) -> bool:
    try:
        return load_manifest(one.encode()).digest == load_manifest(other.encode()).digest
    except ContractError:
        return False


def _diff(before: str, after: str) -> Iterator[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm="")
    return (f"    {line}" for line in lines if not line.startswith(("---", "+++", "@@")))


def _removed_tools(folder: DevFolder, tools: Tools) -> Iterator[str]:
    """Report manifests of tools that the script no longer has, each once."""
    files = {manifest_file(name) for name in tools.drafts}
    for seen in sorted(folder.drafts.glob("*.json")):
        place = folder.bundle / "tools" / seen.name
        if seen.name in files:
            continue
        if place.exists():
            yield f"{folder.shown(place)}: {folder.script.name} no longer has this tool; delete it unless another does"
        seen.unlink()


_EVERY_S = 0.25
FileStates: TypeAlias = dict[Path, tuple[int, int] | None]
"""Modification time and size of each file; None if it does not exist."""


async def watch_saves(folder: Path, files: Callable[[], Iterable[Path]]) -> AsyncIterator[set[Path]]:
    """Yield the changed, new or deleted files of a bundle's folder, and of ``files``.

    A file that is watched for the first time does not count as changed.
    """
    before = _file_states(folder, files())
    while True:
        await asyncio.sleep(_EVERY_S)
        now = _file_states(folder, files())
        if now == before or not await _is_stable(folder, files, now):
            continue
        changed = {path for path in now.keys() & before.keys() if now[path] != before[path]}
        changed |= {path for path in now.keys() ^ before.keys() if path.is_relative_to(folder)}
        before = now
        if changed:
            yield changed


async def _is_stable(folder: Path, files: Callable[[], Iterable[Path]], now: FileStates) -> bool:
    await asyncio.sleep(_EVERY_S / 2)
    return _file_states(folder, files()) == now


def _file_states(folder: Path, files: Iterable[Path]) -> FileStates:
    return {path: _stat(path) for path in (*_bundle_files(folder), *files)}


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None  # deleted, or an editor is replacing it
    return found.st_mtime_ns, found.st_size


def _bundle_files(folder: Path) -> Iterator[Path]:
    """The files of a bundle's folder and its direct subfolders, without hidden files."""
    for path in _visible_entries(folder):
        if path.is_dir():
            yield from (inner for inner in _visible_entries(path) if inner.is_file())
        else:
            yield path


def _visible_entries(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError:
        return []
