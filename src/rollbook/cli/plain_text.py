"""Text that any terminal can show: control characters are visible, and no character stops the command."""

from __future__ import annotations

import codecs
import re
import sys
import unicodedata

_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters: a terminal obeys them
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # separators, and marks that reorder a line
    "\ud800-\udfff]"  # half characters, such as in a file name that is not UTF-8
)
_PLAIN = {
    "…": "...",
    "→": "->",
    "←": "<-",
    "✓": "+",
    "✗": "x",
    "×": "x",
    "Δ": "delta",
    "█": "#",
    "·": ".",
    "•": "*",
    "°": " deg",
    "±": "+/-",
    "≤": "<=",
    "≥": ">=",
    "–": "-",
    "—": "-",
    "‘": "'",
    "’": "'",
    "“": '"',
    "”": '"',
}
"""What is printed where the encoding of a terminal does not have a character."""
_ERROR_HANDLER = "rollbook.plain"


def visible(text: str) -> str:
    """The text on one line, with escapes such as `\\n` and `\\x1b` in the place of control characters."""
    return _HIDDEN.sub(lambda found: _escaped(found[0]), text)


def visible_lines(text: str) -> str:
    """Like `visible`, but line ends stay."""
    return "\n".join(visible(line) for line in text.split("\n"))


def visible_in_json(text: str) -> str:
    """JSON with escapes in the place of characters that a terminal obeys. It decodes to the same value."""
    return "\n".join(
        _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", line) for line in text.split("\n")
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def make_output_safe() -> None:
    """Print plain characters where standard output or standard error cannot encode a character."""
    codecs.register_error(_ERROR_HANDLER, _plain)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # a test may have put another kind of file there
            reconfigure(errors=_ERROR_HANDLER)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(map(_plain_character, wrong)), error.end


def _plain_character(character: str) -> str:
    if character in _PLAIN:
        return _PLAIN[character]
    without_accents = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return without_accents or _escaped(character)
