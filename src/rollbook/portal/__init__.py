"""The portal: pages for people. Every page reads through the same tenant-scoped queries as the API.

A page is a dataclass (`page.Page`) with a template. `pages/`, `evals/`, `accounts/` and `settings/` hold a module for
each page, `charts/` draws SVG on the server, `static/` holds the stylesheet and the ES modules. Nothing comes from
another host.
"""
