"""How many fault points there are: one that goes out of the code, or out of the reading of it, is missed here."""

from __future__ import annotations

from tests.crash.points import agent_points, service_points


def test_no_fault_point_vanishes_unnoticed() -> None:
    """A new point raises its number here; a smaller number needs a reason in the commit that makes it so."""
    service, agent = service_points(), agent_points()
    assert (len(service), len(agent)) == (169, 74)
    assert (len({*service}), len({*agent})) == (169, 74), "two points share a name"
