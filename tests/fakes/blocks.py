"""What a reader of a Slack message has before them: its words, its buttons, its arguments; and what Slack would refuse.

It reads the JSON that is sent, as a client does, and knows nothing of how it was made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from slack_sdk.models.blocks import Block
from slack_sdk.models.views import View

# What a client turns into something else than the characters that stand there.
PARSED = set("mrkdwn markdown emoji user usergroup channel broadcast team color image".split())
_HOLDERS = set("rich_text rich_text_section rich_text_preformatted rich_text_quote context actions".split())


def nodes(value: object) -> Iterator[dict[str, Any]]:
    """Every object in it, from the outside in."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from nodes(one)


def kinds(blocks: object) -> set[str]:
    """Every `type` in it."""
    return {node["type"] for node in nodes(blocks) if "type" in node}


def words(blocks: object) -> str:
    """All that is read, a paragraph a line; a date as its fallback."""
    return "\n".join(_paragraphs(blocks))


def _paragraphs(blocks: object) -> Iterator[str]:
    for node in nodes(blocks):
        kind = node.get("type", "")
        if kind == "plain_text":
            yield node["text"]
        elif kind.startswith("rich_text_"):
            yield "".join(part.get("fallback") or part["text"] for part in node["elements"])


def values(blocks: object) -> list[str]:
    """The bold stretches."""
    return [node["text"] for node in nodes(blocks) if node.get("style") == {"bold": True}]


def code(blocks: object) -> str:
    """The preformatted text."""
    blocks = [node for node in nodes(blocks) if node.get("type") == "rich_text_preformatted"]
    return "".join(part["text"] for node in blocks for part in node["elements"])


def buttons(blocks: object) -> dict[str, dict[str, Any]]:
    """By action."""
    return {node["action_id"]: node for node in nodes(blocks) if node.get("type") == "button"}


def refused(blocks: Sequence[dict[str, Any]]) -> list[str]:
    """Why Slack would not take a message, or would draw it otherwise than it is written."""
    why = [f"{len(blocks)} blocks"] if len(blocks) > 50 else []
    size = sum(len(text.encode("utf-16-le")) // 2 for text in _strings(list(blocks)))
    why += [f"{size} characters"] if size > 10_000 else []
    for block in Block.parse_all(blocks):
        block.to_dict()
    return why + unfit(blocks)


def refused_view(view: dict[str, Any]) -> list[str]:
    """The same of a view."""
    View(**view).to_dict()
    size = sum(len(text.encode("utf-16-le")) // 2 for text in _strings(view["blocks"]))
    return ([f"{size} characters"] if size > 10_000 else []) + unfit(view)


def unfit(blocks: object) -> list[str]:
    """What would be parsed, and what Slack refuses although its SDK does not."""
    why = [f"{kind} is parsed" for kind in sorted(kinds(blocks) & PARSED)]
    for node in nodes(blocks):
        kind = node.get("type")
        if kind in ("text", "plain_text", "link") and not node.get("text"):
            why.append(f"an empty {kind}")
        if kind == "plain_text" and node.get("emoji") is not False:
            why.append(f"emoji in {node['text']!r}")
        if kind in _HOLDERS and not node["elements"]:
            why.append(f"an empty {kind}")
    return why


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _strings(one)
