"""The documents of the repository, cut into what can be checked: fenced blocks, links and commands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.conventions.repository import ROOT, texts

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w+-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```\s*$", re.M | re.S
)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)|!\[[^\]]*\]\((?P<image>[^)\s]+)\)")
INLINE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """One fenced block: its line, language and text."""

    document: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def documents() -> list[tuple[str, str]]:
    """Every markdown file, by its path from the root."""
    return [(name, text) for name, text in texts() if name.endswith(".md")]


def blocks(document: str, text: str) -> list[Block]:
    found = [(hit, text.count("\n", 0, hit.start()) + 1) for hit in FENCE.finditer(text)]
    return [Block(document, line, hit["language"], hit["text"]) for hit, line in found]


def all_blocks(*languages: str) -> list[Block]:
    found = [block for name, text in documents() for block in blocks(name, text)]
    return [block for block in found if not languages or block.language in languages]


def commands() -> list[tuple[str, str]]:
    """(place, command line) of every command in a document, in blocks and in sentences."""
    typed = [
        (f"{block.document}:{block.line + number}", line.removeprefix("$ ").strip())
        for block in all_blocks("console", "sh")
        for number, line in enumerate(block.text.splitlines(), 1)
        if line.startswith("$ ") or (block.language == "sh" and line.strip() and not line.startswith("#"))
    ]
    inline = [(name, code) for name, text in documents() for code in INLINE.findall(FENCE.sub("", text))]
    return typed + [
        (name, code) for name, code in inline if re.match(r"(make|policy-service|countersign) [a-z]", code)
    ]


def links() -> list[tuple[str, Path, str]]:
    """(place, file, anchor) of every link to a file of the repository."""
    found = []
    for name, text in documents():
        for hit in LINK.finditer(FENCE.sub("", text)):
            link = hit["target"] or hit["image"]
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = link.partition("#")
            path = (ROOT / name).parent / target if target else ROOT / name
            found.append((f"{name} -> {link}", path, anchor))
    return found


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub builds them."""
    headings = re.findall(r"^#+ +(.+?) *$", FENCE.sub("", text), re.M)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def named_pages() -> list[tuple[str, Path]]:
    """(place, file) of every page under docs/ that a text of the repository names by its path."""
    page = re.compile(r"(?<![\w/.])docs/[\w/-]+\.md")
    return [(f"{name}: {hit}", ROOT / hit) for name, text in texts() for hit in page.findall(text)]
