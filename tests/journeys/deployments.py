"""Two ways to run a server: small, on SQLite and local disk; team, on PostgreSQL and S3. A journey holds for both."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from tests.server.blob_servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, Served
from tests.server.postgres_cluster import PostgresCluster

S3_ACCESS = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_REGION": REGION,
}
"""For the environment of a server that keeps its blobs in S3."""
_prefixes = count()


@dataclass(frozen=True)
class Deployment:
    """Where a server keeps what it is given; both None for its own folder."""

    database_url: str | None = None
    blobs: tuple[str, str] | None = None
    """A place in S3, and the address of that S3."""

    @property
    def is_small(self) -> bool:
        return self.database_url is None

    @property
    def database_options(self) -> list[str]:
        return [] if self.database_url is None else ["--database", self.database_url]

    @property
    def options(self) -> list[str]:
        """For `rollbook serve`."""
        if self.blobs is None:
            return self.database_options
        place, endpoint = self.blobs
        return [*self.database_options, "--blobs", place, "--s3-endpoint", endpoint]


SMALL = Deployment()


def team(cluster: PostgresCluster, s3: Served) -> Deployment:
    """A database and a prefix of its own; nothing is migrated yet."""
    place = f"s3://{BUCKET}/journey-{next(_prefixes)}"
    return Deployment(cluster.new_database(), (place, s3.url))
