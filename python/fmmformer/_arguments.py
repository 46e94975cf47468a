# SPDX-License-Identifier: Apache-2.0
"""What the functions over tensors do with their arguments before the C++ operators check the rest."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import Tensor

Layout = Literal["bnhd", "bhnd"]

_NEVER_NONE = ("q", "k", "v", "beta")


def check_tensors(function: str, **arguments: object) -> None:
    """ValueError naming the first argument that is neither a tensor nor, where that is allowed, None."""
    for name, value in arguments.items():
        if isinstance(value, Tensor) or (value is None and name not in _NEVER_NONE):
            continue
        raise ValueError(
            f"{function}: {name} is of type {type(value).__name__}, wanted is a tensor"
            f"{'' if name in _NEVER_NONE else ' or None'}; make one with torch.tensor or torch.as_tensor"
        )


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Its keyword-only arguments with their defaults, so that these are written once."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def with_defaults(function: str, options: Mapping[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """`options` completed; TypeError naming the nearest option for one that does not exist."""
    for name in options:
        if name not in defaults:
            nearest = difflib.get_close_matches(name, defaults, n=1)
            hint = f"did you mean '{nearest[0]}'?" if nearest else f"see help({function})"
            raise TypeError(f"{function}: unknown option '{name}', allowed are {', '.join(defaults)}; {hint}")
    return {**defaults, **options}


def tokens_before_heads(function: str, layout: str, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Views in the operator's own order, [B, N, H, D]."""
    check_tensors(function, q=q, k=k, v=v)
    if layout == "bnhd":
        return q, k, v
    if layout != "bhnd":
        raise ValueError(
            f"{function}: layout is {layout!r}, allowed are 'bnhd' ([B, N, H, D]) and 'bhnd' ([B, H, N, D]); "
            "transpose other orders first, which copies nothing"
        )
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise ValueError(
                f"{function}: {name} has {tensor.dim()} dimensions ({list(tensor.shape)}), allowed is 4, "
                '[batch, heads, length, dim] with layout="bhnd"'
            )
    # Here rather than in the operator, whose errors would show the shapes transposed.
    if k.shape != q.shape or v.shape[:3] != q.shape[:3]:
        name, other = ("k", k) if k.shape != q.shape else ("v", v)
        raise ValueError(
            f"{function}: {name} has shape {list(other.shape)} but q has {list(q.shape)}; q and k must have equal "
            'shapes, and v may differ in the last dimension alone (layout="bhnd": [batch, heads, length, dim])'
        )
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def back_to(layout: str, out: Tensor) -> Tensor:
    return out.transpose(1, 2) if layout == "bhnd" else out
