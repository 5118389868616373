"""The places of tokens in rows of equal width: where prompt, response and padding lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollbook.contracts.row_numbers import Rows
from rollbook.errors import InvalidNumber
from rollbook.train.layout import ChosenTokens, Mask


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


def split_places(chosen: ChosenTokens, recipe: Mapping[str, Any]) -> tuple[Mask, Mask]:
    """The places of prompts, and those of completions, each in rows of their own."""
    prompts = _aligned(chosen, chosen.prompt_lengths, recipe, "prompt")
    return prompts, _aligned(chosen, chosen.sample_lengths, recipe, "completion")


def shifted_places(completions: Mask, prompt_width: int) -> Mask:
    """The places of completions in the whole row, one column to the left: where a model predicts them."""
    shifted = np.zeros((len(completions), prompt_width + completions.shape[1] - 1), np.bool_)
    shifted[:, prompt_width - 1 :] = completions
    return shifted


def _aligned(chosen: ChosenTokens, lengths: Rows, recipe: Mapping[str, Any], part: str) -> Mask:
    width = _width(recipe, lengths, f"{part}_width")
    _refuse_longer(chosen, lengths, width, f"{part}_width")
    begins = width - lengths if recipe[f"{part}_side"] == "left" else np.zeros_like(lengths)
    return _between(np.arange(width, dtype=np.int32), begins, begins + lengths)


def _width(recipe: Mapping[str, Any], needed: Rows, option: str = "width") -> int:
    multiple = recipe["multiple_of"]
    given: int | None = recipe.get(option)
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


def _between(columns: np.ndarray[Any, np.dtype[np.int32]], first: Rows, end: Rows) -> Mask:
    return (columns >= _column(first)) & (columns < _column(end))
