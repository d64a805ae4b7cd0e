"""Writes the table of modules in each layer's README from the modules' own first sentences.

`python -m tests.conventions.readme_per_folder` rewrites what follows the marker; a test compares: no table is stale,
and a module that does not open with one clear sentence is noticed.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.conventions.repository import ROOT

MARKER = "<!-- modules -->\n"


def layers() -> list[Path]:
    """Every package of the service, but for the migrations; and those of the SDK whose page has the marker."""
    inits = sorted((ROOT / "policy_service").rglob("__init__.py"))
    sdk = sorted((ROOT / "sdk" / "python" / "countersign").glob("*/README.md"))
    pages = [page.parent for page in sdk if MARKER in page.read_text()]
    return [*(init.parent for init in inits if "migrations" not in init.parts), *pages]


def page(layer: Path) -> str:
    """The README as it should stand: what people wrote, then the table."""
    written = (layer / "README.md").read_text().partition(MARKER)[0]
    modules = sorted(path for path in layer.glob("*.py") if path.name != "__init__.py")
    rows = "".join(f"| `{path.name}` | {first_sentence(path)} |\n" for path in modules)
    table = f"\n## Modules\n\n| module | what it is |\n|---|---|\n{rows}" if rows else ""
    return f"{written}{MARKER}{table}"


def first_sentence(path: Path) -> str:
    text = " ".join((ast.get_docstring(ast.parse(path.read_bytes())) or "").split("\n\n")[0].split())
    sentence = re.match(r".*?[.](?= |$)", text)
    return (sentence[0] if sentence else text).rstrip(".:").replace("|", "\\|")


if __name__ == "__main__":
    for folder in layers():
        (folder / "README.md").write_text(page(folder))
