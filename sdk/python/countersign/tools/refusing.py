"""What is said of an argument that cannot be staged: where it is wrong and why, without any value of the caller's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from countersign.contract.admission import admit
from countersign.contract.errors import AdmissionError
from countersign.texts import storable, text_of
from countersign.tools.nested import pointer_step, step_and_child

_UNKNOWN_TYPE: Final = "Unable to serialize unknown type"  # how pydantic begins where it names a type alone


def problem(item: Mapping[str, Any]) -> str:
    """One error of pydantic: the place and its message."""
    steps, what = item["loc"], ""
    if steps[-1:] == ("[key]",):  # of a mapping; the step before is the key itself
        steps, what = steps[:-2], "a key: "
    where = "/".join(map(pointer_step, steps))
    instead = (
        " (money is whole minor units: write 1250 for 12.50)" if item["type"] == "int_from_float" else ""
    )
    # whoever reads it gave an argument, no input
    told = storable(item["msg"]).replace("Input should be", "it should be")
    return f"{where}: {what}{told}{instead}"


def why_unwritten(error: Exception) -> str:
    """Why a value cannot be written. What code of its own raised may quote it."""
    text = text_of(error)
    if isinstance(error, AdmissionError) or text.startswith(_UNKNOWN_TYPE):
        return text
    return f"reading it raised {type(error).__name__}"


def is_text(text: str) -> bool:
    """Whether it can be written as UTF-8."""
    try:
        str.encode(text)  # a subclass may have an `encode` of its own
    except UnicodeEncodeError:
        return False
    return True


def at(place: str) -> str:
    """The place in brackets, where there is one."""
    return f" (at {place})" if place else ""


def refused_place(value: object) -> str:
    """A pointer to the innermost value that admission refuses by itself; `""` where that is the whole."""
    for step, child in step_and_child(value) or ():
        try:
            admit(child)
        except AdmissionError:
            return f"/{pointer_step(step)}{refused_place(child)}"
    return ""
