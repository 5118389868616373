"""SetAttention: the network that scores the candidates of a shell, each in view of all the others.

It has no order: permuting the candidates of a shell permutes their scores. Candidates that are not valid are not seen
by the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollbook.lazy import needs

with needs("an attention policy"):
    import torch
    from torch import Tensor, nn
    from torch.nn.functional import gelu, scaled_dot_product_attention

PART = 16
"""Width of one attention head. The width of a network is a multiple of it."""
_LEAST_SPREAD = 1e-6
_MOST_DEVIATIONS = 6.0
"""Inputs are cut off at so many standard deviations: an actor may see more than any in the training data."""


class SetAttention(nn.Module):
    """One number for each candidate."""

    mean: Tensor
    factor: Tensor

    def __init__(self, features: int, width: int, layers: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("factor", torch.ones(features))
        self.embed = nn.Linear(features, width)
        self.blocks = nn.ModuleList(_Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 1)

    def forward(self, features: Tensor, valid: Tensor) -> Tensor:
        """[S, A, F] and [S, A] → [S, A]. What it gives for candidates that are not valid has no meaning."""
        known = torch.isfinite(features) & valid[..., None]
        inputs = torch.where(known, (features - self.mean) * self.factor, 0.0)
        found = self.embed(inputs.clamp(-_MOST_DEVIATIONS, _MOST_DEVIATIONS))
        # a shell without any valid candidate would be 0 / 0, and its NaN would reach every weight
        seen = valid | ~valid.any(-1, keepdim=True)
        for block in self.blocks:
            found = block(found, seen)
        scores: Tensor = self.out(self.norm(found)).squeeze(-1)
        return scores

    def measure(self, features: Tensor, valid: Tensor, unused: Sequence[int] = ()) -> None:
        """Scale every input by its mean and standard deviation over the valid candidates of these states.

        Inputs that are always the same, and `unused` ones, become 0.
        """
        rows = features[valid].double()
        known = torch.isfinite(rows)
        counts = known.sum(0).clamp(min=1)
        mean = torch.where(known, rows, 0.0).sum(0) / counts
        spread = (torch.where(known, (rows - mean) ** 2, 0.0).sum(0) / counts).sqrt()
        factor = torch.where(spread > _LEAST_SPREAD, 1 / spread, 0.0)
        factor[list(unused)] = 0.0
        self.mean.copy_(mean)
        self.factor.copy_(factor)


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.join = nn.Linear(width, width)
        self.norm_wide = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, inputs: Tensor, seen: Tensor) -> Tensor:
        states, candidates, width = inputs.shape
        each = self.query_key_value(self.norm(inputs))
        each = each.view(states, candidates, 3, width // PART, PART)
        query, key, value = each.permute(2, 0, 3, 1, 4)
        taken = scaled_dot_product_attention(query, key, value, attn_mask=seen[:, None, None, :])
        taken = taken.transpose(1, 2).reshape(states, candidates, width)
        inputs = inputs + self.join(taken)
        wide: Tensor = self.narrow(gelu(self.widen(self.norm_wide(inputs))))
        return inputs + wide


def network_of(weights: Mapping[str, Tensor]) -> SetAttention:
    """The network that these weights belong to: their shapes say how large it is. Other weights are a ValueError."""
    try:
        width, features = weights["embed.weight"].shape
        layers = sum(name.endswith(".join.weight") for name in weights)
        _check_shapes(weights, features, width, layers)
        network = SetAttention(features, width, layers)
        network.load_state_dict(dict(weights), strict=True)
    except (KeyError, RuntimeError, ValueError) as error:
        raise ValueError(f"not the weights of a set attention network: {error}") from error
    if not all(bool(torch.isfinite(each).all()) for each in weights.values()):
        raise ValueError("a weight is not a finite number")
    return network


def _check_shapes(weights: Mapping[str, Tensor], features: int, width: int, layers: int) -> None:
    """Before memory is taken for a network: shapes with a 0 in them claim any size and need no bytes."""
    if not features or not width or width % PART:
        raise ValueError(f"embed.weight has the shape {[width, features]}")
    with torch.device("meta"):
        expected = {
            name: each.shape
            for name, each in SetAttention(features, width, layers).state_dict().items()
        }
    for name in sorted({*expected, *weights}):
        if name not in weights or name not in expected:
            raise ValueError(f"{name} is {'missing' if name in expected else 'unknown'}")
        if weights[name].shape != expected[name]:
            sizes = [list(each) for each in (weights[name].shape, expected[name])]
            raise ValueError(f"{name} has the shape {sizes[0]}, expected {sizes[1]}")


def weights_of(network: SetAttention) -> dict[str, Tensor]:
    """The weights on the CPU, apart from those of the network."""
    return {
        name: each.detach().to("cpu", torch.float32, copy=True).contiguous()
        for name, each in network.state_dict().items()
    }
