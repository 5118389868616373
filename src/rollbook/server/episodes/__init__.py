"""Episodes over HTTP: create, upload, finalize, search, batches, quotas and upkeep. May import accounts, video,
webhooks and everything below them, never evals."""
