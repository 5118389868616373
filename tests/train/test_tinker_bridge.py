"""What Tinker gets: one datum per rollout, shifted by one, and the same that its own cookbook would make."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.contracts import RolloutTable
from rollbook.train import to_tinker
from tests.factories import table_fields
from tests.public_packages import reader_python
from tests.train.recorded_batches import PROCESSED, batch_of, conversations

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("tinker==0.36.0", "tinker-cookbook==0.5.8", "sniffio", "pyqwest", "distro", "zstandard"),
    *("h2", "hpack", "hyperframe", "orjson", "chz", "blobfile", "lxml"),
)


def test_inputs_are_all_tokens_but_the_last_and_targets_all_but_the_first() -> None:
    table = conversations(samples={"loss_mask": [1, 1, 1, 1, 0, 1]})
    data = to_tinker(batch_of(table), table)
    assert [each.artifact_id for each in data] == ["rollout-0", "rollout-1", "rollout-2"]
    last = data[2]
    assert last.model_input == [5, 6, 30, 31]
    assert {name: array.tolist() for name, array in last.loss_fn_inputs.items()} == {
        "target_tokens": [6, 30, 31, 32],
        "logprobs": [0, -2, -2.5, -3],
        "advantages": [0, 3, 0, 3],
        "mask": [0, 1, 0, 1],
    }
    types = {name: str(array.dtype) for name, array in last.loss_fn_inputs.items()}
    assert types == {
        "target_tokens": "int64",
        "logprobs": "float32",
        "advantages": "float32",
        "mask": "float32",
    }


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=5))
def test_every_datum_is_what_a_plain_loop_makes(shape: list[tuple[int, int]]) -> None:
    prompts = [[100 + token for token in range(prompt)] for prompt, _ in shape]
    fields = table_fields([length for _, length in shape], prompt=prompts)
    table = RolloutTable.from_columns(**fields, logprob_semantics=[PROCESSED] * len(shape))
    for prompt, artifact, datum in zip(
        prompts, table, to_tinker(batch_of(table), table), strict=True
    ):
        tokens = [*prompt, *artifact.columns["token_id"].tolist()]
        logprobs = [0.0] * len(prompt) + artifact.columns["logprob"].tolist()
        assert datum.model_input == tokens[:-1]
        assert datum.loss_fn_inputs["target_tokens"].tolist() == tokens[1:]
        assert datum.loss_fn_inputs["logprobs"].tolist() == logprobs[1:]
        assert np.count_nonzero(datum.loss_fn_inputs["mask"]) == artifact.token_count


@pytest.mark.slow
def test_tinkers_own_cookbook_makes_the_same_data() -> None:
    """Its libraries are put beside ours, because torch is too large to be installed twice."""
    reader = reader_python(without_dependencies=PACKAGES)
    [packages] = (reader.parents[1] / "lib").glob("python3*/site-packages")
    script = [sys.executable, "-W", "ignore", "-m", "tests.train.tinker_cookbook_data"]
    environment = {
        "PYTHONPATH": f"{packages}:{ROOT}",
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
    }
    done = subprocess.run(script, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "the same\n"), done.stderr
