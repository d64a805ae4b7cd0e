"""Pages of the real service, and pages rendered from sample values."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request

from policy_service.channels.web.pages import Pages, PageSession
from policy_service.channels.web.presenters.review_page import review_template_context
from policy_service.channels.web.tasks import task_context
from policy_service.queries.review_models import ReviewPage
from policy_service.queries.tasks import TaskReadModel
from tests.fakes import reviews
from tests.fakes.log_check import faults_of_log
from tests.fakes.payments import Payments
from tests.fakes.world import URL, running
from tests.integration.service.together.bank import Bank
from tests.integration.service.together.conftest import bank

__all__ = ["bank"]

OWN_PAGE = {"Origin": URL, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}


@pytest.fixture(scope="module")
async def bank_of_all(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bank]:
    """The service of a file's tests."""
    home = tmp_path_factory.mktemp("web")
    folder = Payments(home / "bundle")
    async with running(home / "data", folder.path) as started:
        yield Bank(started.app, started.settings, started.http, started.clock, folder=folder)
        assert await started.service.db.read(faults_of_log) == []


async def drawn(bank: Bank, template: str, **context: Any) -> str:
    """A page of Maya's with sample values on it."""
    pages: Pages = bank.app.state.pages
    request = Request({"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []})
    live = await bank.service.sessions.find(bank.maya.cookie)
    assert live is not None
    frame = {"session": PageSession(live, frozenset({"finance"})), "index": 0, "now": reviews.NOW}
    return bytes((await pages.draw(request, template, **(frame | context))).body).decode()


async def drawn_review(bank: Bank, page: ReviewPage, *, full: bool = False) -> str:
    """A sample review."""
    return await drawn(bank, "review.html", **review_template_context(page, reviews.NOW, full=full))


async def drawn_task(bank: Bank, page: TaskReadModel) -> str:
    """A sample task."""
    return await drawn(bank, "task.html", **task_context(page, reviews.NOW))
