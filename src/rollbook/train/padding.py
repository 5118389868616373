"""The places of tokens in rows of equal width: where prompt, response and padding lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollbook.contracts.row_numbers import Rows
from rollbook.errors import InvalidNumber
from rollbook.train.layout import ChosenTokens


def padded_places(chosen: ChosenTokens, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a PaddedBatch that do not depend on the values of tokens, for the options in `recipe`."""
    layout = recipe.get("layout", "sequence")
    prompts, samples = chosen.prompt_lengths, chosen.sample_lengths
    if layout == "sequence":
        lengths = chosen.lengths
        width = _width(recipe, lengths)
        _refuse_longer(chosen, lengths, width, "width")
        begins = width - lengths if recipe["side"] == "left" else np.zeros_like(lengths)
        responses, prompt_width = begins + prompts, None
    else:
        prompt_width = recipe.get("prompt_width", int(prompts.max()))
        _refuse_longer(chosen, prompts, prompt_width, "prompt_width")
        width = _width(recipe, prompt_width + samples)
        _refuse_longer(chosen, prompt_width + samples, width, "width")
        begins = prompt_width - prompts if layout == "left_prompt" else np.zeros_like(prompts)
        responses = np.full_like(prompts, prompt_width)
    columns = np.arange(width, dtype=np.int32)
    in_prompt = _between(columns, begins, begins + prompts)
    sampled = _between(columns, responses, responses + samples)
    attention = in_prompt | sampled
    positions = columns - np.where(sampled, _column(responses - prompts), _column(begins))
    positions *= attention
    return {
        "lengths": chosen.lengths,
        "attention_mask": attention,
        "position_ids": positions,
        "sample_mask": sampled,
        "prompt_width": prompt_width,
    }


def _width(recipe: Mapping[str, Any], needed: Rows) -> int:
    multiple = recipe["multiple_of"]
    given: int | None = recipe.get("width")
    return -(-int(needed.max()) // multiple) * multiple if given is None else given


def _refuse_longer(chosen: ChosenTokens, needed: Rows, width: int, option: str) -> None:
    if needed.max() > width:
        sequence = int(np.argmax(needed > width))
        raise InvalidNumber(
            record=f"artifact {chosen.artifact_ids()[sequence]!r}",
            field=option,
            value=str(width),
            expected=f"at least {needed[sequence]}, which its tokens need",
        )


def _column(values: Rows) -> np.ndarray[Any, np.dtype[np.int32]]:
    return values.astype(np.int32)[:, None]


def _between(
    columns: np.ndarray[Any, np.dtype[np.int32]], first: Rows, end: Rows
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return (columns >= _column(first)) & (columns < _column(end))
