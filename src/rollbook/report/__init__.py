"""Reports of a replay for people: words that all reports share, pictures as SVG text, and a page for screen and paper.

Pictures are pure functions from numbers to text; the page of a report and the pages of a server can show the same ones.
"""
