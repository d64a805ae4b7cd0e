"""Run docs/how-to/backup.md: a real service loses its database, and no effect fires twice."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest
from sqlalchemy import NullPool, create_engine, make_url, text
from typer.testing import CliRunner

from examples.local_service import free_port
from policy_service.cli import app
from tests.conventions.documents import blocks
from tests.conventions.repository import ROOT
from tests.counterparts import postgres, require
from tests.fakes.operated import Operated, command, environment
from tests.fakes.world import fresh_data

RUNBOOK = (ROOT / "docs/how-to/backup.md").read_text()

AGENT = '''
import pathlib, sys
from countersign import tool, transaction

@tool("refund", resource=("Order", "order_id"))
def refund(order_id: str) -> None:
    """Give money back."""
    with (pathlib.Path(__file__).parent / "world.log").open("a") as world:
        world.write(order_id + "\\n")

if __name__ == "__main__":
    with transaction(key=sys.argv[1]):
        refund(sys.argv[1])
'''


def commands_under(*headings: str) -> list[str]:
    """The console blocks under a heading (and one below it), each as a script."""
    text = RUNBOOK
    for level, heading in enumerate(headings, start=2):
        begins = re.search(rf"^{'#' * level} {re.escape(heading)}.*$", text, re.M)
        assert begins is not None, f"the runbook has no {heading!r}"
        text = text[begins.end() :]
        ends = re.search(rf"^#{{2,{level}}} ", text, re.M)
        text = text[: ends.start()] if ends else text
    found = [block.text for block in blocks("docs/how-to/backup.md", text) if block.language == "console"]
    return ["\n".join(line.removeprefix("$ ") for line in script.splitlines()) for script in found]


class Host:
    """A shell on the operator's host, or an agent's: what is exported stays so."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder, self.env = folder, dict(env)

    def run(self, script: str) -> str:
        """Run a script as the runbook has it; what it said."""
        done = self._bash(script)
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def _bash(self, script: str) -> subprocess.CompletedProcess[str]:
        after = self.folder / "env.after"
        done = subprocess.run(
            ["bash", "-eu", "-c", f"{script}\nenv -0 > {shlex.quote(str(after))}"],
            cwd=self.folder, env=self.env, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        if done.returncode == 0:
            self.env = dict(line.split("=", 1) for line in after.read_text().split("\0") if line)
        return done


def shell(folder: Path) -> dict[str, str]:
    """The path and the commands of an installed Countersign."""
    programs = folder / "bin"
    programs.mkdir()
    for name, module in (("policy-service", "policy_service.cli"), ("countersign", "countersign.cli")):
        script = programs / name
        start = f'-c "from {module} import app; app()"'
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {start} "$@"\n')
        script.chmod(0o755)
    found = postgres.programs()
    path = [str(programs), *([] if found is None else [str(found)]), os.environ["PATH"]]
    return {
        "PATH": os.pathsep.join(path),
        "HOME": os.environ.get("HOME", "/"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "sdk/python")]),
    }


class Deployment:
    """An operator's host, an agent's host, and a service between them."""

    def __init__(self, home: Path, database: Mapping[str, str] | None = None) -> None:
        """``database``: what an operator exports for PostgreSQL."""
        bundle, self.agent_home = home / "bundle", home / "agent"
        for folder in (bundle, self.agent_home, home / "backups", home / "key-backups"):
            folder.mkdir()
        inherited = shell(home)
        backups = {"BACKUPS": str(home / "backups"), "KEY_BACKUPS": str(home / "key-backups")}
        settings = environment(home / "data", bundle, free_port(), **(database or {}))
        self.operator = Host(home, inherited | settings | backups)
        port = self.operator.env["COUNTERSIGN_PORT"]
        key = self.agent_home / "desk.pem"
        agent = {
            "URL": f"http://127.0.0.1:{port}", "AGENT": "desk", "KEY": str(key),
            "JOURNAL": str(self.agent_home / "journal.db"),
        }  # fmt: skip
        named = {f"COUNTERSIGN_{name}": value for name, value in agent.items()}
        self.agent = Host(self.agent_home, inherited | named)
        (self.agent_home / "my_agent.py").write_text(AGENT)
        self.agent.run("countersign tools export --tools my_agent")
        (self.agent_home / "drafts").rename(bundle / "tools")  # as their reviewer does
        (bundle / "desk.cedar").write_text('@id("may") permit (principal, action, resource);\n')
        (bundle / "groups.toml").write_bytes((ROOT / "policies/groups.toml").read_bytes())
        self.operator.run("policy-service init")
        self.operator.run(f"policy-service agent enroll desk --key-out {shlex.quote(str(key))}")

    def serving(self) -> Operated:
        return Operated(self.operator.env)

    def fires(self, key: str) -> None:
        self.agent.run(f"{shlex.quote(sys.executable)} my_agent.py {key}")

    def fired(self) -> list[str]:
        return (self.agent_home / "world.log").read_text().split()


@contextmanager
def role_of_the_docs(server: str) -> Iterator[dict[str, str]]:
    """Role and database as docs/how-to/postgresql.md creates them; what an operator exports for them."""
    role = f"r{uuid4().hex}"
    page = blocks("docs/how-to/postgresql.md", (ROOT / "docs/how-to/postgresql.md").read_text())
    sql = next(block.text for block in page if block.text.startswith("CREATE ROLE"))
    created = [one for one in sql.replace("countersign", role).split(";") if one.strip()]
    admin = create_engine(server, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    url = make_url(server).set(drivername="postgresql")
    own = url.set(username=role, password="...")
    with admin.connect() as conn:
        for statement in created:
            conn.execute(text(statement))
    try:
        yield {
            "COUNTERSIGN_DATABASE_URL": own.set(database=role).render_as_string(hide_password=False),
            "ADMIN_DATABASE_URL": url.render_as_string(hide_password=False),
            "ROLE": role,
            "NEW_DATABASE": f"{role}_new",
            "NEW_DATABASE_URL": own.set(database=f"{role}_new").render_as_string(hide_password=False),
        }
    finally:
        with admin.connect() as conn:
            for name in (role, f"{role}_new"):
                conn.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
            conn.execute(text(f"DROP ROLE {role}"))


@pytest.fixture(params=["sqlite", "postgresql"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    """Set up and not running, on either engine."""
    if request.param == "sqlite":
        yield Deployment(tmp_path)
        return
    require("PostgreSQL's programs", postgres.programs() is not None, postgres.WAY_TO_GET)
    with role_of_the_docs(request.getfixturevalue("postgres_server")) as database:
        yield Deployment(tmp_path, database)


@pytest.mark.long
@pytest.mark.timeout(600)  # some twenty commands, each a process that imports everything
def test_the_runbook_brings_a_deployment_back_and_nothing_fires_twice(deployment: Deployment) -> None:
    engine = "PostgreSQL" if "COUNTERSIGN_DATABASE_URL" in deployment.operator.env else "SQLite"
    keys = commands_under("SQLite", "Make a backup")[-1]
    with deployment.serving() as service:
        deployment.fires("before")
        for script in (commands_under(engine, "Make a backup")[0], keys):
            deployment.operator.run(script)
        deployment.fires("forgotten")
        service.kill()  # the disk is gone
    for script in commands_under(engine, "Restore a backup"):
        deployment.operator.run(script)
    refused = command("serve", env=deployment.operator.env)
    assert refused.returncode == 1 and "policy-service restored --dry-run" in refused.stderr

    look, say_so, tell, go_on = commands_under("Declare it restored")
    assert "nothing was changed" in deployment.operator.run(look)
    assert "epoch 2 has begun" in deployment.operator.run(say_so)
    with deployment.serving() as service:
        assert "restored" in deployment.agent.run(tell)
        deployment.operator.run(go_on)
        deployment.fires("after")
        deployment.agent.env["COUNTERSIGN_JOURNAL"] += "-of-another-host"
        again = deployment.agent._bash(f"{shlex.quote(sys.executable)} my_agent.py forgotten")
        assert again.returncode != 0 and "AlreadyRedeemed" in again.stderr
        assert httpx2.get(service.url + "/readyz").status_code == 200
    assert deployment.fired() == ["before", "forgotten", "after"]
    assert len(list((deployment.operator.folder / "key-backups").glob("keys-*/epoch.json"))) == 1


REFUSED = {
    "a file that is there": ("taken.db", {}, "never overwritten"),
    "a folder that is not": ("nowhere/x.db", {}, "cannot be written"),
    "next to the keys": ("data/keys/x.db", {}, "with both, effects could be signed"),
    "below the keys": ("data/keys/deep/x.db", {}, "with both, effects could be signed"),
    "of a server": ("x.db", {"COUNTERSIGN_DATABASE_URL": "postgresql://user@127.0.0.1/x"}, "pg_dump"),
    "of nothing": ("x.db", {"COUNTERSIGN_DATA_DIR": "empty"}, "policy-service init"),
    "of what is damaged": ("x.db", {"COUNTERSIGN_DATA_DIR": "damaged"}, "cannot be copied"),
}


def test_a_backup_is_one_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for data in ("data", "damaged"):
        shutil.copytree(fresh_data(), data)
    Path("data/keys/deep").mkdir()
    Path("damaged/countersign.db").write_text("not a database at all")
    Path("taken.db").write_text("mine")
    env = environment(Path("data"), tmp_path, 8420)
    for what, (file, more, sentence) in REFUSED.items():
        done = CliRunner().invoke(app, ["backup", file], env=env | more)
        assert (done.exit_code, sentence in done.output) == (1, True), (what, done.output)
    assert Path("taken.db").read_text() == "mine"
    assert [*tmp_path.rglob("x.db*"), *tmp_path.rglob("*.part")] == []
    assert CliRunner().invoke(app, ["backup", "one.db"], env=env).exit_code == 0
    assert Path("one.db").stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect("one.db")) as copy:
        assert copy.execute("SELECT count(*) FROM transactions").fetchone() == (0,)
