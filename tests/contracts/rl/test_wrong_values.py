"""Whatever is passed to a public constructor, only errors of Rollbook come out, and they name the field."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rollbook.contracts import (
    AdmissionWindow,
    ContractRules,
    EnvironmentPackageKey,
    LogprobDistribution,
    LogprobSemantics,
    OffPolicyBudget,
    PolicyRevision,
    RolloutArtifact,
    RolloutProofKind,
    RolloutProofReference,
    RolloutSample,
    RolloutTable,
    StalenessPolicy,
    TrainerBatch,
    admit,
    open_table,
    save_table,
    token_staleness,
)
from rollbook.errors import InvalidNumber, RollbookError, WrongColumnType
from rollbook.train import to_jagged, to_packed, to_packed_bins, to_padded
from tests.factories import ENVIRONMENT, checkpoint, proof, revision, samples, table, table_fields


class Unreadable:
    """Numpy asks it for an array, and it fails as tensors of other libraries do."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("cannot be converted")

    def __len__(self) -> int:
        return 2


VALUES: list[Any] = [
    *(None, True, -1, 5, 2**64, 2**200, 0.5, float("nan"), 1j, "", "text", "\ud800", b"bytes"),
    *([], [None], [5], [[1], [1, 2]], [[1, 2], [3, 4]], ["a", "b"], [float("nan")] * 2, (), {}),
    *({"token_id": 5}, {5: [1]}, {"a"}, object(), len, int, iter([1]), range(3), Unreadable()),
    np.array(5),
    np.zeros((2, 2)),
    np.array([1 + 2j]),
    np.array([None, object()]),
    np.array(["2020-01-01"], "M8[D]"),
    np.zeros(2, [("a", "i4")]),
    torch.zeros(2, requires_grad=True),
    torch.zeros(2, 2, device="meta"),
    torch.zeros(2, dtype=torch.complex64),
    torch.zeros(2, 3).to_sparse(),
    torch.tensor(5),
    ENVIRONMENT,
    revision(),
    table([2]),
]
"""Wrong for most fields. Some are right for some of them."""


def wrong_values() -> Iterator[Any]:
    for value in VALUES:
        yield value
        yield [value]
        yield [value, value]


def artifact_fields() -> dict[str, Any]:
    return {
        "artifact_id": "a",
        "worker_id": "w",
        "environment": ENVIRONMENT,
        "task_id": "t",
        "source_policy_revision": revision(),
        "samples": samples(3),
        "termination_reason": "completed",
        "created_at_ms": 5,
        "proof_references": [proof()],
        "prompt": [1, 2],
        "group_id": "g",
        "attempt": 1,
        "logprob_semantics": LogprobSemantics(distribution=LogprobDistribution.RAW),
        "rules": ContractRules(),
    }


def padded_fields() -> dict[str, Any]:
    ones = [[1, 1], [1, 1]]
    return {
        "input_ids": ones,
        "response_mask": ones,
        "logprobs": [[0, 0], [0, 0]],
        "rewards": ones,
        "sequence_rewards": None,
        "advantages": ones,
        "attention_mask": ones,
        "columns": {"value": ones},
        **{name: artifact_fields()[name] for name in ("environment", "source_policy_revision")},
        "task_id": "t",
        "worker_id": "w",
        "artifact_id": ["a", "b"],
        "created_at_ms": 5,
        "termination_reason": "completed",
        "group_id": ["g", "h"],
        "attempt": 1,
        "logprob_semantics": None,
        "proof_references": None,
        "rules": ContractRules(),
    }


TABLE = table([2, 3])
TABLE_WITH_VERSIONS = table([2], samples=samples(2, policy_version=[1, 2]))
BUDGET = OffPolicyBudget.default()
BATCH = TrainerBatch.assemble(
    batch_id="b", target_revision=revision(9), rollouts=TABLE, assembled_at_ms=5
)
ADMISSION = {"run_id": "r", "stage_id": "s", "window_id": "w", "rules": ContractRules()}
EXPORT = {"batch": BATCH, "table": TABLE, "staleness": None, "token_dtype": np.int64}

MADE: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "PolicyRevision": (
        PolicyRevision,
        {
            **dict.fromkeys(("policy_family", "revision_id", "policy_digest"), "x"),
            "produced_at_ms": 1,
            "revision_number": 1,
            "parent_revision_id": "p",
            "checkpoint": checkpoint(),
        },
    ),
    "EnvironmentPackageKey": (EnvironmentPackageKey, {"environment_ref": "e", "version": "1"}),
    "RolloutProofReference": (
        RolloutProofReference,
        {"kind": RolloutProofKind.COMMITMENT, "digest": "d", "reference": "r"},
    ),
    "LogprobSemantics": (
        LogprobSemantics,
        {
            "distribution": LogprobDistribution.RAW,
            **dict.fromkeys(("temperature", "top_p", "top_k"), 1),
            **dict.fromkeys(("engine", "dtype"), "x"),
        },
    ),
    "RolloutSample": (
        RolloutSample,
        {"token_id": 1, "logprob": -1.0, "reward": 0.0, "advantage": 0.0},
    ),
    "RolloutArtifact": (RolloutArtifact, artifact_fields()),
    "sample columns": (
        lambda **columns: RolloutArtifact(**{**artifact_fields(), "samples": columns}),
        samples(2, loss_mask=[1, 1], role=[0, 0], turn=[0, 0], policy_version=[1, 1], value=[0, 0]),
    ),
    "from_columns": (RolloutTable.from_columns, {**table_fields([2, 3]), "rules": ContractRules()}),
    "report": (RolloutTable.report, {**table_fields([2, 3]), "rules": ContractRules()}),
    "from_padded": (RolloutTable.from_padded, padded_fields()),
    "from_artifacts": (RolloutTable.from_artifacts, {"artifacts": [*TABLE]}),
    "concat": (RolloutTable.concat, {"tables": [TABLE]}),
    "take": (TABLE.take, {"rows": [0]}),
    "artifact": (TABLE.artifact, {"artifact_id": "rollout-0"}),
    "problems": (TABLE.problems, {"rules": ContractRules()}),
    "prove": (TABLE.prove, {"row": 0}),
    "ContractRules": (ContractRules, {"strict": True, "non_finite": "allow"}),
    "OffPolicyBudget": (
        OffPolicyBudget,
        dict.fromkeys(OffPolicyBudget.__struct_fields__, 5),
    ),
    "AdmissionWindow": (
        AdmissionWindow,
        {**ADMISSION, "target_revision": revision(9), "budget": BUDGET},
    ),
    "admit": (
        admit,
        {
            **ADMISSION,
            "table": TABLE,
            "target_revision": revision(9),
            "budget": BUDGET,
            "observed_at_ms": 5,
        },
    ),
    "StalenessPolicy": (StalenessPolicy, {"max_age": 1, "mode": "drop", "decay": 0.5}),
    "token_staleness": (
        token_staleness,
        {
            "table": TABLE_WITH_VERSIONS,
            "target_version": 3,
            "policy": StalenessPolicy(max_age=1, mode="drop"),
        },
    ),
    "assemble": (
        TrainerBatch.assemble,
        {
            "batch_id": "b",
            "target_revision": revision(9),
            "rollouts": TABLE,
            "assembled_at_ms": 5,
            "rules": ContractRules(),
        },
    ),
    "to_packed": (to_packed, EXPORT),
    "to_packed_bins": (to_packed_bins, {**EXPORT, "token_budget": 9}),
    "to_jagged": (to_jagged, EXPORT),
    "to_padded": (
        to_padded,
        {
            **EXPORT,
            **{"side": "right", "multiple_of": 1, "pad_id": 0, "layout": "left_prompt"},
            **{"width": 9, "prompt_width": 2},
        },
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_wrong_values_are_refused_by_errors_of_rollbook_only(name: str) -> None:
    make, fields = MADE[name]
    make(**fields)
    escaped = []
    for field in fields:
        for value in wrong_values():
            try:
                make(**{**fields, field: value})
            except RollbookError:
                continue
            except Exception as error:  # noqa: BLE001
                escaped.append(f"{field}={value!r:.60}: {type(error).__name__}: {error!s:.80}")
    assert escaped == []


def test_a_table_is_saved_and_opened_only_by_a_path(tmp_path: Path) -> None:
    for value in VALUES:
        if not isinstance(value, str | RolloutTable):
            with pytest.raises(RollbookError):
                save_table(value, tmp_path / "t")
            with pytest.raises(RollbookError):
                open_table(value)


def test_the_errors_say_what_to_do() -> None:
    def refused(**changes: Any) -> str:
        with pytest.raises(RollbookError) as caught:
            RolloutArtifact(**{**artifact_fields(), **changes})
        assert isinstance(caught.value, InvalidNumber | WrongColumnType)
        return str(caught.value)

    assert "artifact 'a': created_at_ms is None, expected a whole number" in refused(
        created_at_ms=None
    )
    assert "'samples' holds int, expected columns by name" in refused(samples=5)
    grad = samples(3, logprob=torch.zeros(3, requires_grad=True))
    assert "'logprob' holds a tensor that requires grad (give tensor.detach())" in refused(
        samples=grad
    )
    away = samples(3, logprob=torch.zeros(3, device="meta"))
    assert "a tensor on the device meta (give tensor.cpu())" in refused(samples=away)
    ragged = samples(3, reward=[[1], [1, 2]])
    assert "'reward' holds rows of different lengths (row 0: 1, row 1: 2)" in refused(
        samples=ragged
    )


@pytest.mark.parametrize("column", ["worker_id", "task_id", "created_at_ms", "environment"])
def test_a_required_column_is_not_filled_when_it_is_missing(column: str) -> None:
    with pytest.raises(WrongColumnType, match=f"'{column}' holds NoneType, expected one entry per"):
        RolloutTable.from_columns(**{**table_fields([2]), column: None})
