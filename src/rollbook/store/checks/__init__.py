"""Validation of a store: small checks, each a function from StoreColumns to violations with stable codes.

`validate.py` lists the checks and runs all of them. A check reads columns through `columns.py`, which hands out only
arrays of the declared type, shape and length. Checks import the tables and derived views of the store, never the
reader, the writer or `audit/`.
"""
