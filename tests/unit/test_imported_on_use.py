"""What only some deployments use is imported when it is configured or first used: each package costs memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from alembic.script import ScriptDirectory

from policy_service.storage import migrations

ONLY_SOME_NEED = ("aiohttp", "alembic", "dulwich", "psycopg", "slack_sdk", "webauthn")
SERVE = """
import sys
import policy_service.app, policy_service.channels.admin.server, policy_service.cli
from policy_service.storage.migrations import migrate
migrate(sys.argv[1])
print(*sorted(set(sys.argv[2:]) & sys.modules.keys()))
"""


def test_serving_an_up_to_date_database_imports_no_optional_package(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/countersign.db"
    migrations.migrate(url)
    done = subprocess.run(
        [sys.executable, "-c", SERVE, url, *ONLY_SOME_NEED], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def test_the_revisions_named_by_the_files_are_those_of_alembic() -> None:
    scripts = ScriptDirectory.from_config(migrations._config()).walk_revisions()
    assert migrations._revisions() == [script.revision for script in scripts]
