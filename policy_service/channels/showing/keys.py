"""Names of arguments that could be taken for each other, or that the reviewed schema does not know.

Pure. Who reads `amount` reads no second `amount ` beside it: the tool may use either.
"""

import unicodedata
from collections import defaultdict
from collections.abc import Sequence

from policy_service.channels.showing.findings import Finding
from policy_service.channels.showing.lookalikes import twin_of
from policy_service.queries.effect_text import NOT_IN_THE_SCHEMA, ArgRow


def findings_of_names(rows: Sequence[ArgRow]) -> dict[str, tuple[Finding, ...]]:
    """What is to be said of names, by name. Where the schema knows none, the page says that of the whole tool."""
    alike: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        alike[_read(row.name)].append(row.name)
    unknown = {row.name for row in rows if row.type_text == NOT_IN_THE_SCHEMA}
    if len(unknown) == len(rows):
        unknown = set()
    found: dict[str, tuple[Finding, ...]] = {}
    for row in rows:
        about: tuple[Finding, ...] = ()
        if row.name in unknown:
            about += (
                Finding(
                    "lookalike", "not in the schema", "The reviewed schema has no argument of this name."
                ),
            )
        if len(alike[_read(row.name)]) > 1:
            about += (
                Finding(
                    "lookalike",
                    "a name like another",
                    "Another argument has a name that reads like this one.",
                ),
            )
        if about:
            found[row.name] = about
    return found


def _read(name: str) -> str:
    """A name as a hurried reader takes it: letters and digits, in one case, each as the letter it looks like."""
    plain = "".join(twin_of(char, in_address=True) or char for char in unicodedata.normalize("NFKC", name))
    return "".join(char for char in plain.casefold() if char.isalnum())
