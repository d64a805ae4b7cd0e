"""Static files: named by digest, kept for ever, third-party ones unchanged."""

from __future__ import annotations

import hashlib
import re
import tomllib

import httpx2
import pytest

from policy_service.channels.web.assets import load_assets, web_folder

pytestmark = pytest.mark.anyio

STATIC = web_folder() / "static"
VENDOR = STATIC / "vendor"


async def test_a_page_names_files_that_are_there_and_may_be_kept(stranger: httpx2.AsyncClient) -> None:
    page = (await stranger.get("/sign-in")).text
    urls = re.findall(r'(?:src|href)="(/static/[^"#]+)', page)
    assert urls
    for url in urls:
        answer = await stranger.get(url)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")


async def test_what_no_page_names_is_not_there(stranger: httpx2.AsyncClient) -> None:
    for path in (
        "/static/0000000000000000/keys.js",
        "/static/0/../../pyproject.toml",
        "/static/0/%2e%2e/%2e%2e/pyproject.toml",
        "/static/0/vendor/VENDORED.toml",
        "/static/0//etc/passwd",
    ):
        assert (await stranger.get(path)).status_code == 404, path


def test_integrity_and_digest_are_those_of_the_bytes() -> None:
    for name, asset in load_assets(STATIC).items():
        assert asset.body == (STATIC / name).read_bytes()
        assert hashlib.sha256(asset.body).hexdigest().startswith(asset.digest)


def test_third_party_files_are_what_was_recorded() -> None:
    record = tomllib.loads((VENDOR / "VENDORED.toml").read_text(encoding="utf-8"))
    recorded: dict[str, str] = {}
    for package in record["package"]:
        assert (VENDOR / package["licence_file"]).is_file()
        recorded |= {name: entry["sha256"] for name, entry in package["files"].items()}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.glob("*.js")}
    assert found == recorded
