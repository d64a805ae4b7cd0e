"""A sentence in the repository is either run or short: blocks, commands and links are true."""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Callable
from typing import Any

import cedarpy
import pytest
import typer.main

from tests.conventions.documents import (
    Block,
    all_blocks,
    anchors,
    blocks,
    commands,
    documents,
    links,
    named_pages,
)
from tests.conventions.repository import ROOT, texts

LANGUAGES = {"python", "console", "sh", "cedar", "json", "toml", "yaml", "text", "mermaid", "dockerfile"}
PARSERS: dict[str, Callable[[str], object]] = {"json": json.loads, "toml": tomllib.loads}
PARSERS["cedar"] = cedarpy.policies_to_json_str
MAKEFILE = (ROOT / "Makefile").read_text()


def test_every_block_claims_a_language_that_is_checked() -> None:
    unknown = [f"{block}: {block.language!r}" for block in all_blocks() if block.language not in LANGUAGES]
    assert unknown == [], f"use one of {sorted(LANGUAGES)}"


def test_the_readme_is_one_picture_and_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(re.findall(r"!\[", text)) == 1
    first = next(block for block in blocks("README.md", text) if block.language in {"console", "sh"})
    assert [line.removeprefix("$ ").split("#")[0].strip() for line in first.text.splitlines()] == [
        "make demo",
        "make test",
    ]


def fault_in_block(block: Block) -> str | None:
    try:
        PARSERS[block.language](block.text)
    except ValueError as error:
        return f"{block}: {error}"
    return None


def test_every_data_block_parses() -> None:
    assert list(filter(None, map(fault_in_block, all_blocks(*PARSERS)))) == []


@pytest.mark.parametrize("language", PARSERS)
def test_a_data_block_that_does_not_parse_is_seen(language: str) -> None:
    assert fault_in_block(Block("x.md", 1, language, "permit ( {"))


def test_every_link_leads_to_a_file() -> None:
    assert [place for place, path, _ in links() if not path.exists()] == []


def test_every_anchor_is_a_heading_of_its_page() -> None:
    pages = [(place, path, anchor) for place, path, anchor in links() if anchor and path.suffix == ".md"]
    assert len(pages) > 20
    assert [place for place, path, anchor in pages if anchor not in anchors(path.read_text())] == []


def test_every_page_that_code_or_text_names_exists() -> None:
    pages = named_pages()
    assert len(pages) > 20
    assert [place for place, path in pages if not path.is_file()] == []


def test_every_name_that_links_to_a_module_is_defined_there() -> None:
    """`[`name`](module.py)`: a reader who follows it finds the function."""
    found = re.compile(r"\[`(\w+)`\]\(([^)\s]+\.py)\)")
    pages = [((ROOT / document).parent, text) for document, text in documents()]
    linked = [(name, folder / target) for folder, text in pages for name, target in found.findall(text)]
    assert len(linked) > 10
    texts = [(path.name, name, path.read_text()) for name, path in linked]
    head = r"^(?:async )?(?:def|class) {}\b"
    missing = [
        f"{file}: {name}" for file, name, text in texts if not re.search(head.format(name), text, re.M)
    ]
    assert missing == []


# --------------------------------------------------------------------------------------------- commands


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):(?!=)", MAKEFILE, re.M))


def test_the_folders_of_the_fast_tests_exist() -> None:
    lists = re.findall(r"\$\(addprefix ([\w/]+),([^)]+)\)", MAKEFILE)
    folders = [ROOT / prefix / name for prefix, names in lists for name in names.split()]
    assert len(folders) > 10
    assert [str(folder) for folder in folders if not folder.is_dir()] == []


def fault_in_command(line: str) -> str | None:
    """What is wrong with a command a document shows, or None."""
    words = shlex.split(line.partition(" #")[0].replace("[", " ").replace("]", " "))
    words = words[next((i for i, word in enumerate(words) if not re.match(r"[A-Z_]+=", word)), 0) :]
    known = {"make": _fault_in_make, "policy-service": _fault_in_typer, "countersign": _fault_in_typer}
    if words[0] in known:
        return known[words[0]](words)
    return None if words[0] in OTHER_COMMANDS else f"{words[0]!r} is no command of ours"


OTHER_COMMANDS = {
    *(".", "docker", "docker-compose", "curl", "git", "python", ".venv/bin/python"),
    # docs/how-to/backup.md, which is run
    *("cp", "mkdir", "find", "chmod", "export", "pg_dump", "createdb", "pg_restore"),
}


def _fault_in_make(words: list[str]) -> str | None:
    targets = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
    unknown = set(targets) - make_targets()
    return f"the Makefile has no target {sorted(unknown)}" if unknown else None


def _fault_in_typer(words: list[str]) -> str | None:
    package = "policy_service" if words[0] == "policy-service" else "countersign"
    module = __import__(f"{package}.cli", fromlist=["app"])
    command: Any = typer.main.get_command(module.app)
    for word in words[1:]:
        if word.startswith("--"):
            options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
            if word.partition("=")[0] not in options | {"--help"}:
                return f"{command.name!r} has no option {word!r}"
        elif hasattr(command, "commands"):
            if word not in command.commands:
                return f"{command.name!r} has no command {word!r}"
            command = command.commands[word]
    return None


def test_every_command_in_the_documents_exists() -> None:
    found = commands()
    assert len(found) > 10
    assert [f"{place}: {line}: {fault}" for place, line in found if (fault := fault_in_command(line))] == []


MADE_UP = ["make coffee", "policy-service brew", "countersign tools --brew", "sudo make me"]


@pytest.mark.parametrize("line", MADE_UP)
def test_a_command_that_does_not_exist_is_seen(line: str) -> None:
    assert fault_in_command(line)


def test_a_command_of_the_sdk_that_is_said_names_the_module_of_the_tools() -> None:
    """Without --tools these end in an error; a name in a document's running text is no command to type."""
    bare = r"countersign (?:resume|worker|tools export|tools list)\b(?! --tools)"
    shown = [(str(block), hit) for block in all_blocks() for hit in re.findall(bare, block.text)]
    modules = [(name, text) for name, text in texts() if is_product(name)]
    said = [(name, one) for name, text in modules for one in strings(text) if re.search(f"`{bare}", one)]
    assert shown + said == []


def is_product(name: str) -> bool:
    return name.endswith(".py") and name.startswith(("sdk/python/countersign/", "policy_service/"))


def strings(text: str) -> list[str]:
    """What a module may say: its strings, but for docstrings; several in a row are one."""
    tree = ast.parse(text)
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in silent]
    return [node.value for node in found if isinstance(node.value, str)]


def test_the_first_five_minutes_begin_with_the_command_on_the_path() -> None:
    """In an empty folder nothing of the checkout is on it."""
    after = (ROOT / "README.md").read_text().partition("## The first five minutes")[2]
    first = next(block for block in blocks("README.md", after) if block.language == "console")
    assert [line.split("#")[0].strip() for line in first.text.splitlines()] == [
        "$ . CHECKOUT/.venv/bin/activate",
        "$ policy-service dev my_agent.py",
    ]


def test_every_target_of_the_makefile_is_documented_and_helps() -> None:
    helped = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.M))
    assert helped == make_targets()
    assert helped >= {"demo", "test", "test-long", "check", "bench", "airline", "lock"}
    guides = " ".join(text for name, text in documents() if name in {"README.md", "CONTRIBUTING.md"})
    assert [target for target in sorted(helped) if f"make {target}" not in guides] == []
