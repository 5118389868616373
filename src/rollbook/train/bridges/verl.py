"""Batches for verl: the content of a DataProto, and a file of it without pickle."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.record import decode_json
from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.provenance import LogprobSemantics
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.staleness import TokenStaleness
from rollbook.digest import Plain, digest_of
from rollbook.errors import (
    ConfigurationError,
    DigestMismatch,
    StorageError,
)
from rollbook.files import write_bytes
from rollbook.lazy import needs
from rollbook.train.bridges.meaning import (
    check_logprobs,
    check_split,
    temperatures_of,
)
from rollbook.train.layout import import_torch
from rollbook.train.packing import whole_option
from rollbook.train.split import SplitBatch, to_split

if TYPE_CHECKING:
    import torch

FILE_DOMAIN = "rollbook.verl_batch.v1"
_TRAINER = "verl"
_HEADER = "rollbook.verl_batch"


class _Header(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the file says beside its tensors."""

    non_tensor_batch: dict[str, list[str]]
    meta_info: dict[str, Any]
    digest: str


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class VerlBatch:
    """The three parts of a DataProto."""

    batch: dict[str, torch.Tensor]
    non_tensor_batch: dict[str, NDArray[Any]]
    """Texts, one per rollout: `uid` groups rollouts of one prompt."""
    meta_info: dict[str, Any]
    """`temperature`, `global_token_num`, and the digests that say what the batch is."""

    def data_proto(self) -> Any:
        """The same as a `verl.DataProto`; verl and tensordict have to be installed."""
        try:
            verl = importlib.import_module("verl")
        except ImportError as missing:
            message = (
                f"a DataProto needs verl, which cannot be loaded ({missing}): pip install verl"
            )
            raise ConfigurationError(message=message) from missing
        return verl.DataProto.from_dict(
            tensors=dict(self.batch),
            non_tensors=dict(self.non_tensor_batch),
            meta_info=dict(self.meta_info),
        )

    @property
    def digest(self) -> str:
        """Over all tensors with their names, types and shapes, and everything beside them."""
        tensors: dict[str, Plain] = {
            name: {
                "dtype": str(tensor.dtype),
                "shape": list(tensor.shape),
                "bytes": tensor.contiguous().cpu().numpy().tobytes(),
            }
            for name, tensor in self.batch.items()
        }
        beside = msgspec.json.encode(
            [_texts(self.non_tensor_batch), self.meta_info], order="sorted"
        )
        return digest_of(FILE_DOMAIN, {"tensors": tensors, "beside": beside})


def to_verl(
    batch: TrainerBatch,
    table: RolloutTable,
    *,
    pad_id: int,
    temperature: float | None = None,
    logprob_semantics: LogprobSemantics | None = None,
    prompt_width: int | None = None,
    response_width: int | None = None,
    staleness: TokenStaleness | None = None,
) -> VerlBatch:
    """Prompts padded on the left, responses on the right. The recorded log-probs are `rollout_log_probs` and
    `old_log_probs`. `temperature` is that of the trainer; without it, it is the one that all rollouts record."""
    export = to_split(
        batch,
        table,
        pad_id=whole_option("pad_id", pad_id, 0),
        prompt_width=prompt_width,
        completion_width=response_width,
        staleness=staleness,
    )
    check_split(export, _TRAINER)
    if temperature is None:
        temperature = _one_temperature(table, export, logprob_semantics)
    check_logprobs(table, export.rows, logprob_semantics, temperature=temperature)
    torch = import_torch()
    arrays = _arrays(export)
    return VerlBatch(
        batch={name: torch.from_numpy(array) for name, array in arrays.items()},
        non_tensor_batch=_per_rollout(table, export),
        meta_info={
            "temperature": float(temperature),
            "global_token_num": arrays["attention_mask"].sum(axis=1).tolist(),
            "batch_id": batch.batch_id,
            "batch_digest": export.batch_digest,
            "rollouts_root": export.rollouts_root,
            "recipe_digest": export.recipe_digest,
        },
    )


def _one_temperature(
    table: RolloutTable, export: SplitBatch, stated: LogprobSemantics | None
) -> float:
    found = temperatures_of(table, export.rows, stated)
    if (found != found[0]).any():
        raise ConfigurationError(
            message=f"the rollouts were sampled at different temperatures ({found.min()} to {found.max()}); "
            "verl takes one for a batch"
        )
    return float(found[0])


def _arrays(export: SplitBatch) -> dict[str, NDArray[Any]]:
    attention = np.concatenate([export.prompt_mask, export.completion_mask], axis=1)
    arrays = {
        "prompts": export.prompt_ids,
        "responses": export.completion_ids,
        "response_mask": export.loss_mask,
        "input_ids": np.concatenate([export.prompt_ids, export.completion_ids], axis=1),
        "attention_mask": attention,
        # the last position is repeated at the padding behind it, as in verl
        "position_ids": np.maximum(np.cumsum(attention, axis=1) - 1, 0),
        "rollout_log_probs": export.logprobs,
        "old_log_probs": export.logprobs.copy(),
        "token_level_scores": export.rewards,
        "token_level_rewards": export.rewards.copy(),
        "advantages": export.advantages,
    }
    if "reference_logprob" in export.columns:
        arrays["ref_log_prob"] = export.columns["reference_logprob"]
    if "value" in export.columns:
        arrays["values"] = export.columns["value"]
    else:
        arrays["returns"] = (
            export.advantages.copy()
        )  # without a critic, verl uses one for the other
    return arrays


def _per_rollout(table: RolloutTable, export: SplitBatch) -> dict[str, NDArray[Any]]:
    """A rollout without a group is a group of its own."""
    columns = table.columns
    digests = table.content_digests[export.rows].tobytes().hex()
    groups = [
        export.groups[code] if code >= 0 else artifact_id
        for code, artifact_id in zip(export.group_ids.tolist(), export.artifact_ids, strict=True)
    ]
    revisions = [columns.revisions[code] for code in columns.revision_index[export.rows].tolist()]
    texts = {
        "uid": groups,
        "artifact_id": list(export.artifact_ids),
        "content_digest": [digests[at : at + 64] for at in range(0, len(digests), 64)],
        "policy_digest": [revision.policy_digest for revision in revisions],
        "revision_id": [revision.revision_id for revision in revisions],
    }
    return {name: np.array(each, object) for name, each in texts.items()}


# ----------------------------------------------------------------------------------------- on disk


def save_verl(batch: VerlBatch, path: str | os.PathLike[str], *, replace: bool = False) -> None:
    """Write the batch as one safetensors file, in one atomic step. Texts and `meta_info` are JSON in its header."""
    with needs("a file of tensors"):
        from safetensors.torch import save
    header = _Header(
        non_tensor_batch=_texts(batch.non_tensor_batch),
        meta_info=batch.meta_info,
        digest=batch.digest,
    )
    tensors = {name: tensor.contiguous() for name, tensor in batch.batch.items()}
    data = save(tensors, metadata={_HEADER: msgspec.json.encode(header).decode()})
    write_bytes(path, data, replace=replace)


def open_verl(path: str | os.PathLike[str]) -> VerlBatch:
    """Read the file, and compare its digest with its content."""
    with needs("a file of tensors"):
        from safetensors import SafetensorError, safe_open
    place = str(path)
    try:
        with safe_open(place, "pt") as file:
            found = (file.metadata() or {}).get(_HEADER)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise StorageError(path=place, detail=f"is no file of tensors ({error})") from error
    if found is None:
        raise StorageError(path=place, detail=f"has no {_HEADER}; save_verl writes it")
    header = decode_json(found, _Header, place)
    read = VerlBatch(
        batch=tensors,
        non_tensor_batch={
            name: np.array(texts, object) for name, texts in header.non_tensor_batch.items()
        },
        meta_info=header.meta_info,
    )
    if read.digest != header.digest:
        raise DigestMismatch(
            record_id=Path(path).name, field="digest", recorded=header.digest, computed=read.digest
        )
    return read


def _texts(arrays: Mapping[str, NDArray[Any]]) -> dict[str, list[str]]:
    return {name: [str(text) for text in array.tolist()] for name, array in arrays.items()}
