"""What people are not shown: values the manifest calls secret, wherever they would appear.

A value is hidden when it is a secret, lies inside one, or holds one; its byte count is told instead. The agent's own
view is not touched (it sent the value), and the digest binds it all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from countersign.contract import JSON, canonicalize, pointer_to


def is_hidden(secret: Sequence[str], pointer: str) -> bool:
    """Whether showing what stands at ``pointer`` would show a secret."""
    return any(
        not one or one == pointer or one.startswith(f"{pointer}/") or pointer.startswith(f"{one}/")
        for one in secret
    )


def hidden_text(value: JSON) -> str:
    """What stands in place of a hidden value."""
    return f"(hidden value, {len(canonicalize(value))} bytes)"


def without_secrets(args: Mapping[str, JSON], secret: Sequence[str]) -> dict[str, JSON]:
    """The arguments with every hidden one replaced by its byte count."""
    return {
        name: hidden_text(value) if is_hidden(secret, pointer_to(name)) else value
        for name, value in args.items()
    }
