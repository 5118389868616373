"""Compares our data for Tinker with what its cookbook makes of the same conversations. Needs both packages."""

from __future__ import annotations

import importlib
from typing import Any

from rollbook.train import to_tinker
from tests.train.recorded_batches import batch_of, conversations


def main() -> None:
    tinker: Any = importlib.import_module("tinker")
    types: Any = importlib.import_module("tinker_cookbook.rl.types")
    completers: Any = importlib.import_module("tinker_cookbook.completers")
    processing: Any = importlib.import_module("tinker_cookbook.rl.data_processing")
    table = conversations()
    for artifact, ours in zip(table, to_tinker(batch_of(table), table), strict=True):
        assert artifact.prompt is not None
        columns = artifact.columns
        turn = types.Transition(
            ob=tinker.ModelInput.from_ints(artifact.prompt.tolist()),
            ac=completers.TokensWithLogprobs(
                tokens=columns["token_id"].tolist(), maybe_logprobs=columns["logprob"].tolist()
            ),
            reward=0.0,
            episode_done=True,
        )
        made = types.Trajectory(transitions=[turn], final_ob=tinker.ModelInput.empty())
        [theirs] = processing.trajectory_to_data(made, float(columns["advantage"][0]))
        datum = tinker.Datum(
            model_input=tinker.ModelInput.from_ints(ours.model_input),
            loss_fn_inputs=ours.loss_fn_inputs,
        )
        assert datum.model_input == theirs.model_input
        assert set(datum.loss_fn_inputs) == set(theirs.loss_fn_inputs)
        for name, found in datum.loss_fn_inputs.items():
            assert found.to_numpy().tolist() == theirs.loss_fn_inputs[name].to_numpy().tolist(), (
                name
            )
            assert found.dtype == theirs.loss_fn_inputs[name].dtype, name
    print("the same")  # noqa: T201


if __name__ == "__main__":
    main()
