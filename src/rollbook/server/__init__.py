"""The ingest API: episodes, artifacts, eval runs, keys and organisations over HTTP. It runs on SQLite or PostgreSQL,
and keeps blobs on local disk or in S3.

The root holds what every sub-room shares (settings, logs, metrics, context) and what operators run (bootstrap, backup,
doctor). The order in which sub-rooms import each other is a contract in pyproject.toml. The server never imports
`client`, `evals` or `adapters`.
"""
