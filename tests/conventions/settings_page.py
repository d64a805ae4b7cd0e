"""Writes docs/settings.md from the settings themselves: `python -m tests.conventions.settings_page`.

The page is never edited by hand; a test writes it again and compares.
"""

from __future__ import annotations

import inspect
import re
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from policy_service import settings
from policy_service.settings import Settings
from policy_service.settings_parsing import ENV_PREFIX
from tests.conventions.repository import ROOT

PAGE = ROOT / "docs" / "settings.md"

HEAD = """\
# Settings

Made from `policy_service/settings.py` by `python -m tests.conventions.settings_page`; a test keeps it true.

Each setting is read from the environment under the name below, else from `countersign.toml` (there in lower
case, without `COUNTERSIGN_`), else it has the default shown. The file is the one that `COUNTERSIGN_CONFIG`
names, else the one in the data folder. An unknown name in the file is refused at start.
With nothing set the service listens on loopback only, without the development sign-in and without API keys.

No client of the service reads `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`, `SSL_CERT_DIR` or
`.netrc`: such a proxy could answer for the policies' repository or a sign-in provider. Plain http always goes direct.
For https set `https_proxy` and, behind a company's own authority, `ca_file`. Hosts of facts, directories and webhooks
are never asked through a proxy, because the service checks the address that it connects to; they have a `ca_file` each.
For ssh, the `ssh` of this host has settings of its own.
"""


def page() -> str:
    """The whole page, as it should stand in docs/."""
    parts = [HEAD]
    for title, names in _sections():
        rows = "\n".join(_row(name, Settings.model_fields[name]) for name in names)
        parts.append(f"## {title}\n\n| setting | default | what it is |\n|---|---|---|\n{rows}\n")
        parts += [_members(name, table) for name in names if (table := _table(name)) is not None]
    return "\n".join(parts)


def _table(name: str) -> type[BaseModel] | None:
    """The table of the file that a setting is, where each of its members says what it is."""
    annotation = Settings.model_fields[name].annotation
    tables = [
        one
        for one in (annotation, *get_args(annotation))
        if inspect.isclass(one) and issubclass(one, BaseModel)
    ]
    described = [table for table in tables if all(field.description for field in table.model_fields.values())]
    return described[0] if described else None


def _members(name: str, table: type[BaseModel]) -> str:
    rows = "\n".join(_member(member, field) for member, field in table.model_fields.items())
    return f"In the table `[{name}]`:\n\n| member | default | what it is |\n|---|---|---|\n{rows}\n"


def _member(name: str, field: FieldInfo) -> str:
    default = "" if field.is_required() or field.default is None else f"`{_shown(field.default)}`"
    return f"| `{name}`{', required' if field.is_required() else ''} | {default} | {field.description} |"


def _sections() -> list[tuple[str, list[str]]]:
    """The settings in the order and under the headings of their source."""
    sections: list[tuple[str, list[str]]] = []
    for line in inspect.getsource(settings.Settings).splitlines():
        if heading := re.match(r"    # -- (.+?) -+$", line):
            sections.append((heading[1].capitalize(), []))
        elif (name := line.strip().partition(":")[0]) in Settings.model_fields and line.startswith(
            "    " + name
        ):
            sections[-1][1].append(name)
    return sections


def _row(name: str, field: FieldInfo) -> str:
    meaning = (field.description or "").replace("|", "\\|")
    default = (
        "" if field.default in ("", None, ()) or str(field.default) == "." else f"`{_shown(field.default)}`"
    )
    return f"| `{ENV_PREFIX}{name.upper()}` | {default} | {meaning} |"


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    PAGE.write_text(page())
