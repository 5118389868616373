"""Adapters: recordings of other tools become episodes. `from rollbook.adapters import gymnasium, lerobot`.

Every adapter has the same verbs: `scan_*` only looks, `encode_*` writes files and needs no network, and `record` or
`upload_*` encode and then hand the files to rollbook.client.
"""
