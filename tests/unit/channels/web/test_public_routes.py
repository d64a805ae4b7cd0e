"""The only POST routes without a session and form token."""

import re

from tests.conventions.repository import ROOT

# The second calls `sent_by` itself, which asks for both: what its form may hold depends on the effect.
WITHOUT = ["/reviews/{review_id}/propose", "/sign-in/dev"]


def test_every_other_form_is_declared_as_one() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "policy_service/channels/web").glob("*.py"))
    assert sorted(re.findall(r'@routes\.public\(\s*"([^"]+)"[^)]*"POST"', sources)) == WITHOUT
