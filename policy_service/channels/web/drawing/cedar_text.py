"""Cut Cedar text into coloured stretches. It is shown, never parsed: the engine has done that.

Every character of the text is in the stretches, in order.
"""

import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""
    (?P<c> //[^\n]* )
  | (?P<s> "(?:[^"\\\n]|\\.)*" )
  | (?P<a> @[A-Za-z_]\w* )
  | (?P<d> (?<!\w)\d+(?!\w) )
  | (?P<k> \b(?:permit|forbid|when|unless|if|then|else|in|has|like|is|true|false)\b )
    """,
    re.VERBOSE,
)


def stretches(text: str) -> Iterator[tuple[str, str]]:
    """(css class or "", text), from the first character to the last."""
    end = 0
    for match in _TOKEN.finditer(text):
        if match.start() > end:
            yield "", text[end : match.start()]
        yield match.lastgroup or "", match.group()
        end = match.end()
    if end < len(text):
        yield "", text[end:]
