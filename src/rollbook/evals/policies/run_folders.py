"""Run folders of training as policies: which policies are one, and the exact revision that such a policy is."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbook.errors import APIError, ConfigurationError, StorageError

if TYPE_CHECKING:
    from rollbook.client import Client
    from rollbook.contracts.policy import PolicyRevision
    from rollbook.contracts.rl.batch import TrainerBatch
    from rollbook.contracts.wire.lineage import StoreRows

_log = logging.getLogger("rollbook.evals")


def run_folder_of(given: Any) -> Path | None:
    """The folder that a policy names, as a path or as a text; None if it is given in another form.

    Raises ConfigurationError for a text that is neither a folder nor like `module:attr`.
    """
    if isinstance(given, os.PathLike):
        return Path(given)
    if not isinstance(given, str):
        return None
    if os.path.isdir(given):
        return Path(given)
    if ":" not in given:
        message = (
            f"policy {given!r} is neither like package.module:name nor the run folder of a training"
        )
        raise ConfigurationError(message=message)
    return None


def revision_of(given: Any) -> PolicyRevision | None:
    """The revision of a policy that is a run folder; None for every other policy.

    Raises ConfigurationError for a folder that is no finished training run, or in which a byte was changed.
    """
    folder = run_folder_of(given)
    if folder is None:
        return None
    from rollbook.learned import open_training_run

    try:
        return open_training_run(folder).revision
    except (StorageError, OSError) as error:
        raise ConfigurationError(message=f"policy {error}") from error


def checked_revision(given: Any, known: PolicyRevision | None) -> PolicyRevision | None:
    """The revision of the candidate: the `known` one of its run, or that of its run folder. They must not differ."""
    own = revision_of(given)
    if own is not None and known is not None and own != known:
        message = (
            f"the run is of the policy revision {known.revision_id} ({known.policy_digest[:12]}…), and the policy is "
            f"{own.revision_id} ({own.policy_digest[:12]}…)"
        )
        raise ConfigurationError(message=message)
    return known or own


def record_training(client: Client, given: Any) -> None:
    """Send the trainer batches of a policy that is a run folder, and the rows of stores in them, so that the server
    knows what it was trained on.

    The same again changes nothing. A server that refuses them does not stop the replay: that they are missing is seen
    in the lineage.
    """
    folder = run_folder_of(given)
    if folder is None:
        return
    from rollbook.learned import open_training_run

    try:
        run = open_training_run(folder, verify=False)
        for batch in run.batches():  # one by one, because a server limits the size of a request
            client.record_revision(run.revision, batches=[batch], stores=list(_store_rows(batch)))
    except (StorageError, OSError) as error:
        raise ConfigurationError(message=f"policy {error}") from error
    except APIError as error:
        _log.warning("what %s was trained on could not be recorded: %s", folder, error)


def _store_rows(batch: TrainerBatch) -> Iterator[StoreRows]:
    from rollbook.contracts.wire.lineage import MOST_ROWS, StoreRows
    from rollbook.train.store_proofs import stores_named

    for store, rows in stores_named(batch, set(batch.rollout_ids)).items():
        there = sorted(rows)
        for first in range(0, len(there), MOST_ROWS):
            some = there[first : first + MOST_ROWS]
            yield StoreRows(store_digest=store, rows=some, batch_id=batch.batch_id)


def load_run_folder(folder: Path) -> Any:
    """The learned policy, with every digest of the folder checked."""
    from rollbook.learned import load_learned_policy

    try:
        return load_learned_policy(folder)
    except (StorageError, OSError) as error:
        raise ConfigurationError(message=f"policy {error}") from error
