"""The ingest API: episodes, artifacts, keys and tenants over HTTP, on SQLite or PostgreSQL, local disk or S3."""
