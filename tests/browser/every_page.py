"""A walk over the portal: from the overview along every link, a few pages of each kind."""

from __future__ import annotations

import re
from collections import Counter
from urllib.parse import urljoin, urlsplit

from playwright.sync_api import Page

from tests.browser.signed_in import Window

_ID = re.compile(r"/[0-9a-f]{8}-[0-9a-f-]{27}|/[0-9a-f]{16,}|/\d+|(?<=^/keys)/[^/]+")
_DOWNLOADS = (".csv", ".json", ".zip", ".txt", ".png")
MOST_OF_A_KIND = 2


def kind_of(address: str) -> str:
    """Pages of one kind differ in ids, and in what their query asks for."""
    parts = urlsplit(address)
    return _ID.sub("/*", parts.path) + ("?" if parts.query else "")


def links_on(page: Page) -> list[str]:
    """Links to pages of ours. A download is not a page."""
    # links in a drawing have an object as their `href`
    found: list[str] = page.eval_on_selector_all(
        "a[href]:not([download])",
        "all => all.map(each => new URL(each.getAttribute('href'), location.href).href)",
    )
    root = urlsplit(page.url)
    here = [each for each in found if urlsplit(each)[:2] == root[:2]]
    pages = [each.partition("#")[0] for each in here]
    return [
        each
        for each in dict.fromkeys(pages)
        if not urlsplit(each).path.endswith(_DOWNLOADS)
        and not urlsplit(each).path.startswith(("/api", "/blobs"))
    ]


def pages_from(window: Window, start: str = "/portal") -> list[str]:
    """Addresses in the order in which they were found. Every one was opened."""
    waiting, seen = [urljoin(window.base_url, start)], set[str]()
    kinds: Counter[str] = Counter()
    opened: list[str] = []
    while waiting:
        address = waiting.pop(0)
        if address in seen or kinds[kind_of(address)] >= MOST_OF_A_KIND:
            continue
        seen.add(address)
        kinds[kind_of(address)] += 1
        window.page.goto(address)
        opened.append(address)
        waiting += links_on(window.page)
    return opened
