"""Text that would run as code on a page that forgets to escape it, and a check that a page did not.

owner.call("POST", "/api/ingest/episode", json={"name": HOSTILE[0]})
assert_harmless(owner.get("/portal/episodes").text, HOSTILE[0])
"""

from __future__ import annotations

from html.parser import HTMLParser

HOSTILE = (
    '<script>alert("hostile")</script>',
    "\"'><svg onload=alert(1)><hostile-mark></hostile-mark>",
    "</title></textarea></pre></script><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)" hostile="',
    "' onfocus='alert(1)' autofocus hostile='",
    "javascript:alert(1)//<hostile-mark>",
    "{{ 7 * 7 }} {% raw %} <!-- <hostile-mark> -->",
)
"""One per way out of an element, an attribute, a URL or a template. Put one into every field that a user may fill."""

_NEVER = {"iframe", "object", "embed", "base", "style", "hostile-mark", "foreignobject", "img"}
"""Elements that no page of ours has; pages with pictures say so with `may_have`."""
_URLS = {"href", "src", "action", "formaction", "xlink:href", "poster"}
_OWN = ("/", "#", "?")


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def assert_harmless(html: str, *shown: str, may_have: tuple[str, ...] = ()) -> None:
    """No element, event, style or foreign address came from the data. Each text of `shown` must stand on the page,
    as text or as the value of an attribute: otherwise the check would pass for a page without it."""
    page = _Page()
    page.feed(html)
    page.close()
    for tag, attributes in page.elements:
        place = f"<{tag} {attributes}>"
        assert tag not in _NEVER - set(may_have), place
        if tag == "script":
            assert attributes.get("type") == "module", place
            assert "/static/" in attributes["src"], place
        for name, value in attributes.items():
            assert not name.startswith("on"), place
            assert name not in ("style", "srcdoc", "hostile"), place
            if name in _URLS:
                assert value == "" or value.startswith(_OWN), place
                assert not value.startswith(("//", "/\\")), place
    texts = [*page.texts, *(value for _, each in page.elements for value in each.values())]
    for text in shown:
        assert any(text in each for each in texts), f"not on the page: {text}"
