"""Rollout stores of an organisation: over HTTP, open for pages, summed up, verified, with their lineage."""
