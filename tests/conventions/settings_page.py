"""Generate docs/reference/settings.md: `python -m tests.conventions.settings_page`.

A test generates the page again and compares.
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

PAGE = ROOT / "docs/reference/settings.md"

HEAD = """\
# Settings

Generated from `policy_service/settings.py` by `make pages`; do not edit.

A setting is read from the environment variable below. Without it, it comes from `countersign.toml`, there in lower
case and without `COUNTERSIGN_`; else it has its default. `COUNTERSIGN_CONFIG` names the file; by default it is in
the data folder. An unknown name in the file is refused at start. By default the service listens on loopback only,
without the development sign-in and without API keys.

No client of the service reads `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`, `SSL_CERT_DIR`
or `.netrc`, because such a proxy could answer for the policies' repository or a sign-in provider. Plain http always
connects directly. For https set `https_proxy` and, for a private certificate authority, `ca_file`. Hosts of facts,
directories and webhooks never use a proxy, because the service checks the address it connects to; each has its own
`ca_file`. The `ssh` of this host has its own settings.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, names in _sections():
        rows = "\n".join(_row(name, Settings.model_fields[name]) for name in names)
        parts.append(f"## {title}\n\n| setting | default | meaning |\n|---|---|---|\n{rows}\n")
        parts += [_members(name, table) for name in names if (table := _table(name)) is not None]
    return "\n".join(parts)


def _table(name: str) -> type[BaseModel] | None:
    """The model of a setting that is a table whose members all have a description."""
    annotation = Settings.model_fields[name].annotation
    kinds = filter(inspect.isclass, (annotation, *get_args(annotation)))
    tables = [one for one in kinds if issubclass(one, BaseModel)]
    described = [table for table in tables if all(field.description for field in table.model_fields.values())]
    return described[0] if described else None


def _members(name: str, table: type[BaseModel]) -> str:
    rows = "\n".join(_member(member, field) for member, field in table.model_fields.items())
    return f"In the table `[{name}]`:\n\n| member | default | meaning |\n|---|---|---|\n{rows}\n"


def _member(name: str, field: FieldInfo) -> str:
    default = "" if field.is_required() or field.default is None else f"`{_shown(field.default)}`"
    return f"| `{name}`{', required' if field.is_required() else ''} | {default} | {field.description} |"


def _sections() -> list[tuple[str, list[str]]]:
    """The settings in the order and under the headings of the source."""
    sections: list[tuple[str, list[str]]] = []
    for line in inspect.getsource(settings.Settings).splitlines():
        if heading := re.match(r"    # -- (.+?) -+$", line):
            sections.append((heading[1].partition(": docs/")[0].capitalize(), []))
        elif (name := line.strip().partition(":")[0]) in Settings.model_fields and re.match(r"    \w", line):
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
