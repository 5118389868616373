"""Placeholders: what differs from one run to the next is given a stable name; every other character stays."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_KINDS = (
    # the longest come first: an id may stand inside a token, and a key begins with one
    ("blob", r"(?<=/blobs/)[A-Za-z0-9_.~%=&?/+-]+"),
    ("webhook secret", r"whsec_[A-Za-z0-9_-]+"),
    ("public key", r"(?<=\"public_key\":\")[0-9a-f]{64}"),
    ("key", r"\br[tv]_[A-Za-z0-9]+_[A-Za-z0-9_-]{20,}"),
    ("key prefix", r"\br[tv]_[A-Za-z0-9]{6,}(?:_[A-Za-z0-9_-]*…)?"),
    ("id", r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"),
    ("time", r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)"),
    ("date", r"\b[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT"),
    ("etag", r"(?<=\")[0-9a-f]+-[0-9a-f]{12,}-(?=[0-9a-f]+\")"),
    ("server", r"http://127\.0\.0\.1:\d+"),
    ("code", r"\b[BCDFGHJKMNPQRTVWXY34679]{4}-[BCDFGHJKMNPQRTVWXY34679]{4}\b"),
    ("version", r"(?<=rollbook[/ ])\d+\.\d+\.\d+|(?<=rollbook-python/)\d+\.\d+\.\d+"),
)
_NUMBERED = ("id", "key", "key prefix")
"""Told apart by the order in which they first appear, so that it can be seen which ones are the same."""
_ANY = re.compile("|".join(f"(?P<k{place}>{each})" for place, (_, each) in enumerate(_KINDS)))


@dataclass
class Placeholders:
    numbered: bool = True
    """False where the order of appearance is left to chance."""
    known: dict[str, str] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def name(self, value: str, placeholder: str) -> None:
        """For a value that cannot be told by its looks. Empty ones are passed over."""
        if value:
            self.known[value] = f"<{placeholder}>"

    def hide(self, text: str) -> str:
        for value in sorted(self.known, key=len, reverse=True):
            if value in text:
                text = text.replace(value, self.known[value])
        return _ANY.sub(self._placeholder, text)

    def _placeholder(self, found: re.Match[str]) -> str:
        kind = _KINDS[int(str(found.lastgroup)[1:])][0]
        if kind not in _NUMBERED or not self.numbered:
            return f"<{kind}>"
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self.known[found[0]] = f"<{kind} {self._counts[kind]}>"
        return self.known[found[0]]
