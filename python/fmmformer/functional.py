# SPDX-License-Identifier: Apache-2.0
"""FMM attention as functions over tensors.

Everything here is argument handling: schema, gradients, shape-only kernels and arithmetic live in the C++ library, so
these functions work unchanged under autograd, autocast and torch.compile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import TypedDict, Unpack

from fmmformer._arguments import Layout, back_to, check_tensors, defaults_of, tokens_before_heads, with_defaults
from fmmformer.state import FmmState

Normaliser = Literal["row_sum", "inv_sqrt_length", "none"]


class FmmOptions(TypedDict, total=False):
    """The keyword arguments of `fmm_attention`, which explains them and holds their defaults."""

    bandwidth: int | None
    window: tuple[int, int] | None
    causal: bool
    feature_maps: Sequence[str]
    unit_features: bool
    normaliser: Normaliser
    eps: float
    near_scale: float | None
    far_scale: float
    near_weight: Tensor | None
    far_weight: Tensor | None
    token_mask: Tensor | None
    near_dropout: float
    dropout_seed: Tensor | None
    layout: Layout


def fmm_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bandwidth: int | None = None,
    window: tuple[int, int] | None = None,
    causal: bool = False,
    feature_maps: Sequence[str] = ("elu", "elu_flip"),
    unit_features: bool = False,
    normaliser: Normaliser = "row_sum",
    eps: float = 1e-6,
    near_scale: float | None = None,
    far_scale: float = 1.0,
    near_weight: Tensor | None = None,
    far_weight: Tensor | None = None,
    token_mask: Tensor | None = None,
    near_dropout: float = 0.0,
    dropout_seed: Tensor | None = None,
    layout: Layout = "bnhd",
) -> Tensor:
    """FMM attention: softmax inside a band plus r kernelised far fields, blended. For one batch entry and head::

        near_i  = sum_{j in band(i)} softmax_j(near_scale <q_i, k_j>) v_j
        far_l,i = far_scale * sum_{j in reach(i)} <f_l(q_i), f_l(k_j)> v_j / norm_l,i
        out_i   = near_weight * near_i + sum_l far_weight[l] * far_l,i             (products per channel of v)

        band(i)  = { j : -left <= j - i <= right, j a real token, j <= i if causal }
        reach(i) = { j : j a real token, j <= i if causal }

    Time O(N (left + right + r D) D) per head and memory O(N). The same bits on every run and for every number of
    threads. Differentiable once, in q, k, v, near_weight and far_weight.

    Args:
        q, k: [B, N, H, D]; any strides with a contiguous last dimension (heads of stride 0 included); D in 1..256.
        v: [B, N, H, Dv]; Dv in 1..256. All of one type: float64 (CPU only), float32, bfloat16 or float16.
        bandwidth: the paper's k: query i sees the keys with abs(i - j) < k (window (k-1, 0) when causal, else
            (k-1, k-1)). 0 or None: no near field.
        window: (left, right) instead of `bandwidth`: how many keys a query sees to either side of itself.
        causal: cuts band and reach at j <= i.
        feature_maps: 0 to 8 names, one far field each; () means no far field, and a name may repeat. "elu"
            (elu(x) + 1), "elu_flip" (elu(-x) + 1), "tanh1" (tanh(x) + 1, what the authors ran), "tanh" (what the
            paper prints), "relu", "softplus", "identity".
        unit_features: f = phi / sum_d phi for every token and head (0 where that sum is 0); else f = phi.
        normaliser: what a far field is divided by, with s = sum_j <f(q_i), f(k_j)> over the reach. "row_sum": s + eps;
            for the signed maps tanh and identity s where abs(s) > eps, else copysign(eps, s), without a gradient
            there. "inv_sqrt_length": sqrt(N), padding included. "none": 1.
        eps: of "row_sum".
        near_scale: None means 1 / sqrt(D).
        far_scale: multiplies every far field.
        near_weight: broadcasts to [H, Dv]; None means 1. May be float32 beside 16-bit inputs, as may far_weight.
        far_weight: broadcasts to [r, H, Dv]; None means 1.
        token_mask: bool [B, N], True for a real token, any pattern. A masked token is dead, whatever it holds (NaN
            included): as a key it gives nothing, as a query its output is exactly 0, and its gradients are exactly 0.
        near_dropout: probability with which a band entry is dropped after the softmax; the others grow by
            1 / (1 - near_dropout). Rounded to a multiple of 2^-15, at most 1 - 2^-15. This function has no training
            flag: pass 0 in evaluation.
        dropout_seed: int64 [1] on q's device; the same seed gives the same mask on every device and in backward.
            None: drawn from torch's generator when near_dropout > 0.
        layout: "bnhd", or "bhnd" for q, k, v and the result in the order [B, H, N, D]. Neither copies, but for most
            float16 on a GPU, which is converted to float32 and back.

    Returns:
        [B, N, H, Dv] in q's type. A live query always sees itself in its band.

    Raises:
        ValueError: naming the argument, what came, what is allowed and the way out.
    """
    function = "fmm_attention"
    check_tensors(function, near_weight=near_weight, far_weight=far_weight, token_mask=token_mask,
                  dropout_seed=dropout_seed)  # fmt: skip
    q, k, v = tokens_before_heads(function, layout, q, k, v)
    out = torch.ops.fmmformer.fmm_attention(
        q, k, v, near_weight, far_weight, token_mask, _seed(q, near_dropout, dropout_seed),
        window=_window(function, bandwidth, window, causal),
        causal=causal,
        feature_maps=_names(function, feature_maps),
        unit_features=unit_features,
        normaliser=normaliser,
        eps=eps,
        near_scale=near_scale,
        far_scale=far_scale,
        near_dropout=near_dropout,
    )  # fmt: skip
    return back_to(layout, out)


def fmm_attention_reference(q: Tensor, k: Tensor, v: Tensor, **options: Unpack[FmmOptions]) -> Tensor:
    """`fmm_attention` from its formula, dense and in double precision: the truth that every kernel is held against.

    Takes the same arguments and returns float64 [B, N, H, Dv] (or the other layout). Plain differentiable torch
    operations: time and memory O(N^2). Shares no code with the kernels.
    """
    function = "fmm_attention_reference"
    given = _given(function, options)
    q, k, v = tokens_before_heads(function, given["layout"], q, k, v)
    seed = _seed(q, given["near_dropout"], given["dropout_seed"])
    out = torch.ops.fmmformer.fmm_attention_reference(
        q, k, v, *_weights_and_mask(given), seed, **_operator_options(function, given)
    )
    return back_to(given["layout"], out)


def fmm_attention_prefill(q: Tensor, k: Tensor, v: Tensor, **options: Unpack[FmmOptions]) -> tuple[Tensor, FmmState]:
    """Runs a prompt through causal `fmm_attention` and returns its output and the state after it.

    Takes the arguments of `fmm_attention`; `causal` must be True. With a token mask each batch entry's state ends at
    its last real token, so that prompts of different lengths, padded on the left or on the right, go on as each would
    alone. Decoding is inference: no gradients, and `near_dropout` and `dropout_seed` have no effect (they are accepted
    so that one set of options serves training and decoding).

    Returns:
        [B, N, H, Dv] (or the other layout) and the FmmState for `fmm_attention_step`.
    """
    function = "fmm_attention_prefill"
    given = _given(function, options)
    q, k, v = tokens_before_heads(function, given["layout"], q, k, v)
    operator_options = _operator_options(function, given)
    with torch.no_grad():
        out, *state = torch.ops.fmmformer.fmm_attention_prefill(
            q, k, v, *_weights_and_mask(given), **operator_options
        )
    features = tuple(operator_options["feature_maps"]), operator_options["unit_features"]
    return back_to(given["layout"], out), FmmState(*state, *features)


def fmm_attention_step(q: Tensor, k: Tensor, v: Tensor, state: FmmState, **options: Unpack[FmmOptions]) -> Tensor:
    """One more token after `fmm_attention_prefill`; constant time and memory, whatever came before.

    Args:
        q, k: [B, H, D], whatever `layout` says.
        v: [B, H, Dv].
        state: advanced in place.
        options: those that the state was made with, except that token_mask is bool [B] here. "inv_sqrt_length" is an
            error: a step has no length. Dropout is not applied.

    Returns:
        [B, H, Dv]: the row that `fmm_attention` over the whole sequence would end with.
    """
    function = "fmm_attention_step"
    if not isinstance(state, FmmState):
        raise TypeError(
            f"{function}: state is of type {type(state).__name__}, wanted is an FmmState; "
            "make one with fmm_attention_prefill or FmmState.load"
        )
    given = _given(function, options)
    check_tensors(function, q=q, k=k, v=v)
    with torch.no_grad():
        return torch.ops.fmmformer.fmm_attention_step(
            q, k, v, *_weights_and_mask(given), *state.tensors(), list(state.feature_maps), state.unit_features,
            **_operator_options(function, given),
        )  # fmt: skip


def full_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    token_mask: Tensor | None = None,
    dropout: float = 0.0,
    layout: Layout = "bnhd",
) -> Tensor:
    """The quadratic baseline: softmax attention over all keys, with the layouts and mask rules of `fmm_attention`.

    Runs on torch's fused kernels on a GPU in half precision, with the same bits in every run and, under a mask, at the
    cost of the real tokens alone; elsewhere on torch's scaled_dot_product_attention. `scale` None means 1 / sqrt(D); `dropout` draws from torch's own
    generator. Returns [B, N, H, Dv] (or the other layout); masked tokens are dead on both sides.
    """
    check_tensors("full_attention", token_mask=token_mask)
    q, k, v = tokens_before_heads("full_attention", layout, q, k, v)
    out = torch.ops.fmmformer.full_attention(q, k, v, token_mask, causal=causal, scale=scale, dropout=dropout)
    return back_to(layout, out)


_DEFAULTS: dict[str, Any] = defaults_of(fmm_attention)
_TENSOR_OPTIONS = ("near_weight", "far_weight", "token_mask", "dropout_seed")


def _given(function: str, options: FmmOptions) -> dict[str, Any]:
    given = with_defaults(function, options, _DEFAULTS)
    check_tensors(function, **{name: given[name] for name in _TENSOR_OPTIONS})
    return given


def _weights_and_mask(given: dict[str, Any]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    return given["near_weight"], given["far_weight"], given["token_mask"]


def _operator_options(function: str, given: dict[str, Any]) -> dict[str, Any]:
    """The keyword-only arguments of the C++ operators."""
    as_given = ("causal", "unit_features", "normaliser", "eps", "near_scale", "far_scale", "near_dropout")
    return {
        "window": _window(function, given["bandwidth"], given["window"], given["causal"]),
        "feature_maps": _names(function, given["feature_maps"]),
        **{name: given[name] for name in as_given},
    }


def _window(function: str, bandwidth: int | None, window: tuple[int, int] | None, causal: bool) -> list[int] | None:
    """The one place that knows the paper's bandwidth: abs(i - j) < bandwidth."""
    if window is not None:
        if bandwidth is not None:
            raise ValueError(
                f"{function}: both bandwidth={bandwidth} and window={window} are given, allowed is one of them; "
                "pass bandwidth=None to count by window"
            )
        if not isinstance(window, (tuple, list)) or len(window) != 2 or not all(map(_is_integer, window)):
            raise ValueError(
                f"{function}: window is {window!r}, wanted are two integers (left, right); "
                "(4, 0) sees four keys before the query and itself"
            )
        return list(window)
    if bandwidth is None:
        return None
    if not _is_integer(bandwidth) or bandwidth < 0:
        raise ValueError(
            f"{function}: bandwidth is {bandwidth!r}, allowed is an integer >= 0; "
            "it keeps abs(i - j) < bandwidth, and 0 means no near field"
        )
    if bandwidth == 0:
        return None
    return [bandwidth - 1, 0 if causal else bandwidth - 1]


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _names(function: str, feature_maps: Sequence[str]) -> list[str]:
    # A plain string is a sequence too: of letters, and each would be reported as an unknown map.
    if isinstance(feature_maps, str) or not isinstance(feature_maps, (tuple, list)):
        raise ValueError(
            f"{function}: feature_maps is {feature_maps!r}, wanted is a tuple or list of names; "
            'write ("elu",) for a single map and () for none'
        )
    return list(feature_maps)


def _seed(q: Tensor, near_dropout: float, dropout_seed: Tensor | None) -> Tensor | None:
    if dropout_seed is None and near_dropout > 0:
        return torch.randint(2**63 - 1, (1,), dtype=torch.int64, device=q.device)
    return dropout_seed
