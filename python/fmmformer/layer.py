# SPDX-License-Identifier: Apache-2.0
"""FMM attention as a layer: projections, blend, operator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fmmformer.blend import Weights, make_blend
from fmmformer.fast_weight import (
    FastWeightNormaliser,
    FastWeightOptions,
    fast_weight_attention,
    fast_weight_attention_prefill,
    fast_weight_attention_step,
)
from fmmformer.functional import (
    FmmOptions,
    Normaliser,
    fmm_attention,
    fmm_attention_prefill,
    fmm_attention_step,
)
from fmmformer.state import AttentionState, FmmState


class FMMAttention(nn.Module):
    """Multi-head FMM attention: [B, N, dim] -> [B, N, dim].

        q, k, v = query(x), key(x), value(x)      split into heads of head_dim
        y       = output(fmm_attention(q, k, v, near_weight, far_weight, ..))

    With fast weights the first far field is `fast_weight_attention`'s, gated by beta = sigmoid(gate(x)); the near field
    and the other far fields are as ever, and far_weight[0] multiplies the first.

    Args:
        dim: width of input and output.
        heads: number of heads.
        head_dim: width of a head; None means dim / heads, which must then be whole.
        bias: whether the four projections have one.
        blend: how near and far field are weighted. "paper" (sigmoid of a logit per head), "sum" (no weights),
            "raw_per_channel", "raw_per_head", "convex": see fmmformer.blend. Or a module of your own whose
            forward() returns (near_weight, far_weight).
        fast_weights: the first of feature_maps is of a far field that corrects itself (the delta rule), with a learned
            gate. Needs causal=True.
        fast_weight_normaliser: what of it is divided by sums of keys: "none", "output" or "output_and_key".
        bandwidth and the rest: the options of `fmm_attention`. To count by window instead, pass bandwidth=None too.
            near_dropout acts in training only, with a fresh seed from torch's generator for every call.

    Wrong options are errors here already, not at the first batch.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int | None = None,
        bias: bool = True,
        blend: str | nn.Module = "paper",
        *,
        fast_weights: bool = False,
        fast_weight_normaliser: FastWeightNormaliser = "output",
        bandwidth: int | None = 5,
        window: tuple[int, int] | None = None,
        causal: bool = False,
        feature_maps: Sequence[str] = ("elu", "elu_flip"),
        unit_features: bool = False,
        normaliser: Normaliser = "row_sum",
        eps: float = 1e-6,
        near_scale: float | None = None,
        far_scale: float = 1.0,
        near_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.heads = heads
        self.head_dim = _head_dim(dim, heads, head_dim)
        maps = feature_maps if isinstance(feature_maps, str) else tuple(feature_maps)
        self.fast_options: FastWeightOptions | None = None
        if fast_weights:
            _check_fast_weights(causal, maps)
            self.fast_options = {
                "feature_map": maps[0],
                "unit_features": unit_features,
                "normaliser": fast_weight_normaliser,
                "eps": eps,
                "far_scale": far_scale,
            }
            maps = maps[1:]
        self.options: FmmOptions = {
            "bandwidth": bandwidth,
            "window": window,
            "causal": causal,
            "feature_maps": maps,
            "unit_features": unit_features,
            "normaliser": normaliser,
            "eps": eps,
            "near_scale": near_scale,
            "far_scale": far_scale,
            "near_dropout": near_dropout,
        }
        near_field = bool(bandwidth) or window is not None
        self.has_fields = near_field or len(maps) > 0 or self.fast_options is None
        if self.has_fields:
            _check_options(self.heads, self.head_dim, self.options)
        if self.fast_options is not None:
            _check_fast_options(self.heads, self.head_dim, self.fast_options)

        inner = self.heads * self.head_dim
        self.query = nn.Linear(dim, inner, bias=bias)
        self.key = nn.Linear(dim, inner, bias=bias)
        self.value = nn.Linear(dim, inner, bias=bias)
        self.output = nn.Linear(inner, dim, bias=bias)
        self.gate = nn.Linear(dim, heads, bias=False) if fast_weights else None
        self.blend = (
            blend
            if isinstance(blend, nn.Module)
            else make_blend(
                blend,
                heads=heads,
                value_dim=self.head_dim,
                maps=len(feature_maps),
                near_field=near_field,
            )
        )

    def forward(self, x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """x: [B, N, dim]; token_mask: bool [B, N], True for a real token. Returns [B, N, dim].

        Masked tokens neither see nor are seen: what leaves for them is the output projection's bias.
        """
        q, k, v = self._project(x, 3)
        fast_weight, weights = self._weights()
        out = fmm_attention(q, k, v, **self._options(token_mask, weights)) if self.has_fields else None
        if self.gate is not None:
            field = fast_weight_attention(q, k, v, self._beta(x), token_mask=token_mask, **self.fast_options)
            out = _with_field(out, field, fast_weight)
        return self.output(out.flatten(-2))

    @torch.no_grad()
    def prefill(self, x: Tensor, token_mask: Tensor | None = None) -> tuple[Tensor, FmmState | AttentionState]:
        """A prompt [B, N, dim] -> its output [B, N, dim] and the state after it. Needs causal=True.

        With a token mask each entry goes on from its own last real token. The state is an FmmState, with fast weights
        an AttentionState.
        """
        q, k, v = self._project(x, 3)
        fast_weight, weights = self._weights()
        out, fields = None, None
        if self.has_fields:
            out, fields = fmm_attention_prefill(q, k, v, **self._options(token_mask, weights))
        if self.gate is None:
            return self.output(out.flatten(-2)), fields
        field, fast = fast_weight_attention_prefill(
            q, k, v, self._beta(x), token_mask=token_mask, **self.fast_options
        )
        return self.output(_with_field(out, field, fast_weight).flatten(-2)), AttentionState(fields, fast)

    @torch.no_grad()
    def step(self, x: Tensor, state: FmmState | AttentionState, token_mask: Tensor | None = None) -> Tensor:
        """One more token [B, dim] -> its output [B, dim]; advances the state in place. token_mask: bool [B]."""
        wanted = FmmState if self.gate is None else AttentionState
        if not isinstance(state, wanted):
            raise TypeError(
                f"FMMAttention: state is of type {type(state).__name__}, wanted is the {wanted.__name__} that "
                "prefill() of this layer returns"
            )
        q, k, v = self._project(x, 2)
        fast_weight, weights = self._weights()
        fields = state.fields if isinstance(state, AttentionState) else state
        out = None
        if self.has_fields:
            out = fmm_attention_step(q, k, v, fields, **self._options(token_mask, weights))
        if self.gate is not None:
            field = fast_weight_attention_step(
                q, k, v, self._beta(x), state.fast, token_mask=token_mask, **self.fast_options
            )
            out = _with_field(out, field, fast_weight)
        return self.output(out.flatten(-2))

    def extra_repr(self) -> str:
        options = {"dim": self.dim, "heads": self.heads, "head_dim": self.head_dim, **self.options}
        if self.fast_options is not None:
            options["fast_weights"] = self.fast_options
        return ", ".join(f"{name}={value!r}" for name, value in options.items())

    def _project(self, x: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
        if x.dim() != rank or x.size(-1) != self.dim:
            wanted = f"[B, N, {self.dim}]" if rank == 3 else f"[B, {self.dim}]"
            raise ValueError(
                f"FMMAttention: x has shape {list(x.shape)}, wanted is {wanted}; the last size is the layer's dim"
            )
        heads = (*x.shape[:-1], self.heads, self.head_dim)
        q, k, v = (projection(x).view(heads) for projection in (self.query, self.key, self.value))
        return q, k, v

    def _beta(self, x: Tensor) -> Tensor:
        return self.gate(x).sigmoid()

    def _weights(self) -> tuple[Tensor | None, Weights]:
        """The weight of the fast-weight field, if there is one, and those of the other fields."""
        near, far = self.blend()
        if self.gate is None or far is None:
            return None, (near, far)
        if far.dim() < 3:  # one weight for all maps
            return far, (near, far)
        return far[0], (near, far[1:])

    def _options(self, token_mask: Tensor | None, weights: Weights) -> FmmOptions:
        near_weight, far_weight = weights
        if not self.options["feature_maps"]:
            far_weight = None
        options: FmmOptions = {"near_weight": near_weight, "far_weight": far_weight, "token_mask": token_mask}
        if not self.training:
            options["near_dropout"] = 0.0
        return {**self.options, **options}


def _with_field(rest: Tensor | None, field: Tensor, weight: Tensor | None) -> Tensor:
    """rest + weight * field, in the field's type; weights may be fp32 beside half precision."""
    if weight is None:
        return field if rest is None else rest + field
    out = weight * field if rest is None else torch.addcmul(rest, field, weight)
    return out.to(field.dtype)


def _head_dim(dim: int, heads: int, head_dim: int | None) -> int:
    for name, value in (("dim", dim), ("heads", heads), ("head_dim", 1 if head_dim is None else head_dim)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"FMMAttention: {name} is {value!r}, allowed is an integer >= 1; e.g. dim=64, heads=2")
    if head_dim is not None:
        return head_dim
    if dim % heads != 0:
        raise ValueError(
            f"FMMAttention: dim is {dim} and heads is {heads}, which does not divide it; "
            "choose another number of heads or pass head_dim"
        )
    return dim // heads


def _check_options(heads: int, head_dim: int, options: FmmOptions) -> None:
    """Lets the operator look at the options once, over a single token without storage."""
    token = torch.empty(1, 1, heads, head_dim, device="meta")
    fmm_attention(token, token, token, **options)


def _check_fast_weights(causal: bool, maps: str | tuple[str, ...]) -> None:
    if not causal:
        raise ValueError(
            "FMMAttention: fast_weights is True and causal is False: fast weights are written token by token; "
            "pass causal=True"
        )
    if isinstance(maps, str) or not maps:
        raise ValueError(
            f"FMMAttention: fast_weights is True and feature_maps is {maps!r}: the first of the maps is theirs; "
            'pass at least one, e.g. ("elu",)'
        )


def _check_fast_options(heads: int, head_dim: int, options: FastWeightOptions) -> None:
    token = torch.empty(1, 1, heads, head_dim, device="meta")
    fast_weight_attention(token, token, token, torch.empty(1, 1, heads, device="meta"), **options)
