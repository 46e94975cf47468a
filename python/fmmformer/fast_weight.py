# SPDX-License-Identifier: Apache-2.0
"""Fast-weight attention (the delta rule) as functions over tensors, and the state between its tokens."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import TypedDict, Unpack

from fmmformer._arguments import Layout, back_to, check_tensors, defaults_of, tokens_before_heads, with_defaults
from fmmformer.state import FastWeightState

FastWeightNormaliser = Literal["none", "output", "output_and_key"]


class FastWeightOptions(TypedDict, total=False):
    """The keyword arguments of `fast_weight_attention`, which explains them and holds their defaults."""

    feature_map: str
    unit_features: bool
    normaliser: FastWeightNormaliser
    eps: float
    far_scale: float
    token_mask: Tensor | None
    layout: Layout


def fast_weight_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    feature_map: str = "elu",
    unit_features: bool = True,
    normaliser: FastWeightNormaliser = "output",
    eps: float = 1e-5,
    far_scale: float = 1.0,
    token_mask: Tensor | None = None,
    layout: Layout = "bnhd",
) -> Tensor:
    """A causal far field that corrects itself: each key writes what the state does not yet say about it, gated by beta.

    For one batch entry and head, with W_0 = 0 [D, Dv], z_0 = 0 [D], x = f(k), y = f(q), t over the real tokens::

        p_t   = W_{t-1}^T x_t                                  what the key reads
        u_t   = beta_t (v_t - p_t)                             what it writes
        W_t   = W_{t-1} + x_t u_t^T,   z_t = z_{t-1} + x_t
        out_t = far_scale * W_t^T y_t / norm_t

    Time O(N D Dv) per head and memory O(N), in a chunked form. The same bits on every run and for every number of
    threads. Differentiable once, in q, k, v and beta.

    Args:
        q, k: [B, N, H, D]; any strides with a contiguous last dimension (heads of stride 0 included); D in 1..256.
        v: [B, N, H, Dv]; Dv in 1..256. All of one type: float64, float32, bfloat16 or float16.
        beta: [B, N, H], whatever `layout` says; any floating type and strides. Meant to lie in (0, 1), as a sigmoid
            does; not checked.
        feature_map: phi: "elu" (elu(x) + 1), "elu_flip" (elu(-x) + 1), "tanh1" (tanh(x) + 1), "tanh", "relu",
            "softplus" or "identity".
        unit_features: f = phi / sum_d phi for every token and head (0 where that sum is 0); else f = phi. The state
            stays bounded while beta |f(k)|^2 < 2: unit features grant that, raw ones do not.
        normaliser: "none": norm = 1. "output": norm_t = <y_t, z_t> + eps. "output_and_key": that, and what a key reads
            is divided too: with s_t = <x_t, z_{t-1}> (1 for the first token)
            u_t = beta_t s_t / (s_t + eps) (v_t - p_t / (s_t + eps)). For the signed maps tanh and identity s + eps is
            s where abs(s) > eps, else copysign(eps, s), without a gradient there.
        eps: of the normalisers.
        far_scale: multiplies the output.
        token_mask: bool [B, N], True for a real token, any pattern. A masked token is dead, whatever it holds (NaN
            included): it reads and writes nothing, its output is exactly 0, and its gradients are exactly 0.
        layout: "bnhd", or "bhnd" for q, k, v and the result in the order [B, H, N, D]. Neither copies.

    Returns:
        [B, N, H, Dv] in q's type.

    Raises:
        ValueError: naming the argument, what came, what is allowed and the way out.
    """
    function = "fast_weight_attention"
    check_tensors(function, beta=beta, token_mask=token_mask)
    q, k, v = tokens_before_heads(function, layout, q, k, v)
    out = torch.ops.fmmformer.fast_weight_attention(
        q, k, v, beta, token_mask,
        feature_map=feature_map,
        unit_features=unit_features,
        normaliser=normaliser,
        eps=eps,
        far_scale=far_scale,
    )  # fmt: skip
    return back_to(layout, out)


def fast_weight_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, **options: Unpack[FastWeightOptions]
) -> Tensor:
    """`fast_weight_attention` from its formula, token by token in double precision: the truth of every kernel.

    Takes the same arguments and returns float64. Plain differentiable torch operations that keep a state for every
    token. Shares no code with the kernels.
    """
    function = "fast_weight_attention_reference"
    given = _given(function, options)
    check_tensors(function, beta=beta)
    q, k, v = tokens_before_heads(function, given["layout"], q, k, v)
    out = torch.ops.fmmformer.fast_weight_attention_reference(
        q, k, v, beta, given["token_mask"], **_operator_options(given)
    )
    return back_to(given["layout"], out)


def fast_weight_attention_prefill(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, **options: Unpack[FastWeightOptions]
) -> tuple[Tensor, FastWeightState]:
    """Runs a prompt through `fast_weight_attention` and returns its output and the state after it.

    Takes the same arguments. Masked tokens leave no trace, so that prompts of different lengths, padded anywhere, go on
    as each would alone. Decoding is inference: no gradients.

    Returns:
        [B, N, H, Dv] (or the other layout) and the FastWeightState for `fast_weight_attention_step`.
    """
    function = "fast_weight_attention_prefill"
    given = _given(function, options)
    check_tensors(function, beta=beta)
    q, k, v = tokens_before_heads(function, given["layout"], q, k, v)
    with torch.no_grad():
        out, *state = torch.ops.fmmformer.fast_weight_attention_prefill(
            q, k, v, beta, given["token_mask"], **_operator_options(given)
        )
    of_sums = (given[name] for name in ("feature_map", "unit_features", "normaliser"))
    return back_to(given["layout"], out), FastWeightState(*state, *of_sums)


def fast_weight_attention_step(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: FastWeightState, **options: Unpack[FastWeightOptions]
) -> Tensor:
    """One more token after `fast_weight_attention_prefill`; constant time and memory, whatever came before.

    Args:
        q, k: [B, H, D], whatever `layout` says.
        v: [B, H, Dv].
        beta: [B, H].
        state: advanced in place.
        options: those that the state was made with, except that token_mask is bool [B] here.

    Returns:
        [B, H, Dv]: the row that `fast_weight_attention` over the whole sequence would end with.
    """
    function = "fast_weight_attention_step"
    if not isinstance(state, FastWeightState):
        raise TypeError(
            f"{function}: state is of type {type(state).__name__}, wanted is a FastWeightState; "
            "make one with fast_weight_attention_prefill or FastWeightState.load"
        )
    given = _given(function, options)
    check_tensors(function, q=q, k=k, v=v, beta=beta)
    with torch.no_grad():
        return torch.ops.fmmformer.fast_weight_attention_step(
            q, k, v, beta, given["token_mask"],
            *state.tensors(), state.feature_map, state.unit_features, state.normaliser,
            **_operator_options(given),
        )  # fmt: skip


_DEFAULTS: dict[str, Any] = defaults_of(fast_weight_attention)


def _given(function: str, options: FastWeightOptions) -> dict[str, Any]:
    given = with_defaults(function, options, _DEFAULTS)
    check_tensors(function, token_mask=given["token_mask"])
    return given


def _operator_options(given: dict[str, Any]) -> dict[str, Any]:
    """The keyword-only arguments of the C++ operators."""
    return {name: given[name] for name in ("feature_map", "unit_features", "normaliser", "eps", "far_scale")}
