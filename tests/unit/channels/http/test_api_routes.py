"""A route that would lose a check by how it is declared is refused as it is declared."""

from typing import Any

import pytest

from countersign.contract.wire import TransactionView, WithdrawRequest
from policy_service.channels.http.api import ApiRoutes
from policy_service.identity.sessions import Session


async def without(api: Any, session: Session) -> TransactionView: ...
async def optional(api: Any, session: Session, wish: WithdrawRequest | None) -> TransactionView: ...
async def with_body(api: Any, session: Session, wish: WithdrawRequest) -> TransactionView: ...


WRONG = [("POST /x", without), ("POST /x", optional), ("GET /x", with_body)]


@pytest.mark.parametrize(("route", "handle"), WRONG)
@pytest.mark.parametrize("caller", ["agent", "person"])
def test_a_body_is_read_after_its_sender_is_identified(caller: str, route: str, handle: Any) -> None:
    routes = ApiRoutes()
    with pytest.raises(TypeError, match="third parameter"):
        getattr(routes, caller)(route)(handle)
    assert routes.routes == []
