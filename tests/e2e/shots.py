"""Take the pictures of `web/README.md` anew: `python -m tests.e2e.shots`, in the folder `docs/pictures`.

The real service on a made-up afternoon, Debian's Chromium before it. The clock is stopped and each run does the
same, so that a picture differs only where a page does (and in the ids, which are new). Names of pictures may be given,
to take those alone.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from playwright.async_api import Page, async_playwright

from tests.conventions.repository import ROOT
from tests.e2e.conftest import chromium
from tests.fakes.afternoon import Afternoon, afternoon

PICTURES = ROOT / "docs/pictures"
QUALITY = 90  # of WebP: below this the letters of small print fray
DESK, PHONE = (1280, 1000), (390, 844)

# The pages take the system's font. The browser's own guess on a bare machine is a wide one that few people have.
FONTS = """<?xml version="1.0"?>
<fontconfig>
  <include ignore_missing="yes">/etc/fonts/fonts.conf</include>
  {rules}
</fontconfig>
"""
RULE = """
  <match target="pattern">
    <test name="family" qual="any"><string>{name}</string></test>
    <edit name="family" mode="prepend" binding="strong">
      <string>Inter</string><string>Noto Sans</string><string>Liberation Sans</string>
    </edit>
  </match>
"""
GENERIC = ("system-ui", "sans-serif", "sans", "DejaVu Sans")


@dataclass(frozen=True)
class Shot:
    """One page, and what is pressed on it first."""

    path: str
    prepare: Callable[[Page], Awaitable[None]] | None = None
    scheme: str = "light"


async def difference(page: Page) -> None:
    """Other arguments, filled in and looked at."""
    await page.get_by_label("amount_cents").fill("45000")
    await page.get_by_role("button", name="See the difference…").click()
    await page.get_by_label("Why").fill("Two of the four legs were flown.")


async def to_sign(page: Page) -> None:
    """The button that opens, pressed."""
    await page.locator("#approve > summary").click()


async def past_the_search(page: Page) -> None:
    """On a phone the search fills the window: on to the lines."""
    if await page.evaluate("innerWidth < 500"):
        await page.locator(".exports").evaluate("node => node.scrollIntoView()")


SHOTS = {
    "queue": Shot("/?tab=open"),
    "review": Shot("/reviews/{dana}"),
    "review-dark": Shot("/reviews/{dana}", scheme="dark"),
    "two-person-review": Shot("/reviews/{deploy}", to_sign),
    "warnings": Shot("/reviews/{hostile}"),
    "edit": Shot("/reviews/{amara}/propose", difference),
    "task": Shot("/tasks/{t_unknown}"),
    "policies": Shot("/policies?policy=production-needs-two"),
    "audit": Shot("/audit?agent=refund-desk", past_the_search),
}


async def take(page: Page) -> bytes:
    """What the window shows, as WebP; Playwright itself makes none."""
    cdp = await page.context.new_cdp_session(page)
    shot = await cdp.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    return base64.b64decode(shot["data"])


async def pictures(url: str, story: Afternoon, names: Sequence[str], fonts: Path) -> dict[str, bytes]:
    """The pictures of Maya's pages, on a desk and on a phone, by the name of their file."""
    at = {f"t_{name}": task for name, task in story.tasks.items()} | story.reviews
    cookie = story.people["maya"].visitor.cookie
    found = {}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            **chromium(), env={**os.environ, "FONTCONFIG_FILE": str(fonts)}
        )
        for name, (window, (width, height)) in product(names, (("desktop", DESK), ("phone", PHONE))):
            shot = SHOTS[name]
            context = await browser.new_context(
                base_url=url, viewport={"width": width, "height": height}, reduced_motion="reduce",
                color_scheme="dark" if shot.scheme == "dark" else "light",
                device_scale_factor=2 if window == "phone" else 1, has_touch=window == "phone",
            )  # fmt: skip
            await context.add_cookies([{"name": "countersign_dev", "value": cookie, "url": url}])
            page = await context.new_page()
            await page.goto(shot.path.format_map(at))
            if shot.prepare is not None:
                await shot.prepare(page)
            found[f"{name}-{window}.webp"] = await take(page)
            await context.close()
        await browser.close()
    return found


def main() -> None:
    """Take some pictures, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.shots", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SHOTS)}; none: all")
    parser.add_argument("--to", type=Path, default=PICTURES, help="the folder")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="northwind-") as name:
        fonts = Path(name) / "fonts.conf"
        fonts.write_text(FONTS.replace("{rules}", "".join(RULE.replace("{name}", one) for one in GENERIC)))
        with afternoon(Path(name)) as (service, story):
            taken = asyncio.run(pictures(service.url, story, asked.names or list(SHOTS), fonts))
    for file, picture in taken.items():
        (asked.to / file).write_bytes(picture)
    print(f"{len(taken)} pictures, {sum(map(len, taken.values())) // 1024} kB, in {asked.to}")


if __name__ == "__main__":
    main()
