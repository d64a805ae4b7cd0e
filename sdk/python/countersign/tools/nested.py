"""What is inside a value that a program handed over, before anything writes it as JSON.

A value may hold itself, or share its parts so that it is small in memory and endless as JSON. So the walk calls
nothing of itself and ends at the limits of admission.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Final

from pydantic import BaseModel

from countersign.contract.admission import ARGS_LIMITS, too_deep, too_many_nodes

# A field, a type of a union (`list[any]`) or a key like one. No number and no `repr`: pydantic names other keys so.
_NAME: Final = re.compile(r"[^\W\d][\w\[\],.| -]{0,63}\Z")


def nested(value: object) -> Iterator[tuple[str, object]]:
    """The value and all that is inside it, keys too, each with a pointer for people (`""` is the value itself).

    Raises:
        AdmissionError: `too_deep`, `too_many_nodes`.
    """
    waiting: list[tuple[str, int, object]] = [("", 1, value)]
    seen = 0
    while waiting:
        place, depth, one = waiting.pop()
        seen += 1
        yield place, one
        inside = step_and_child(one)
        if inside is None:
            continue
        if depth > ARGS_LIMITS.max_depth:
            raise too_deep(ARGS_LIMITS)
        if isinstance(one, Mapping):
            yield from ((place, key) for key in one)
        found: list[tuple[str, int, object]] = []
        for step, child in inside:
            if seen + len(waiting) + len(found) >= ARGS_LIMITS.max_nodes:
                raise too_many_nodes(ARGS_LIMITS)
            found.append((f"{place}/{pointer_step(step)}", depth + 1, child))
        waiting += reversed(found)


def pointer_step(step: object) -> str:
    """An index, a field or a key as a pointer for people has it; `*` for a key that is no plain name, for a key is a
    value of the caller's.
    """
    if type(step) is int and 0 <= step < ARGS_LIMITS.max_nodes:
        return str(step)
    return step if type(step) is str and _NAME.match(step) else "*"


def step_and_child(value: object) -> Iterable[tuple[object, object]] | None:
    """Of a container each step into it, with what is there; None of anything else."""
    if isinstance(value, Mapping):
        return ((key if isinstance(key, str) else None, value[key]) for key in value)
    if isinstance(value, list | tuple | set | frozenset | deque):
        return enumerate(value)
    if isinstance(value, BaseModel):
        return vars(value).items()
    if is_dataclass(value) and not isinstance(value, type):
        return ((one.name, getattr(value, one.name, None)) for one in fields(value))
    return None
