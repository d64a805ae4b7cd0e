"""The generated reference pages are those the code generates."""

from __future__ import annotations

from tests.conventions.reference_pages import CLI, HTTP_API, cli_page, http_api_page


def test_the_page_of_the_command_line_is_current() -> None:
    assert CLI.read_text() == cli_page(), "run: make pages"


def test_the_page_of_the_http_api_is_current() -> None:
    assert HTTP_API.read_text() == http_api_page(), "run: make pages"
