"""`policy-service backup FILE`: a copy of the embedded database, while the service runs or not.

The keys are never in it, and it is refused where the keys are: whoever holds both can sign what was never decided.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy import make_url

from policy_service.channels.operator.socket import is_embedded
from policy_service.channels.operator.speaking import AsJson, say, sentences
from policy_service.errors import StartError
from policy_service.settings import Settings, load_settings
from policy_service.storage.sqlite import copy_to


def backup(
    file: Annotated[Path, typer.Argument(help="Where to; there must be no such file yet.")],
    as_json: AsJson = False,
) -> None:
    """Copy the embedded database to a file, as one snapshot; the service may run meanwhile."""
    with sentences():
        settings = load_settings()
        copy_to(_database(settings), _apart_from_keys(settings, file))
        say({"file": str(file), "bytes": file.stat().st_size}, as_json, f"copied the database to {file}")


def _database(settings: Settings) -> Path:
    url = make_url(settings.database_url)
    if not is_embedded(settings) or not url.database:
        raise StartError("this database is a server's: use pg_dump or a base backup, as docs/backup.md says")
    path = Path(url.database)
    if not path.is_file():
        raise StartError(f"there is no database {path} yet; run: policy-service init")
    return path


def _apart_from_keys(settings: Settings, file: Path) -> Path:
    keys = settings.key_dir.resolve()
    if keys in file.resolve().parents:
        raise StartError(
            f"{file} lies in the folder of the keys: whoever holds both can sign what was never decided; back up the "
            "keys to another place"
        )
    return file
