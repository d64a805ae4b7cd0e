"""What lies beside the script: `.countersign/` with everything of this machine, `policies/` with what people write.

Rules: made only where missing; `.countersign/` keeps itself out of git and belongs to this user alone; a starter policy
is written only into a folder that has no policy yet.
"""

from __future__ import annotations

import getpass
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from countersign.contract import KeySet
from policy_service.configured import ENV_PREFIX
from policy_service.errors import StartError
from policy_service.identity.dev_signin import DEV_ISSUER
from policy_service.storage.sqlite import InUseError

_STATE: Final = ".countersign"
_LONGEST_SOCKET: Final = 107  # bytes of a Unix socket's address on Linux

# A name of our own stands last, because some shells want at least one.
_FORGET: Final = f"unset $(env | sed -n 's/^\\({ENV_PREFIX}[A-Za-z0-9_]*\\)=.*/\\1/p') {ENV_PREFIX}URL\n"

STARTER: Final = """\
// What the agent may do. Edit and save: `policy-service dev` takes it up at once, and says what is wrong if it cannot.
// Three kinds of rule: a permit allows, a forbid refuses, and a forbid with @approval (a gate) waits for people.

@id("agents-may-ask")
@doc("Whatever no rule below holds back goes through.")
permit (principal, action, resource);

@id("writes-need-a-person")
@title("Everything that changes something asks a person")
@doc("A tool is a read only if its manifest says so: groups=[\\"read\\"] in @tool(...). Every other one is a write.")
@approval("developers")
forbid (principal, action, resource)
unless { action in Action::"read" };

// The next rule you may want: let small amounts go by themselves. Put it in place of the gate above.
//
// @id("refunds-above-50-need-a-person") @approval("developers") @answer_within("4h")
// forbid (principal, action == Action::"refund", resource)
// when { context.input.amount_cents > 5000 };
//
// A tool with lane="live" and ask="live" asks these rules before it runs and cannot wait for people: take it out of the
// gate, like the reads.   unless { action in Action::"read" || action == Action::"set_status" };
//
// And one that nobody can approve away:
//
// @id("never-to-strangers") @doc("Mail goes to example.com only. Ask for another address.")
// forbid (principal, action == Action::"send_mail", resource)
// unless { context.input.to like "*@example.com" };
"""

GROUPS: Final = """\
# Who is in which group. A person is "issuer|subject"; these sign in by the link that the terminal prints.

[people.me]
id = {person}
name = {name}

[groups.developers]
title = "Developers"
members = ["me"]

# Asked when a call carries something policy cannot weigh (a list of objects, a map, a null), and in dev about tools
# that have no manifest.
[groups.unseen]
title = "Whoever looks at what policy cannot weigh"
members = ["me"]
"""


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
    def has_operators_door(self) -> bool:
        """Whether the operator's socket can be opened so deep in the tree."""
        return len(bytes(self.state / "admin.sock")) <= _LONGEST_SOCKET

    def shown(self, path: Path) -> str:
        """A path as the developer knows it: from the script's folder, where it lies in it."""
        home = self.script.parent
        return str(path.relative_to(home) if path.is_relative_to(home) else path)


@contextmanager
def alone_in(folder: DevFolder) -> Iterator[None]:
    """While the database is made or taken.

    Raises:
        StartError: another process has it: a second sitting in one folder, say.
    """
    try:
        yield
    except InUseError as error:
        raise StartError(
            f"this folder is in use by {error.holder}; end that one first (a dev by q and Enter), or put "
            f"{folder.script.name} into a folder of its own"
        ) from None


def me() -> str:
    """Whoever runs this, as the development sign-in names them."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return "developer"
    return name if name.isprintable() and name.strip() == name and 0 < len(name) <= 100 else "developer"


def prepare(script: Path, bundle: Path | None) -> DevFolder:
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
    (bundle / "starter.cedar").write_text(STARTER)
    if not (bundle / "groups.toml").exists():
        name = me()
        text = GROUPS.format(person=json.dumps(f"{DEV_ISSUER}|{name}"), name=json.dumps(name))
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
    folder.env.write_text(_FORGET + "".join(lines))
