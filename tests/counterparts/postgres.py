"""A private PostgreSQL: a fresh cluster in a temporary folder, on a loopback port, gone at the end.

`COUNTERSIGN_TEST_POSTGRES_URL` names a server to use instead (a database there is made and dropped). A server
never runs as root, so under root the cluster belongs to an unprivileged account.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import NullPool, create_engine, make_url, text

from examples.local_service import free_port

WAY_TO_GET = "apt-get install postgresql, or set COUNTERSIGN_TEST_POSTGRES_URL"
_USER = 65_534  # the unprivileged account, when the tests run as root


def programs() -> Path | None:
    """The folder of initdb and pg_ctl, or None."""
    found = shutil.which("initdb")
    folders = (
        [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    )
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


def is_at_hand() -> bool:
    """Whether :func:`server` can answer."""
    return bool(os.environ.get("COUNTERSIGN_TEST_POSTGRES_URL")) or programs() is not None


@contextmanager
def server(*, durable: bool = False) -> Iterator[str]:
    """The URL of a running server's maintenance database; it forces nothing to the disk unless it is `durable`."""
    if url := os.environ.get("COUNTERSIGN_TEST_POSTGRES_URL"):
        yield url
        return
    folder = programs()
    assert folder is not None, WAY_TO_GET
    with tempfile.TemporaryDirectory(prefix="countersign-pg-") as home:
        if os.geteuid() == 0:
            shutil.chown(home, _USER)
        port = free_port()
        data = f"{home}/data"
        _run(folder / "initdb", "-D", data, *"-U countersign -A trust -E UTF8 --locale=C -N".split())
        options = f"-c listen_addresses=127.0.0.1 -p {port} -k {home} -c max_connections=200"
        options += "" if durable else " -c fsync=off"
        _run(folder / "pg_ctl", "-D", data, "-w", "-l", f"{home}/log", "-o", options, "start")
        try:
            yield f"postgresql+psycopg://countersign@127.0.0.1:{port}/postgres"
        finally:
            _run(folder / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")


@contextmanager
def database(server_url: str, template: str = "template1") -> Iterator[str]:
    """The URL of a database of one's own: empty, or a copy of `template`."""
    name = f"t{uuid.uuid4().hex}"
    admin = create_engine(server_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with admin.connect() as conn:
        conn.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
    try:
        yield make_url(server_url).set(database=name).render_as_string(hide_password=False)
    finally:
        with admin.connect() as conn:
            conn.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


def _run(program: Path, *arguments: str) -> None:
    user = _USER if os.geteuid() == 0 else None
    subprocess.run(
        [str(program), *arguments], user=user, cwd="/", check=True, stdout=subprocess.DEVNULL, timeout=60
    )
