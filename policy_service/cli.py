"""The command line ``policy-service``: setup, serve, dev, agents, and all other commands by import.

Every command prints its result or a sentence that says what to do; ``--json`` prints one JSON value. Exit codes: 0
success, 1 refused, 2 wrong usage.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import getpass
import json
import os
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from countersign.contract import PrivateKey, PublicKey
from policy_service import __version__
from policy_service.channels.admin import (
    backup,
    freeze_and_revoke,
    people,
    show_settings,
    signing_keys,
    slack,
    verify_review,
    webhooks,
)
from policy_service.channels.admin.output import AsJson, print_result, report_errors
from policy_service.channels.admin.policy_cli import add_author_verbs
from policy_service.channels.admin.policy_cli.bundles import configured_bundle_files
from policy_service.channels.admin.socket import embedded_lock, open_database, run_admin_command
from policy_service.channels.admin.worker_channel import WorkerChannel, generation, require_generation
from policy_service.channels.admin.workers import require_database_server, run_workers
from policy_service.errors import ServiceError, StartError
from policy_service.http_clients import Route
from policy_service.identity.dev_signin import DEV_ISSUER
from policy_service.logs import set_up_foreign_logs, set_up_logs
from policy_service.metrics import share_with_workers
from policy_service.pap.bundle import build_bundle
from policy_service.settings import Settings, load_settings
from policy_service.slack import SlackApp
from policy_service.tokens.epoch import Mark
from policy_service.tokens.keys import make_keys, read_keys
from policy_service.tokens.secret_files import create_secret
from policy_service.workflow.revocation.restore import reconcile_epoch
from policy_service.workflow.slack.admin import CheckResult

if TYPE_CHECKING:
    import uvicorn


def _slack_trial(app: SlackApp, place: str, route: Route) -> Coroutine[Any, Any, CheckResult]:
    from policy_service.channels.slack.credentials import (
        check_setup,  # imports Slack's SDK, which would slow down every other command
    )

    return check_setup(app, place, route)


# No pretty tracebacks: they print local variables, and some of those are secrets.
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The policy service of Countersign.",
)
agent_app = typer.Typer(no_args_is_help=True, help="Enrol agents and executors and manage their keys.")
key_app = typer.Typer(no_args_is_help=True, help="Keys of agents.")
app.add_typer(agent_app, name="agent")
app.add_typer(freeze_and_revoke.freeze_app, name="freeze")
app.add_typer(freeze_and_revoke.unfreeze_app, name="unfreeze")
app.add_typer(freeze_and_revoke.revoke_app, name="revoke")
app.add_typer(freeze_and_revoke.reinstate_app, name="reinstate")
app.add_typer(people.passkeys_app, name="passkeys")
app.add_typer(slack.slack_app, name="slack")
slack.register_test(_slack_trial)
signing_keys.add_commands(app)
app.add_typer(freeze_and_revoke.policies_app, name="policies")
app.add_typer(webhooks.webhooks_app, name="webhooks")
agent_app.add_typer(key_app, name="key")
key_app.command("revoke", context_settings=freeze_and_revoke.KEY_IDS)(freeze_and_revoke.revoke_key)
agent_app.command("list")(people.agents)
app.command("people")(people.people)
add_author_verbs(app)
app.command("verify-review")(verify_review.verify_review)
app.command("backup")(backup.backup)
app.command("restored")(backup.restored)

_OWN_LOGS = frozenset({"serve", "serve-worker", "dev"})


@app.callback()
def _configure_logs(context: typer.Context) -> None:
    """The policy service of Countersign."""
    # Programs read what a command prints, so logs go to stderr.
    if context.invoked_subcommand not in _OWN_LOGS:
        set_up_logs()


KeyOut = Annotated[Path | None, typer.Option(help="Write a fresh private key here (PEM, mode 0600).")]
Jwk = Annotated[str | None, typer.Option(help="The public key as a JWK, if the agent made its own.")]


@contextlib.contextmanager
def _public_key(key_out: Path | None, jwk: str | None) -> Iterator[dict[str, str] | None]:
    """The public key to enrol. A private key made for it is deleted again when the enrolment fails."""
    if key_out is None:
        yield None if jwk is None else _read_jwk(jwk)
        return
    if jwk is not None:
        raise typer.BadParameter("give --jwk or --key-out, not both")
    public = _make_key(key_out)
    try:
        yield public
    except BaseException:
        key_out.unlink()
        raise


def _make_key(path: Path) -> dict[str, str]:
    """Write a new private key to a file and return its public half."""
    key = PrivateKey.generate()
    try:
        create_secret(path, key.to_pem())
    except FileExistsError:
        raise StartError(f"{path} exists; a key is never overwritten, name another file") from None
    except OSError as error:
        raise StartError(f"the key cannot be written to {path}: {error.strerror}") from error
    return key.public.jwk()


def _read_jwk(text: str) -> dict[str, str]:
    try:
        return PublicKey.from_jwk(json.loads(text)).jwk()
    except ValueError as error:
        raise StartError(f"this is not an Ed25519 public key as a JWK: {error}") from error


@app.command()
def init(as_json: AsJson = False) -> None:
    """Create the data folder, the keys and the database. Safe to repeat."""
    with report_errors():
        settings = load_settings()
        made, mark = _create_data(settings)
        done = {"data_dir": str(settings.data_dir), "keys_made": made, "epoch": mark.epoch}
        print_result(
            done,
            as_json,
            f"ready in {settings.data_dir}; keys made: {', '.join(made) or 'none, all existed'}",
        )


def _create_data(settings: Settings) -> tuple[list[str], Mark]:
    """Create the data folder, the keys and the database if missing. Returns the new keys and the epoch mark."""
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = make_keys(settings.key_dir)
    with embedded_lock(settings), open_database(settings) as db:
        return made, reconcile_epoch(db, settings.key_dir)


@app.command()
def serve(
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=64, help="Processes that serve; several need PostgreSQL. Default: COUNTERSIGN_WORKERS."
        ),
    ] = None,
) -> None:
    """Run the service until it is interrupted."""
    with report_errors():
        settings = load_settings()
        count = workers or settings.workers
        require_database_server(settings, count)
        _set_up_logging()
        if count == 1:
            _serve(settings, lambda: _print_welcome(settings))
            return
        read_keys(settings.key_dir)  # first: without `init`, nothing may be created
        with open_database(settings) as db:  # migrated here, once, before the workers open it
            reconcile_epoch(db, settings.key_dir)
        status = run_workers(
            settings, count, lambda: _print_welcome(settings), generation(settings, __version__)
        )
    raise typer.Exit(status)


@app.command(hidden=True)
def serve_worker(number: int, listener: int, channel: int, metrics_folder: Path) -> None:
    """One worker, started by ``serve`` with the handles of its sockets."""
    os.set_inheritable(listener, False)
    supervisor = WorkerChannel(channel, metrics_folder)
    share_with_workers(metrics_folder)
    with report_errors():
        _set_up_logging(worker=number)
        settings = load_settings()
        require_generation(settings, __version__, supervisor.generation)
        _serve(settings, supervisor.report_ready, socket.socket(fileno=listener))


def _serve(settings: Settings, welcome: Callable[[], None], listener: socket.socket | None = None) -> None:
    from policy_service.app import create_app
    from policy_service.channels.admin.server import serve_with_socket

    asgi = create_app(settings)
    gc.collect()
    gc.freeze()  # exclude loaded modules from garbage collection (5 % of a submission's processor time)
    config = _uvicorn_config(asgi, settings)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(serve_with_socket(asgi, config, asgi.state.service.ctx, welcome, listener))


def _uvicorn_config(asgi: Any, settings: Settings) -> uvicorn.Config:
    # Imported here, because every other command starts in half the time without it.
    import uvicorn

    from policy_service.channels.http.connections import BoundedConnection

    return uvicorn.Config(
        asgi,
        http=BoundedConnection,
        ws="none",
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the public URL is configured, never taken from headers
        timeout_graceful_shutdown=5,
        lifespan="off",
    )


@app.command(context_settings={"allow_interspersed_args": False})
def dev(
    script: Annotated[Path, typer.Argument(help="The agent's Python file.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="The script's own arguments.")] = None,
    policies: Annotated[
        Path | None, typer.Option(help="The bundle's folder. Default: policies/ next to the script.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="The preferred port; another one if it is in use.")
    ] = 8420,
    role: Annotated[list[str] | None, typer.Option(help="A role policies see; may be repeated.")] = None,
) -> None:
    """Develop an agent: run the service, the script and a starter policy here; a save reloads and runs it again."""
    from policy_service.app import create_app
    from policy_service.channels.admin.dev.folder import exclusive_use, prepare_folder
    from policy_service.channels.admin.dev.server import dev_settings, run_dev_session

    with report_errors():
        folder = prepare_folder(script, policies)
        typer.echo(f"dev | starting a service for {folder.script.name} ...")
        with folder.log.open("a", buffering=1) as log:
            _set_up_logging(log)
            settings = dev_settings(folder, port)
            with exclusive_use(folder):
                _create_data(settings)
            asgi = create_app(settings)
            config = _uvicorn_config(asgi, settings)
            session = run_dev_session(
                asgi,
                config,
                asgi.state.service.ctx,
                folder,
                wanted_port=port,
                make_key=_make_key,
                roles=role or [],
                arguments=arguments or [],
            )
            with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
                runner.run(session)


def _print_welcome(settings: Settings) -> None:
    typer.echo(f"listening on {settings.public_url}")
    if not settings.dev_signin:
        return
    for sub, name in _dev_people(settings):
        try:
            link = run_admin_command(settings, "sign-in-link", {"sub": sub, "name": name})["url"]
        except ServiceError as error:  # for example a full disk: no reason to stop the service for everyone
            typer.echo(f"no link for {sub} ({error}); retry with: policy-service signin {sub}", err=True)
        else:
            typer.echo(f"sign in as {sub}: {link}")


def _dev_people(settings: Settings) -> list[tuple[str, str]]:
    """The bundle's people that the development sign-in can sign in; otherwise the user who runs the service."""
    prefix = f"{DEV_ISSUER}|"
    people = build_bundle(configured_bundle_files(settings)).directory.people
    found = [(key.removeprefix(prefix), name) for key, name in people.items() if key.startswith(prefix)]
    return found or [(getpass.getuser(), getpass.getuser())]


def _set_up_logging(file: TextIO | None = None, worker: int | None = None) -> None:
    set_up_foreign_logs(file, worker)
    set_up_logs(file, worker)


@app.command()
def signin(
    person: Annotated[str, typer.Argument(help="Who signs in: the subject as in groups.toml.")],
    name: Annotated[str | None, typer.Option(help="The display name.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print a one-time link of the development sign-in."""
    with report_errors():
        settings = load_settings()
        known = dict(_dev_people(settings))
        if person not in known:
            names = ", ".join(sorted(known))
            typer.echo(
                f"{person} is in no group of the bundle and cannot approve anything; known: {names}", err=True
            )
        link = run_admin_command(
            settings, "sign-in-link", {"sub": person, "name": name or known.get(person, person)}
        )
        print_result(link, as_json, link["url"])


app.command("settings")(show_settings.show_settings)


@agent_app.command("enroll")
def agent_enroll(
    name: Annotated[str, typer.Argument(help="The agent's name; every effect it stages carries it.")],
    owner: Annotated[str | None, typer.Option(help="The responsible person: ISSUER|SUBJECT.")] = None,
    role: Annotated[list[str] | None, typer.Option(help="A role policies see; may be repeated.")] = None,
    team: Annotated[list[str] | None, typer.Option(help="A team policies see; may be repeated.")] = None,
    key_out: KeyOut = None,
    jwk: Jwk = None,
    as_json: AsJson = False,
) -> None:
    """Enrol an agent or executor, optionally with its first key."""
    with report_errors():
        settings = load_settings()
        with _public_key(key_out, jwk) as public:
            args = {"name": name, "owner": owner, "roles": role or [], "teams": team or [], "jwk": public}
            done = run_admin_command(settings, "agent-enroll", args)
        where = f"; its key is in {key_out}" if key_out else ""
        print_result(done, as_json, f"enrolled {name}{where}")


@agent_app.command("api-key")
def agent_api_key(
    name: Annotated[str, typer.Argument(help="The agent.")],
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Revoke every bearer key of the agent instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a bearer key for development on loopback. It is shown only once."""
    with report_errors():
        if revoke:
            done = run_admin_command(load_settings(), "api-key-revoke", {"name": name})
            print_result(done, as_json, f"ended {done['revoked']} bearer keys of {name}")
            return
        made = run_admin_command(load_settings(), "api-key", {"name": name})
        print_result(made, as_json, made["api_key"])


@key_app.command("add")
def key_add(
    name: Annotated[str, typer.Argument(help="The agent.")],
    key_out: KeyOut = None,
    jwk: Jwk = None,
    as_json: AsJson = False,
) -> None:
    """Add a key to an agent."""
    with report_errors():
        settings = load_settings()
        if key_out is None and jwk is None:
            raise typer.BadParameter("name the public key with --jwk, or create a key with --key-out")
        with _public_key(key_out, jwk) as public:
            done = run_admin_command(settings, "agent-key-add", {"name": name, "jwk": public})
        print_result(done, as_json, f"{name} has the key {done['kid']}")


if __name__ == "__main__":
    app()
