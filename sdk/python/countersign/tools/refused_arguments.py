"""Texts of arguments that cannot be written as JSON, without any of the caller's values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from countersign.contract.admission import admit
from countersign.contract.errors import AdmissionError
from countersign.texts import storable, text_of
from countersign.tools.results import children_of, pointer_step

_UNKNOWN_TYPE: Final = (
    "Unable to serialize unknown type"  # how a pydantic message begins that names only a type
)


def validation_text(item: Mapping[str, Any]) -> str:
    """One pydantic error: its location and message."""
    steps, what = item["loc"], ""
    if steps[-1:] == ("[key]",):  # of a mapping; the step before is the key itself
        steps, what = steps[:-2], "a key: "
    where = "/".join(map(pointer_step, steps))
    instead = (
        " (money is whole minor units: write 1250 for 12.50)" if item["type"] == "int_from_float" else ""
    )
    # for the reader it is an argument, not input
    message = storable(item["msg"]).replace("Input should be", "it should be")
    return f"{where}: {what}{message}{instead}"


def serialization_error_text(error: Exception) -> str:
    """Why a value cannot be serialised. The text of an exception from the value's own code is dropped: it may quote the
    value.
    """
    text = text_of(error)
    if isinstance(error, AdmissionError) or text.startswith(_UNKNOWN_TYPE):
        return text
    return f"reading it raised {type(error).__name__}"


def bracketed(place: str) -> str:
    """The location in brackets, if there is one."""
    return f" (at {place})" if place else ""


def refused_pointer(value: object) -> str:
    """A pointer to the innermost value that admission refuses by itself; `""` if only the whole is refused."""
    for step, child in children_of(value) or ():
        try:
            admit(child)
        except AdmissionError:
            return f"/{pointer_step(step)}{refused_pointer(child)}"
    return ""
