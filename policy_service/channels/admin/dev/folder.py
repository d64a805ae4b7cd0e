"""The files beside the script: `.countersign/` for this machine, `policies/` with its manifests; and who saved what.

Rules: made only where missing; `.countersign/` keeps itself out of git and belongs to this user alone; a starter policy
is written only into a folder that has no policy yet. The script is imported by the SDK's own command in a process of
its own. A manifest that people have edited is never written; one that is still as it was drafted follows the code; a
tool that cannot be described keeps everything as it is. A save is reported once two looks agree, so that an editor that
writes in two steps is not read in between.
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

# A name of our own stands last, because some shells want at least one.
_UNSET_INHERITED: Final = (
    f"unset $(env | sed -n 's/^\\({ENV_PREFIX}[A-Za-z0-9_]*\\)=.*/\\1/p') {ENV_PREFIX}URL\n"
)

STARTER: Final = Path(__file__).with_name("starter")
"""The templates of a first policy and its groups."""


@dataclass(frozen=True, slots=True)
class DevFolder:
    """The places of one script."""

    script: Path
    bundle: Path

    @property
    def agent(self) -> str:
        """The name the script is enrolled under: its file's."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.script.stem).strip("-._")[:100] or "agent"

    @property
    def state(self) -> Path:
        """Everything of this machine: keys, database, journal; may be deleted to begin anew."""
        return self.script.parent / _STATE

    @property
    def key(self) -> Path:
        """The agent's private key."""
        return self.state / f"{self.agent}.pem"

    @property
    def public_key(self) -> Path:
        """Its public half, which is all the service is shown."""
        return self.key.with_suffix(".jwk")

    @property
    def journal(self) -> Path:
        """The agent's journal."""
        return self.state / f"{self.agent}-journal.db"

    @property
    def drafts(self) -> Path:
        """The manifests as the code suggested them last."""
        return self.state / "drafts"

    @property
    def log(self) -> Path:
        """What the service logs."""
        return self.state / "service.log"

    @property
    def env(self) -> Path:
        """The variables, for another terminal."""
        return self.state / "env"

    @property
    def has_admin_socket(self) -> bool:
        """Whether the operator's socket can be opened so deep in the tree."""
        return len(bytes(self.state / "admin.sock")) <= _LONGEST_SOCKET

    def shown(self, path: Path) -> str:
        """A path as the developer knows it: from the script's folder, where it lies in it."""
        home = self.script.parent
        return str(path.relative_to(home) if path.is_relative_to(home) else path)


@contextmanager
def exclusive_use(folder: DevFolder) -> Iterator[None]:
    """While the database is made or taken.

    Raises:
        StartError: another process has it: a second sitting in one folder, say.
    """
    try:
        yield
    except DatabaseInUseError as error:
        raise StartError(
            f"this folder is in use by {error.holder}; end that one first (a dev by q and Enter), or put "
            f"{folder.script.name} into a folder of its own"
        ) from None


def current_user() -> str:
    """Whoever runs this, as the development sign-in names them."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return "developer"
    return name if name.isprintable() and name.strip() == name and 0 < len(name) <= 100 else "developer"


def prepare_folder(script: Path, bundle: Path | None) -> DevFolder:
    """Make what is missing beside the script.

    Raises:
        StartError: there is no such script, or the folder cannot be written.
    """
    if script.suffix != ".py" or not script.is_file():
        raise StartError(
            f"{str(script)!r} is no Python file here; write `policy-service dev my_agent.py`, options "
            "before it and the script's own arguments after it"
        )
    if script.stem in sys.stdlib_module_names | {"countersign", "policy_service"}:
        raise StartError(
            f"{script.name!r} hides the module {script.stem!r} from everything it imports; call the file something "
            "else, like my_agent.py"
        )
    script = script.resolve()
    folder = DevFolder(script, (bundle or script.parent / "policies").absolute())
    try:
        _make_state(folder)
        _make_bundle(folder.bundle)
    except OSError as error:
        raise StartError(
            f"{error.filename!r} cannot be made: {error.strerror}; put the script where dev may write beside it"
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
    """What the SDK reads; `keys` are pinned."""
    return {
        "COUNTERSIGN_URL": url,
        "COUNTERSIGN_AGENT": folder.agent,
        "COUNTERSIGN_KEY": str(folder.key),
        "COUNTERSIGN_JOURNAL": str(folder.journal),
        "COUNTERSIGN_ALLOW_DEV": "1",
        "COUNTERSIGN_ISSUER_KEYS": ",".join(key.kid for key in keys),
    }


def write_env(folder: DevFolder, variables: Mapping[str, str]) -> None:
    """A file for `. .countersign/env` in another terminal: what that holds of another service is forgotten there."""
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
    folder.env.write_text(_UNSET_INHERITED + "".join(lines))


_SECONDS = 60.0  # to import a script with everything it imports, on a busy machine


class ToolsError(Exception):
    """The script's tools are not to be had; the text says what to write instead."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What the code declares: the draft of every tool's manifest, what a tool names and nothing defines, and the files
    that were imported for it.
    """

    drafts: Mapping[str, str]
    reads: frozenset[str]
    files: tuple[Path, ...]
    missing: tuple[str, ...] = ()


async def read_tools(script: Path, env: Mapping[str, str]) -> Tools:
    """Import the script and ask what its tools are.

    Raises:
        ToolsError: it cannot be imported, has no tools, or one of them cannot be described.
    """
    words = ("-m", "countersign.cli", "tools", "list", "--tools", str(script), "--json")
    try:
        code, out, err = await processes.capture_process(words, env, seconds=_SECONDS)
    except TimeoutError:
        raise ToolsError(
            f"importing {script.name} took longer than {_SECONDS:.0f} s and was ended; put what it does below "
            '`if __name__ == "__main__":`'
        ) from None
    if code != 0:
        told = err.replace(f"{script.parent}{os.sep}", "").strip().splitlines()
        raise ToolsError(
            told[-1].removeprefix("misuse: ") if told else f"its import ended with status {code}"
        )
    told = json.loads(out)
    if problems := [tool["problem"] for tool in told["tools"] if tool["problem"]]:
        raise ToolsError("\n".join(problems))
    return Tools(
        {tool["tool"]: tool["draft"] for tool in told["tools"]},
        frozenset(tool["tool"] for tool in told["tools"] if tool["kind"] == "read"),
        tuple(Path(file) for file in told["files"]),
        tuple(f"{tool['tool']}: {lacking}" for tool in told["tools"] for lacking in tool.get("missing", ())),
    )


def merge_manifests(folder: DevFolder, tools: Tools) -> list[str]:
    """Bring the bundle's manifests up to the code, and say what was done or is to be done."""
    said = [line for name, draft in tools.drafts.items() for line in _merge_one(folder, tools, name, draft)]
    return [*said, *tools.missing, *_removed_tools(folder, tools)]


def _merge_one(folder: DevFolder, tools: Tools, name: str, draft: str) -> Iterator[str]:
    file = manifest_file(name)
    place, seen = folder.bundle / "tools" / file, folder.drafts / file
    before = seen.read_text() if seen.exists() else None
    now = place.read_text() if place.exists() else None
    kind = "a read" if name in tools.reads else "a write"
    if now is None:
        place.write_text(draft)
        yield f"drafted {folder.shown(place)} ({kind}); read it before you rely on it: it is what people will approve"
    elif now == before != draft:
        place.write_text(draft)
        yield f"{folder.shown(place)} follows the code again ({kind})"
    elif before not in {None, draft} and not _same_manifest(now, draft):
        yield f"{folder.shown(place)} was edited by you and is left alone, but its tool has changed:"
        yield from _diff(before or "", draft)
        yield f"change it the same way, or delete it and save {folder.script.name}: then it is drafted anew"
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
    """Drafts of tools this script once had and has no longer, each told once."""
    files = {manifest_file(name) for name in tools.drafts}
    for seen in sorted(folder.drafts.glob("*.json")):
        place = folder.bundle / "tools" / seen.name
        if seen.name in files:
            continue
        if place.exists():
            yield f"{folder.shown(place)}: {folder.script.name} has no such tool any more; delete it if nobody has"
        seen.unlink()


_EVERY_S = 0.25
FileStates: TypeAlias = dict[Path, tuple[int, int] | None]
"""When each file was changed and how long it is; None for one that is not there."""


async def watch_saves(folder: Path, files: Callable[[], Iterable[Path]]) -> AsyncIterator[set[Path]]:
    """What was changed, made or deleted since the last time: any file of a bundle's folder, and these files.

    A file that was not looked at before has not been changed since.
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
        return None  # deleted, or between an editor's two steps
    return found.st_mtime_ns, found.st_size


def _bundle_files(folder: Path) -> Iterator[Path]:
    """The files of a bundle's folder and one below, where bundles keep theirs; hidden files are nobody's rules."""
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
