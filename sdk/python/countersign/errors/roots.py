"""The root of the tree of errors and its first branches: whose turn it is to do something."""

from __future__ import annotations

from typing import ClassVar


class CountersignError(Exception):
    """The root. `code` is for programs, the text for people and agents."""

    code: ClassVar[str] = "countersign_error"


class MisuseError(CountersignError):
    """The program asked for something that cannot be kept; nothing was sent and nothing fired."""

    code = "misuse"


class Stopped(CountersignError):
    """Somebody or something said no, or not yet. Live effects have been undone."""

    code = "stopped"


class WorldError(CountersignError):
    """The world's fault: nothing is wrong with the call."""

    code = "world"
