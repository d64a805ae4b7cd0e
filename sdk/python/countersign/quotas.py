"""The error of an agent that asks for more than it may at once; see the tree in errors.py."""

from __future__ import annotations

from countersign.errors import ServiceRefused


class OverQuota(ServiceRefused):
    """This agent asked for more than it may at once, and for longer than a call waits: nothing was taken, nothing
    fired. `retry_after` is in seconds; `setting` is what an operator would change.
    """

    code = "over_quota"

    @property
    def setting(self) -> str | None:
        """The service's setting that is the limit, where it says so."""
        return str(self.extras["setting"]) if "setting" in self.extras else None

    @property
    def retry_after(self) -> int | None:
        """Seconds after which the same request may be taken, where the service says so."""
        seconds = self.extras.get("retry_after_seconds")
        return seconds if type(seconds) is int else None
