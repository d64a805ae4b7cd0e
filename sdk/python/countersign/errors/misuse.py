"""The caller's bugs: the program asked for something that cannot be kept."""

from __future__ import annotations

from countersign.errors.roots import MisuseError


class OutsideTransaction(MisuseError):
    """A gated tool was called where no transaction is watching."""

    code = "outside_transaction"


class NotStageable(MisuseError):
    """A call that cannot be described completely before it happens."""

    code = "not_stageable"


class PlaceholderUsed(MisuseError, TypeError):
    """A staged call has no result before the commit, and none is invented."""

    code = "placeholder_used"


class RegistrationError(MisuseError):
    """A tool, compensator or manifest that contradicts itself or another."""

    code = "registration"


class RerunDiffers(MisuseError):
    """The body staged another list of calls twice in a row, so that no answer could ever fit."""

    code = "rerun_differs"

    def __init__(self, key: str, position: int, before: str | None, now: str | None) -> None:
        self.key, self.position, self.before, self.now = key, position, before, now
        super().__init__(
            f"transaction {key!r} stages another list of calls at every rerun; call {position} was"
            f" {before or 'absent'} and is now {now or 'absent'}. Make the body name the same calls with the same"
            " arguments each time (no clocks, no random values), or use another key for another intent."
        )


class SettingsError(MisuseError):
    """A setting is missing or unsafe."""

    code = "settings"


def require_writable(what: str, text: str) -> None:
    """Half of a surrogate pair can be neither sent nor kept.

    Raises:
        MisuseError: the text has one; ``what`` names it.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MisuseError(f"{what} is text that can be written as UTF-8, and {text!r} is not") from None
