"""Run one dev session: fixed settings, the agent's enrolment, signals, and shutdown in order."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import uvicorn
from fastapi import FastAPI

from countersign.contract import PublicKey
from policy_service.channels.admin.dev.folder import DevFolder, current_user, sdk_variables, write_env
from policy_service.channels.admin.dev.output import print_welcome, warn_unused_options
from policy_service.channels.admin.dev.session import DevPerson, Session
from policy_service.channels.admin.server import run_servers
from policy_service.errors import StartError
from policy_service.identity import agents
from policy_service.identity.dev_signin import DEV_ISSUER
from policy_service.queries.context import Context
from policy_service.settings import Settings, load_settings
from policy_service.settings_parsing import ENV_PREFIX
from policy_service.storage.database import Tx

MakeKey: TypeAlias = Callable[[Path], dict[str, str]]
_LOOPBACK = "127.0.0.1"
_UNBUFFERED = "PYTHONUNBUFFERED"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def dev_settings(folder: DevFolder, port: int) -> Settings:
    """The settings of a dev session. The environment cannot change what keeps it local and for development."""
    chosen = _free_port(port)
    return load_settings(
        data_dir=folder.state,
        database_url=f"sqlite:///{folder.state / 'countersign.db'}",
        key_dir=folder.state / "keys",
        bundle_dir=folder.bundle,
        policies_repository="",
        host=_LOOPBACK,
        port=chosen,
        public_url=f"http://{_LOOPBACK}:{chosen}",
        environment="dev",
        dev_signin=True,
        api_keys=False,
        sign_in_link_s=3_600,
        poll_bundle_s=3_600,  # the session watches the bundle itself and reports changes
    )


def _free_port(wanted: int) -> int:
    """The wanted port if it is free, otherwise any free port."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_LOOPBACK, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise StartError("no port is free on the loopback address; stop a program that uses one")


async def run_dev_session(
    app: FastAPI,
    config: uvicorn.Config,
    ctx: Context,
    folder: DevFolder,
    *,
    wanted_port: int,
    make_key: MakeKey,
    roles: Sequence[str],
    arguments: Sequence[str],
) -> None:
    """Serve and run one dev session until a signal or the developer ends it.

    Raises:
        StartError: the service cannot start, or the agent's key cannot be created.
    """
    settings = ctx.settings
    variables = sdk_variables(folder, settings.public_url, ctx.signer.keys)
    async with run_servers(app, config, ctx, signals=False, operator=folder.has_admin_socket):
        kept = await _enrol(ctx, folder, make_key, roles)
        write_env(folder, {**variables, **admin_variables(settings)})
        print_welcome(folder, settings.public_url, wanted_port, variables)
        warn_unused_options(folder, arguments, roles, kept)
        session = Session(ctx, folder, _person(ctx), arguments, _environment(variables))
        await session.print_sign_in_link()
        await _run_until_signal(session)


async def _run_until_signal(session: Session) -> None:
    running, loop = asyncio.create_task(session.run()), asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, running.cancel)
    if sys.stdin is not None and os.isatty(0):
        signal.signal(
            signal.SIGTTIN, signal.SIG_IGN
        )  # as a background job of a shell, continue without a keyboard
    await asyncio.wait({running})
    if not running.cancelled():
        running.result()


def _environment(variables: dict[str, str]) -> dict[str, str]:
    """The script's environment, without variables of any other service.

    At a terminal Python is line-buffered. Unbuffered, it would write a ``print`` in pieces, and the session's own lines
    could appear between them.
    """
    left_out = (ENV_PREFIX, _UNBUFFERED)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return inherited | variables | ({} if sys.stdout.isatty() else {_UNBUFFERED: "1"})


def admin_variables(settings: Settings) -> dict[str, str]:
    """The environment of `policy-service` in another terminal. It overrides any configuration file there."""
    return {
        "COUNTERSIGN_DATA_DIR": str(settings.data_dir),
        "COUNTERSIGN_DATABASE_URL": settings.database_url,
        "COUNTERSIGN_KEY_DIR": str(settings.key_dir),
        "COUNTERSIGN_BUNDLE_DIR": str(settings.bundle_dir),
        "COUNTERSIGN_HOST": settings.host,
        "COUNTERSIGN_PORT": str(settings.port),
        "COUNTERSIGN_PUBLIC_URL": settings.public_url,
        "COUNTERSIGN_DEV_SIGNIN": "true",
        "COUNTERSIGN_ENVIRONMENT": settings.environment,
    }


def _person(ctx: Context) -> DevPerson:
    """The bundle's first person that the development sign-in can sign in, otherwise the current user."""
    prefix = f"{DEV_ISSUER}|"
    people = ctx.active.current.directory.people
    found = [
        DevPerson(key.removeprefix(prefix), name) for key, name in people.items() if key.startswith(prefix)
    ]
    return found[0] if found else DevPerson(current_user(), current_user())


async def _enrol(ctx: Context, folder: DevFolder, make_key: MakeKey, roles: Sequence[str]) -> Sequence[str]:
    """Enrol the script without an owner, so that one person can approve everything. Its key is created once.

    Returns its roles: those of its first enrolment.
    """
    key = _agent_public_key(folder, make_key)

    def enrol(tx: Tx) -> Sequence[str]:
        known = {row.name: row.roles for row in agents.list_agents(tx.conn)}
        if folder.agent not in known:
            agents.enroll(tx, folder.agent, roles=roles)
        if not any(one.kid == key.kid for one in agents.list_keys(tx.conn, folder.agent)):
            agents.add_key(tx, folder.agent, key)
        return known.get(folder.agent, roles)

    return await ctx.db.write(enrol)


def _agent_public_key(folder: DevFolder, make_key: MakeKey) -> PublicKey:
    """The agent's public key, from its own file: the session never reads the private key."""
    try:
        if folder.key.exists():
            return PublicKey.from_jwk(json.loads(folder.public_key.read_text()))
    except (OSError, ValueError):
        folder.key.unlink()  # without its public half it cannot be enrolled; create another one
    folder.public_key.write_text(json.dumps(make_key(folder.key)))
    return PublicKey.from_jwk(json.loads(folder.public_key.read_text()))
