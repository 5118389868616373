"""Writes every page that is made from the code."""

from scripts.reference.pages import DOCS, PAGES

for name, page in PAGES.items():
    (DOCS / name).write_text(page())
    print(f"docs/{name}")
