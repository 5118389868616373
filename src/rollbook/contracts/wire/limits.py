"""Limits that the server enforces and a client can respect before it sends anything."""

from __future__ import annotations

LONGEST_INDEXED = 512
"""Characters of a text that is indexed. A character has at most four bytes, so an entry stays below the 2,704 bytes
that PostgreSQL allows."""
LONGEST_TEXT = 10_000
"""Characters of any other text."""
LONGEST_TAG = 100
MOST_TAGS = 100
"""Tags of one episode."""
LONGEST_POLICY_FAMILY = 128
"""Characters. Family and revision id stand in one index entry."""
LONGEST_SCENARIO_NAME = 200
LONGEST_EMAIL = 320
LONGEST_PASSWORD = 1000
LONGEST_URL = 2000
"""Characters of the URL of a webhook."""
MOST_IN_A_BATCH = 1000
"""Episodes, artifacts or results in one request."""
MOST_LISTED_METADATA = 64 << 10
"""Bytes of the metadata of one episode in an answer about many. Larger metadata is left out, and the answer says so."""
MOST_IN_AN_ANSWER = 4 << 20
"""Bytes of JSON values, such as metadata and metrics, after which an answer about many ends."""
MOST_PARTS = 10_000
"""Parts of one resumable upload."""
