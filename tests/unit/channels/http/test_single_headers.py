"""Every header that the service reads is known to be single or a list."""

import re
from pathlib import Path

import policy_service
from policy_service.channels.http import webhook_signatures
from policy_service.channels.http.middleware import SINGLE_VALUE_HEADERS

LISTS = {"accept", "cookie", "prefer"}  # read with `getlist`
READ = re.compile(r'headers\.(get|getlist)\(\s*"([a-z0-9-]+)"|"([a-z0-9-]+)" in \w+\.headers')
CHANNELS = Path(policy_service.__file__).parent
OUTGOING = {"retry-after"}  # of answers to our own requests


def test_every_header_that_is_read_is_single_or_read_as_a_list() -> None:
    places = [*CHANNELS.glob("channels/**/*.py"), CHANNELS / "identity/origin.py"]
    reads = [read for place in places for read in READ.findall(place.read_text())]
    found = {(how, name or inside) for how, name, inside in reads}
    assert {name for how, name in found if how != "getlist"} - OUTGOING <= SINGLE_VALUE_HEADERS
    assert {name for how, name in found if how == "getlist"} <= LISTS
    assert {"host", "origin", "content-type", "agent-proof", "x-csrf-token"} <= {name for _, name in found}


def test_webhook_signature_headers_are_single() -> None:
    ours = {webhook_signatures._GITHUB, webhook_signatures._GITLAB, webhook_signatures._STANDARD}
    assert ours | {"webhook-id", "webhook-timestamp"} <= SINGLE_VALUE_HEADERS
