"""A run on a real server that judges the policy of the small chain, and everything that leads to it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook import evals
from rollbook.client import Client
from rollbook.contracts.rl.json_form import batch_from_json
from rollbook.contracts.wire.lineage import StoreRows
from rollbook.evals.store_episodes import log_chains
from rollbook.lineage import LineageReport, Places, Shelf, resolve, walk
from rollbook.lineage.server_records import ServerRecords
from tests.lineage.small_chain import SmallChain, small_chain
from tests.server.running import Access, RunningServer


def take_the_first(observation: dict[str, Any]) -> dict[str, Any]:
    valid = observation["/candidates/valid"]
    return {"/choice/index": int(valid.argmax())}


@dataclass(frozen=True)
class JudgedChain:
    server: RunningServer
    access: Access
    chain: SmallChain
    run_id: str
    baselines: list[str]

    def client(self) -> Client:
        return Client(api_key=self.access.api_key, base_url=self.server.base_url, verbose=False)

    def evidence(self) -> bytes:
        with self.client() as client:
            return ServerRecords(client).evidence_bytes(self.run_id)

    def key(self) -> str:
        with self.client() as client:
            return ServerRecords(client).key()

    def report(self, text: str, *search: Path) -> LineageReport:
        with self.client() as client:
            shelf = Shelf.of(Places(search=search or (self.chain.folder,)), ServerRecords(client))
            return walk(resolve(text, shelf), shelf)

    def change(self, table: str, column: str, where: str, change: Callable[[Any], Any]) -> None:
        """Changes a stored JSON value behind the back of the server."""
        with closing(sqlite3.connect(self.server.data_dir / "rollbook.db", timeout=30)) as database:
            key = f"FROM {table} WHERE org_id = ? AND {where}"
            query = f"SELECT {column} {key} ORDER BY rowid LIMIT 1"
            [stored] = database.execute(query, (self.access.org_id,)).fetchone()
            changed = json.dumps(change(json.loads(stored)))
            database.execute(
                f"UPDATE {table} SET {column} = ? WHERE rowid = (SELECT rowid {key} ORDER BY rowid LIMIT 1)",
                (changed, self.access.org_id),
            )
            database.commit()


def judged_chain(server: RunningServer, access: Access) -> JudgedChain:
    chain = small_chain()
    with Client(api_key=access.api_key, base_url=server.base_url, verbose=False) as client:
        baselines = log_chains(client, chain.store)
        rows = StoreRows(store_digest=chain.digest, rows=list(range(chain.reader.num_rollouts)))
        batch = batch_from_json(chain.batch.read_bytes())
        client.record_revision(chain.revision, batches=[batch], stores=[rows])
        run = evals.create_run(
            candidate_policy_version="small-r1",
            baseline_episode_ids=baselines,
            candidate_policy_revision=chain.revision,
            client=client,
        )
        evals.run_against(
            run, policy_callable=take_the_first, store=chain.store, isolation="thread"
        )
        evals.complete_run(run)
    return JudgedChain(server, access, chain, run.id, baselines)
