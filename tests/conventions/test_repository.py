"""What no file of the repository may hold, and what every folder a stranger opens must hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conventions.readme_per_folder import MARKER, layers, page
from tests.conventions.repository import ROOT, files, texts


def _spelled(pattern: str) -> re.Pattern[str]:
    """A pattern written with `~` inside each word, so that this file does not hold what it forbids."""
    return re.compile(pattern.replace("~", ""), re.M)


FORBIDDEN = {
    "the host of a package registry": _spelled(
        r"py~pi\.org|python~hosted\.org|npm~js\.(?:org|com)|yarn~pkg\.com|deb\.~debian\.org|~docker\.io|g~hcr\.io"
    ),
    "a path of one machine": _spelled(
        r"(?<![\w.])/(?:wo~rk|ro~ot|Us~ers|ho~me/\w+)/|/opt/(?:py~pi|whe~els)\b"
    ),
    "a path outside the repository that is not recorded data": _spelled(r"\.\./sh~ared(?!/data/)"),
    "unfinished work": _spelled(r"\b(?:TO~DO|FIX~ME|XX~X|HA~CK)\b"),
    "a name on the package index that is not ours": _spelled(
        r"(?:pip|uv|pipx)\S* (?:install|add) counter~sign\b(?!-)"
    ),
    "a conflict marker": _spelled(r"^(?:<{7}|>{7}|={7})(?: |$)"),
    "white space at the end of a line": _spelled(r"[ \t]+$"),
}

# Texts that are not ours to reword, and vectors whose faults are their purpose.
NOT_OURS = re.compile(
    r"^(?:LICENSE|sdk/python/LICENSE|web/static/vendor/.*|tests/vectors/.*|requirements/.*\.txt)$"
)
ALWAYS = {"the host of a package registry", "a path of one machine", "a conflict marker"}


def faults_in(name: str, text: str) -> list[str]:
    rules = {why: rule for why, rule in FORBIDDEN.items() if why in ALWAYS or not NOT_OURS.match(name)}
    hits = [(why, hit) for why, rule in rules.items() for hit in rule.finditer(text)]
    lines = [text.count("\n", 0, hit.start()) + 1 for _, hit in hits]
    return [f"{name}:{line}: {why}: {hit[0]!r}" for line, (why, hit) in zip(lines, hits, strict=True)]


def test_no_file_holds_what_is_forbidden() -> None:
    assert [fault for name, text in texts() for fault in faults_in(name, text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "--index-url https://py~pi.org/simple",
        "see /wo~rk/main/x",
        "open('/ro~ot/key')",
        "../sh~ared/design.md",
        "# TO~DO later",
        "pip install counter~sign",
        "trailing \n",
    ],
)
def test_a_forbidden_text_is_seen(text: str) -> None:
    assert len(faults_in("somewhere.md", text.replace("~", ""))) == 1


@pytest.mark.parametrize(
    "text",
    ["../shared/data/tau-airline", "pip install countersign-sdk", "/workspace/x", "the work/life balance"],
)
def test_an_innocent_text_is_left_alone(text: str) -> None:
    assert faults_in("somewhere.md", text) == []


def test_no_module_hides_behind_a_name_that_says_nothing() -> None:
    nameless = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}
    assert [str(path.relative_to(ROOT)) for path in files() if path.stem in nameless] == []


def test_nothing_lies_in_the_hall_but_what_belongs_there() -> None:
    """A test that writes into the folder it was started in leaves its files here, and they get committed."""
    known = {
        *{".ci", ".dockerignore", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile"},
        *{"README.md", "SECURITY.md", "deploy", "docs", "examples", "policies", "policy_service", "pyproject.toml"},
        *{"requirements", "sdk", "tests", "web"},
    }  # fmt: skip
    assert {path.relative_to(ROOT).parts[0] for path in files()} - known == set()


def test_no_large_file_slips_in() -> None:
    limit = 1_500_000
    assert [str(path.relative_to(ROOT)) for path in files() if path.stat().st_size > limit] == []


# --------------------------------------------------------------------------------------------- the layers


def _packages() -> list[Path]:
    """Every folder a stranger would open: the layers, the SDK and the tops of the rest."""
    tops = [ROOT / top for top in ("policies", "deploy", "tests", "examples", "requirements", "web")]
    inits = [*(ROOT / "policy_service").rglob("__init__.py"), *(ROOT / "sdk/python").rglob("__init__.py")]
    layers = [init.parent for init in inits if not {"migrations", "wire"} & set(init.parts)]
    return sorted({*tops, *layers})


def _says_what_it_is(folder: Path) -> bool:
    readme = (ROOT / "sdk/python" if folder == ROOT / "sdk/python/countersign" else folder) / "README.md"
    lines = [line for line in readme.read_text().splitlines() if line.strip()] if readme.is_file() else []
    return len(lines) >= 3 and lines[0].startswith("# ")


def test_every_package_has_a_readme_with_a_title() -> None:
    assert [str(path.relative_to(ROOT)) for path in _packages() if not _says_what_it_is(path)] == []


def test_the_tables_of_modules_are_those_the_modules_make() -> None:
    pages = {layer: (layer / "README.md").read_text() for layer in layers()}
    stale = [str(layer.relative_to(ROOT)) for layer in pages if pages[layer] != page(layer)]
    assert stale == [], "run: make pages"
    lines = [line for text in pages.values() for line in text.partition(MARKER)[2].splitlines()]
    assert [line for line in lines if line.startswith("| `") and len(line.split(" | ")[1]) < 12] == [], (
        "a module opens with one sentence that says what it is"
    )
