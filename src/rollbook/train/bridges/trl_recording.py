"""RecordingMixin: a TRL GRPOTrainer that records what each step learns from, and learns from what was recorded.

    class Trainer(RecordingMixin, GRPOTrainer): ...

    Trainer(model=..., reward_funcs=..., recorder=StepRecorder("runs/1")).train()

After TRL has sampled and scored completions, they are written to disk with their rewards and the digest of the weights,
read back with every digest compared, and given to TRL in place of its own tensors. TRL's own tensors have to be the
same; a version of TRL that lays them out in another way is refused. Before each loss, every row is compared again: a
row that is none of the recorded ones is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.record import checked_type
from rollbook.contracts.rl.given_array import given_array
from rollbook.contracts.rl.provenance import (
    EnvironmentPackageKey,
    LogprobDistribution,
    LogprobSemantics,
    RolloutTerminationReason,
)
from rollbook.contracts.rl.sample import RolloutRole
from rollbook.contracts.rl.text_column import offsets_of
from rollbook.digest import canonical, sha256
from rollbook.errors import ConfigurationError, RolloutsNotInBatch
from rollbook.lazy import needs
from rollbook.train.bridges.step_recorder import RecordedStep, StepRecorder
from rollbook.train.bridges.trl import to_trl
from rollbook.train.layout import import_torch

if TYPE_CHECKING:
    import torch

WEIGHTS_DOMAIN = "rollbook.weights.v1"
_RECORDED = {
    *("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask"),
    *("advantages", "num_items_in_batch", "importance_sampling_ratio"),
    *("old_per_token_logps", "sampling_per_token_logps", "ref_per_token_logps"),
}
_REWARDS, _REWARD_NAMES = "rewards_per_func", "reward_func_names"


def weights_digest(model: torch.nn.Module) -> str:
    """SHA-256 over all weights and buffers of a model, with their names, types and shapes, in order of the names."""
    torch = import_torch()
    hasher = sha256(canonical(WEIGHTS_DOMAIN))
    for name, tensor in sorted(model.state_dict().items()):
        hasher.update(canonical([name, str(tensor.dtype), list(tensor.shape)]))
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        hasher.update(flat.numpy().data)
    return hasher.hexdigest()


class RecordingMixin:
    """Stands before GRPOTrainer in the bases of a trainer. `recorder` says where the steps are recorded.

    It records the batches of one process; trainers that spread weights or batches over several are refused, and so are
    batches with images.
    """

    def __init__(self, *args: Any, recorder: StepRecorder, **kwargs: Any) -> None:
        checked_type(recorder, StepRecorder, "RecordingMixin", "recorder")
        self._recorder = recorder
        self._recorded: RecordedStep | None = None
        self._generated: Any = None
        self._scored: Any = None
        self._revision_at: tuple[int, PolicyRevision] | None = None
        self._recorded_rows: set[bytes] = set()
        self._trl.__init__(*args, **kwargs)
        _refuse_trainer(self._self)
        self._self.add_callback(_step_callback(self))

    @property
    def recorded(self) -> RecordedStep | None:
        """What the current step learns from."""
        return self._recorded

    @property
    def _trl(self) -> Any:
        """The trainer below this class."""
        return super()

    @property
    def _self(self) -> Any:
        """This object with the attributes of the trainer, which this class does not declare."""
        return cast(Any, self)

    # ------------------------------------------------------------------------- what TRL calls

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        self._generated = self._trl._generate(*args, **kwargs)
        return self._generated

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        self._scored = self._trl._calculate_rewards(*args, **kwargs)
        return self._scored

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        made = self._trl._generate_and_score_completions(inputs)
        if not self._self.model.training:  # evaluation; nothing is learned from it
            return made
        unknown = made.keys() - _RECORDED
        if unknown:
            raise ConfigurationError(
                message=f"the batch has {', '.join(sorted(unknown))}, which RecordingMixin does not record"
            )
        self._recorded = self._record(made)
        found = self._from_record(self._recorded, made)
        self._recorded_rows = set(_row_digests(found))
        return found

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if self._recorded is not None and self._self.model.training:
            for row, digest in enumerate(_row_digests(inputs)):
                if digest not in self._recorded_rows:
                    raise RolloutsNotInBatch(
                        batch_id=self._recorded.batch.batch_id,
                        detail=f"row {row} of the tensors is none of its rollouts; "
                        "a token, a log-prob, an advantage or a mask was altered",
                    )
        return self._trl.compute_loss(model, inputs, *args, **kwargs)

    # ------------------------------------------------------------------------------ recording

    def forget_revision(self) -> None:
        """Compute the digest of the weights again. Called when a training begins, which may load other weights."""
        self._revision_at = None

    def revision(self) -> PolicyRevision:
        """The revision of the policy with its weights as they are now."""
        step = int(self._self.state.global_step)
        if self._revision_at is None or self._revision_at[0] != step:
            model = self._self.accelerator.unwrap_model(self._self.model)
            self._revision_at = (step, self._recorder.revision(step, weights_digest(model)))
        return self._revision_at[1]

    def finish_step(self) -> None:
        """Record the revision that a step made. Called at the end of every optimizer step."""
        if self._recorded is not None:
            step = int(self._self.state.global_step)
            self._recorder.finish(step, self._recorded.batch, self.revision())

    def _record(self, made: Mapping[str, Any]) -> RecordedStep:
        trainer = self._self
        prompts, completions, tool_mask = self._generated[:3]
        lengths = np.array([len(each) for each in completions])
        present = np.arange(made["completion_ids"].shape[1]) < lengths[:, None]
        sampled = (
            np.ones(int(lengths.sum()), np.bool_)
            if tool_mask is None
            else np.concatenate([np.asarray(each) for each in tool_mask]) == 1
        )
        columns = _LogprobColumns(present)
        logprobs, computed = self._logprobs(made, present)
        samples: dict[str, NDArray[Any]] = {
            "token_id": np.concatenate([np.asarray(each, np.int64) for each in completions]),
            "logprob": columns.column(logprobs, made[logprobs] if computed is None else computed),
            "reward": _at_last(_rewards(trainer, self._scored), lengths, sampled),
            "advantage": _per_token(made["advantages"], lengths, present, sampled),
            "policy_version": np.where(sampled, int(trainer.state.global_step), -1),
        }
        if tool_mask is not None:
            samples["loss_mask"] = sampled.astype(np.uint8)
            samples["role"] = np.where(sampled, RolloutRole.POLICY, RolloutRole.TOOL)
        if "ref_per_token_logps" in made:
            name = "ref_per_token_logps"
            samples["reference_logprob"] = columns.column(name, made[name])
        for name in ("old_per_token_logps", "sampling_per_token_logps"):
            if name in made and name != logprobs:
                columns.beside[name] = _numpy(name, made[name])
        if "importance_sampling_ratio" in made:
            name = "importance_sampling_ratio"
            columns.beside[name] = _numpy(name, made[name])
        return self._recorder.record(
            int(trainer.state.global_step) + 1,
            revision=self.revision(),
            offsets=offsets_of(lengths),
            samples=samples,
            prompt=prompts,
            groups=(np.arange(len(lengths)) // trainer.num_generations).tolist(),
            termination_reason=self._terminations(completions),
            logprob_semantics=self._semantics(logprobs),
            environment=EnvironmentPackageKey(environment_ref="trl", version=_trl_version()),
            tensors={**columns.beside, **_rewards_beside(trainer, self._scored)},
        )

    def _logprobs(self, made: Mapping[str, Any], present: NDArray[np.bool_]) -> tuple[str, Any]:
        """Which of TRL's log-probs are recorded as those of the samples. If it has none, they are computed."""
        for name in ("sampling_per_token_logps", "old_per_token_logps"):
            if name in made and bool(np.isfinite(_numpy(name, made[name])[present]).all()):
                return name, None
        return "computed_logps", self._computed_logprobs(made, present)

    def _computed_logprobs(self, made: Mapping[str, Any], present: NDArray[np.bool_]) -> Any:
        """Log-probs of the completions by the weights that sampled them. TRL leaves them out where it does not need
        them. The model is not in training mode, so no random number is drawn."""
        trainer = self._self
        torch = import_torch()
        ids = torch.cat([made["prompt_ids"], made["completion_ids"]], dim=1)
        mask = torch.from_numpy(present).to(made["prompt_mask"])
        with torch.no_grad(), _not_training(trainer.model):
            found, *_ = trainer._get_per_token_logps_and_entropies(
                trainer.model,
                ids,
                torch.cat([made["prompt_mask"], mask], dim=1),
                made["completion_ids"].shape[1],
                batch_size=trainer.args.per_device_train_batch_size,
            )
        return found

    def _semantics(self, logprobs: str) -> LogprobSemantics:
        """The sampler's log-probs are those of the cut distribution; the trainer computes without cut-offs."""
        trainer = self._self
        engine = f"trl {_trl_version()}"
        cut = _cut_offs(trainer)
        told = ", ".join(f"{name} {value}" for name, value in cut.items())
        meaning = LogprobSemantics(
            distribution=LogprobDistribution.PROCESSED, temperature=float(trainer.temperature)
        )
        if logprobs == "sampling_per_token_logps":
            known = {name: value for name, value in cut.items() if name != "min_p"}
            beside = f", min_p {cut['min_p']}" if "min_p" in cut else ""
            return msgspec.structs.replace(meaning, engine=f"{engine}, sampler{beside}", **known)
        beside = f", without the cut-off of sampling ({told})" if told else ""
        return msgspec.structs.replace(meaning, engine=f"{engine}, trainer{beside}")

    def _terminations(self, completions: list[list[int]]) -> list[RolloutTerminationReason]:
        ends = {*self._self.eos_token_ids, self._self._tokenizer.pad_token_id}
        return [
            RolloutTerminationReason.COMPLETED
            if each[-1] in ends
            else RolloutTerminationReason.MAX_TOKENS
            for each in completions
        ]

    # -------------------------------------------------------------------- learning from it

    def _from_record(self, step: RecordedStep, made: Mapping[str, Any]) -> dict[str, Any]:
        """TRL's batch, every tensor of it made from the record."""
        torch = import_torch()
        trainer = self._self
        names = {"old_per_token_logps": "old", "sampling_per_token_logps": "sampling"}
        column = next(
            (short for name, short in names.items() if name in made and name not in step.tensors),
            "none",
        )
        tensors: dict[str, Any] = {
            **to_trl(
                step.batch,
                step.table,
                pad_id=trainer._tokenizer.pad_token_id,
                logprobs=cast(Any, column),
                advantages="sequence" if made["advantages"].ndim == 1 else "token",
                mask_truncated=trainer.mask_truncated_completions,
                temperature=float(trainer.temperature),
                prompt_width=made["prompt_ids"].shape[1],
                completion_width=made["completion_ids"].shape[1],
            ),
            **{
                name: torch.from_numpy(array)
                for name, array in step.tensors.items()
                if name in made
            },
        }
        if "tool_mask" in made and "tool_mask" not in tensors:
            tensors["tool_mask"] = torch.ones_like(made["completion_mask"]).cpu()
        found = {name: tensors[name].to(made[name]) for name in made}
        for name, tensor in found.items():
            _refuse_difference(name, tensor, made[name], made["completion_mask"])
        return found


# ----------------------------------------------------------------------------------------- columns


class _LogprobColumns:
    """Log-probs as columns of a table, and tensors that a column cannot hold exactly beside them."""

    def __init__(self, present: NDArray[np.bool_]) -> None:
        self._present = present
        self.beside: dict[str, NDArray[Any]] = {}

    def column(self, name: str, tensor: Any) -> NDArray[Any]:
        """Log-probs above 0, which rounding can make, are refused by the contracts. They are recorded as 0, and the
        tensor itself beside the table."""
        array = _numpy(name, tensor)
        values: NDArray[Any] = array[self._present]
        if (values > 0).any():
            self.beside[name] = array
        capped: NDArray[Any] = np.minimum(values, 0)
        return capped


def _numpy(name: str, tensor: Any) -> NDArray[Any]:
    return given_array(name, tensor.detach().cpu(), "a tensor").copy()


def _per_token(
    advantages: Any, lengths: NDArray[Any], present: NDArray[np.bool_], sampled: NDArray[np.bool_]
) -> NDArray[Any]:
    array = _numpy("advantages", advantages)
    flat: NDArray[Any] = np.repeat(array, lengths) if array.ndim == 1 else array[present]
    return np.where(sampled, flat, np.float32(0))


def _at_last(
    rewards: NDArray[Any], lengths: NDArray[Any], sampled: NDArray[np.bool_]
) -> NDArray[Any]:
    """The reward of a completion lies at its last sampled token."""
    offsets = offsets_of(lengths)
    column = np.zeros(int(offsets[-1]), np.float32)
    places = np.where(sampled, np.arange(len(column)), -1)
    last = np.maximum.reduceat(places, offsets[:-1])
    column[np.where(last < 0, offsets[1:] - 1, last)] = rewards
    return column


def _rewards(trainer: Any, scored: Any) -> NDArray[Any]:
    """The weighted sum of all reward functions; NaN for a completion that none of them could score."""
    torch = import_torch()
    weights = trainer.reward_weights.to(scored.device).unsqueeze(0)
    total = (scored * weights).nansum(dim=1)
    total[torch.isnan(scored).all(dim=1)] = torch.nan
    return _numpy("rewards", total)


def _rewards_beside(trainer: Any, scored: Any) -> dict[str, NDArray[Any]]:
    """What each reward function gave. One function with the weight 1 is what the column says."""
    if scored.shape[1] == 1 and trainer.reward_weights.tolist() == [1.0]:
        return {}
    return {
        _REWARDS: _numpy(_REWARDS, scored),
        _REWARD_NAMES: np.array(trainer.reward_func_names, np.str_),
    }


def _refuse_difference(name: str, recorded: Any, made: Any, completion_mask: Any) -> None:
    """Numbers at padding are not compared: nothing is learned from them."""
    torch = import_torch()
    if made.is_floating_point() and made.shape == completion_mask.shape:
        recorded, made = recorded[completion_mask == 1], made[completion_mask == 1]
    same = recorded.shape == made.shape and torch.equal(
        torch.nan_to_num(recorded), torch.nan_to_num(made)
    )
    if not same:
        raise ConfigurationError(
            message=f"TRL's {name} is not what was recorded of it: RecordingMixin does not know this version of TRL "
            f"({_trl_version()})"
        )


def _refuse_trainer(trainer: Any) -> None:
    """Refuse trainers of which this class would record only a part, or something else than they do."""
    spread = {
        "FSDP": trainer.is_fsdp_enabled,
        "DeepSpeed": trainer.is_deepspeed_enabled,
        f"{trainer.accelerator.num_processes} processes": trainer.accelerator.num_processes > 1,
    }
    for name, used in spread.items():
        if used:
            raise ConfigurationError(
                message="RecordingMixin records the batches and all weights of one process; "
                f"this trainer uses {name}"
            )
    other = (trainer.args.generation_kwargs or {}).get("temperature", trainer.temperature)
    if other != trainer.temperature:
        raise ConfigurationError(
            message=f"generation_kwargs samples at temperature {other}, and TRL computes log-probs at "
            f"{trainer.temperature}; set temperature in the config instead"
        )


def _cut_offs(trainer: Any) -> dict[str, Any]:
    """The settings that keep tokens from being sampled."""
    given = {
        **{name: getattr(trainer, name) for name in ("top_p", "top_k", "min_p")},
        **(trainer.args.generation_kwargs or {}),
    }
    cuts = {
        "top_p": given["top_p"] is not None and given["top_p"] < 1,
        "top_k": given["top_k"] is not None and given["top_k"] > 0,
        "min_p": bool(given["min_p"]),
    }
    return {name: given[name] for name, cut in cuts.items() if cut}


def _row_digests(tensors: Mapping[str, Any]) -> list[bytes]:
    """One digest per row of a batch, over every tensor that has rows."""
    torch = import_torch()
    columns = [
        tensor.detach().cpu().contiguous().reshape(len(tensor), -1).view(torch.uint8).numpy()
        for _, tensor in sorted(tensors.items())
        if tensor.ndim
    ]
    rows = np.concatenate(columns, axis=1)
    return [sha256(row.data).digest() for row in rows]


@contextmanager
def _not_training(model: torch.nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _trl_version() -> str:
    with needs("recording the steps of TRL"):
        import trl
    return str(trl.__version__)


def _step_callback(trainer: RecordingMixin) -> Any:
    with needs("recording the steps of TRL"):
        from transformers import TrainerCallback

    class StepCallback(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            trainer.forget_revision()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            trainer.finish_step()

    return StepCallback()
