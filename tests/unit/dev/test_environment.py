"""What the script of `policy-service dev` finds in its environment."""

import sys

import pytest

from policy_service.channels.admin.dev import server


@pytest.mark.parametrize("terminal", [True, False])
def test_output_is_line_buffered_at_a_terminal(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # as in many containers
    monkeypatch.setenv("COUNTERSIGN_URL", "of another service")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    found = server._environment({"COUNTERSIGN_AGENT": "mine"})
    assert ("PYTHONUNBUFFERED" in found) is not terminal
    assert found["COUNTERSIGN_AGENT"] == "mine" and "COUNTERSIGN_URL" not in found
