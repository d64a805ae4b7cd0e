"""The lock is complete, hashed and names nothing of ours; what is imported is declared, and the reverse."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conventions.distributions import OURS, declared, distributions_of, extras, locked, pyproject
from tests.conventions.imports import imports_of
from tests.conventions.repository import ROOT

LOCKS = ("dev", "service", "sdk", "build")
SEPARATE = ("predecessors", "frameworks", "crewai")  # environments of their own: they agree with no other
# The SDK's extras in those, by lock, and the modules that they bring: nothing of that is installed here.
FRAMEWORKS = dict.fromkeys(
    ("langgraph", "openai-agents", "pydantic-ai-slim", "claude-agent-sdk"), "frameworks"
)
FRAMEWORKS["crewai"] = "crewai"
OF_FRAMEWORKS = set("langgraph langchain_core agents pydantic_ai claude_agent_sdk crewai".split())
HEAVY = set("fastapi starlette sqlalchemy sqlmodel cedarpy alembic uvicorn jinja2 psycopg".split())

# Declared and never imported by name: why it is there.
LOADED_BY_OTHERS = {"python-multipart": "FastAPI reads forms with it"}

COMES_WITH = {"anyio": "fastapi", "starlette": "fastapi", "jsonschema": "mcp", "referencing": "jsonschema"}
COMES_WITH |= {"markupsafe": "jinja2", "urllib3": "dulwich"}
COMES_WITH |= dict.fromkeys(("pydantic_core", "typing_extensions"), "pydantic")
COMES_WITH["requests"] = "opentelemetry-exporter-otlp-proto-http"


@pytest.mark.parametrize("name", [*LOCKS, *SEPARATE])
def test_every_pinned_file_has_a_hash_and_every_line_is_known(name: str) -> None:
    text = (ROOT / f"requirements/{name}.txt").read_text()
    entries = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.M)).splitlines()
    assert entries
    for entry in entries:
        pinned = r"[\w.-]+(\[[\w,-]+\])?==[\w.+!-]+( ; [^\\]+?)?( ?--hash=sha256:[0-9a-f]{64})+"
        assert re.fullmatch(pinned, entry), f"not a pinned and hashed line: {entry[:80]!r}"
    assert not {*OURS, "countersign"} & locked(name).keys()


def unmet(wanted: Iterable[Requirement], lock: str) -> list[str]:
    """What a lock does not hold, or in another version."""
    pins = {canonicalize_name(name): pin for name, pin in locked(lock).items()}
    return [
        str(one) for one in wanted if not one.specifier.contains(pins.get(canonicalize_name(one.name), "0"))
    ]


@pytest.mark.parametrize(("which", "lock"), [("service", "service"), ("sdk", "sdk"), ("sdk", "service")])
def test_lock_satisfies_what_the_distribution_declares(which: str, lock: str) -> None:
    assert unmet(declared(which).values(), lock) == [], "run: make lock"


def test_dev_lock_satisfies_the_groups_and_holds_the_extras_for_the_suite_tries_them() -> None:
    groups = pyproject("service")["dependency-groups"]
    wanted = [Requirement(line) for line in [*groups["dev"], *groups["build"]] if isinstance(line, str)]
    assert unmet(wanted, "dev") == [], "run: make lock"
    ours = extras("service") | extras("sdk")
    tried = [one for name, one in ours.items() if name not in FRAMEWORKS]
    assert unmet(tried, "dev") == [], "add to the group dev, and run: make lock"
    for name, lock in FRAMEWORKS.items():
        assert unmet([ours[name], *declared("sdk").values()], lock) == [], "run: make lock"
    assert unmet(map(Requirement, groups["frameworks"]), "frameworks") == [], "run: make lock"


# The image sends traces where its environment says so; the service runs without.
IN_THE_IMAGE = {"opentelemetry-exporter-otlp-proto-http", "opentelemetry-sdk"}


def test_no_requirement_needs_an_extra() -> None:
    needed = {*declared("sdk"), *declared("service")}
    usual = set("anthropic mcp openai opentelemetry-api psycopg pynacl pytest".split())
    assert set(extras("sdk")) == usual | FRAMEWORKS.keys()
    assert set(extras("service")) == IN_THE_IMAGE
    assert set(extras("sdk")) & locked("sdk").keys() == set()
    carried = (set(extras("sdk")) | set(extras("service"))) & locked("service").keys()
    assert carried - needed == IN_THE_IMAGE


def test_the_locks_agree_with_each_other() -> None:
    dev = locked("dev")
    pins = [(lock, name, pin) for lock in LOCKS for name, pin in locked(lock).items()]
    assert [(lock, name) for lock, name, pin in pins if dev.get(name) != pin] == []


def locked_here() -> list[Requirement]:
    """The lines of the dev lock that hold on this machine."""
    text = (ROOT / "requirements/dev.txt").read_text()
    lines = [re.sub(r" --hash.*| ?\\$", "", line) for line in text.splitlines()]
    wanted = [Requirement(line) for line in lines if re.match(r"[\w.-]+(\[.*\])?==", line)]
    return [one for one in wanted if one.marker is None or one.marker.evaluate()]


def test_the_environment_is_the_locked_one() -> None:
    other = [str(one) for one in locked_here() if not one.specifier.contains(version(one.name))]
    assert other == [], "run: make env"


def test_an_extra_that_a_locked_package_asks_of_another_is_locked_with_it() -> None:
    # The pip of Python 3.11 looks for NAME[EXTRA] next to the lock's NAME==1.0, takes the newest there is, and
    # then refuses it as not pinned: a lock without extras stops working at the next release of any of them.
    extras_of = {canonicalize_name(one.name): one.extras for one in locked_here()}
    asked = {
        (canonicalize_name(one.name), frozenset(one.extras))
        for name, chosen in extras_of.items()
        for one in map(Requirement, requires(name) or [])
        if one.extras and any(one.marker is None or one.marker.evaluate({"extra": e}) for e in ["", *chosen])
    }
    assert ("coverage", frozenset({"toml"})) in asked
    assert [(name, wanted) for name, wanted in asked if not wanted <= extras_of[name]] == [], "run: make lock"


def test_sdk_lock_is_small_and_free_of_the_service() -> None:
    assert HEAVY & locked("sdk").keys() == set()
    assert set(declared("sdk")) == set("cryptography httpx2 orjson pydantic rfc8785 rich typer".split())


@pytest.mark.parametrize(
    ("root", "package", "which"),
    [(ROOT, "policy_service", "service"), (ROOT / "sdk/python", "countersign", "sdk")],
)
def test_imports_and_declarations_agree(root: Path, package: str, which: str) -> None:
    tops = {one.imported.split(".")[0] for one in imports_of(root, package)}
    foreign = tops - set(sys.stdlib_module_names) - {"policy_service", "countersign", ""} - OF_FRAMEWORKS
    wanted = (set(declared(which)) | set(extras(which))) - FRAMEWORKS.keys()
    unknown = {top for top in foreign if not distributions_of(top) & wanted}
    undeclared = {top for top in unknown if not _comes_with(top, wanted)}
    assert undeclared == set(), f"add to the dependencies of {which}"
    imported = {name for top in foreign for name in distributions_of(top)}
    assert wanted - imported - LOADED_BY_OTHERS.keys() == set(), f"not imported; drop them from {which}"


def _comes_with(module: str, wanted: set[str]) -> bool:
    """Parts of a library that it pins and re-exports: to name either is one dependency."""
    library = COMES_WITH.get(module)
    return library is not None and (library in wanted or _comes_with(library, wanted))


@pytest.mark.parametrize(
    ("library", "layers"),
    [
        ("fastapi", {"app", "channels"}),
        ("starlette", {"app", "channels"}),
        ("cedarpy", {"pdp", "pap", "facts"}),
        ("jinja2", {"channels"}),
        ("apscheduler", {"jobs"}),
        ("slack_sdk", {"channels", "http_clients"}),
        ("typer", {"cli", "channels"}),
        ("uvicorn", {"cli", "channels"}),
        ("alembic", {"storage"}),
    ],
)
def test_a_library_is_imported_only_in_its_layers(library: str, layers: set[str]) -> None:
    named = [one for one in imports_of(ROOT, "policy_service") if one.imported.split(".")[0] == library]
    assert {one.importer.split(".")[1] for one in named} <= layers
