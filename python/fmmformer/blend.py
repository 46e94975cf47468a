# SPDX-License-Identifier: Apache-2.0
"""How near and far field are weighted before they are added.

A blend rule is a small module that turns a few learned parameters into (near_weight, far_weight), which broadcast to
[H, Dv] and [r, H, Dv]; None stands for 1. In the formulas S is the near field and L_l the far field of feature map l.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

Weights = tuple[Tensor | None, Tensor | None]


class Blend(nn.Module):
    """Base of the rules. A field that the layer does not have gets no parameters.

    Args:
        heads, value_dim: H and Dv.
        maps: r, the number of feature maps; 0 means that there is no far field.
        near_field: whether there is a band.
    """

    def __init__(self, heads: int, value_dim: int, maps: int, near_field: bool) -> None:
        super().__init__()
        self.heads = heads
        self.value_dim = value_dim
        self.maps = maps
        self.near_field = near_field

    def forward(self) -> Weights:
        raise NotImplementedError

    def _parameter(self, name: str, exists: bool, shape: tuple[int, ...], value: float) -> None:
        self.register_parameter(name, nn.Parameter(torch.full(shape, value)) if exists else None)


class Sum(Blend):
    """S + sum_l L_l, without parameters."""

    def forward(self) -> Weights:
        return None, None


class SigmoidPerHead(Blend):
    """sigmoid(a) S + sigmoid(b) sum_l L_l, a and b per head and starting at 0 and 1: the paper's text."""

    near_logit: Tensor | None
    far_logit: Tensor | None

    def __init__(self, heads: int, value_dim: int, maps: int, near_field: bool) -> None:
        super().__init__(heads, value_dim, maps, near_field)
        self._parameter("near_logit", near_field, (heads, 1), 0.0)
        self._parameter("far_logit", maps > 0, (heads, 1), 1.0)

    def forward(self) -> Weights:
        near = None if self.near_logit is None else self.near_logit.sigmoid()
        far = None if self.far_logit is None else self.far_logit.sigmoid()
        return near, far


class RawPerChannel(Blend):
    """a S + sum_l b_l L_l, all per head and channel; a starts at 0, each b_l at 1/r: the authors' copy task."""

    near_weight: Tensor | None
    far_weight: Tensor | None

    def __init__(self, heads: int, value_dim: int, maps: int, near_field: bool) -> None:
        super().__init__(heads, value_dim, maps, near_field)
        self._parameter("near_weight", near_field, (heads, value_dim), 0.0)
        self._parameter("far_weight", maps > 0, (maps, heads, value_dim), 1.0 / max(maps, 1))

    def forward(self) -> Weights:
        return self.near_weight, self.far_weight


class RawPerHead(Blend):
    """a S + b sum_l c_l L_l, a and b per head and starting at 1 and 0: the authors' ListOps.

    The scalars c start at (1, 0, 0, ..); a single map has none.
    """

    near_weight: Tensor | None
    far_weight: Tensor | None
    map_weight: Tensor | None

    def __init__(self, heads: int, value_dim: int, maps: int, near_field: bool) -> None:
        super().__init__(heads, value_dim, maps, near_field)
        self._parameter("near_weight", near_field, (heads, 1), 1.0)
        self._parameter("far_weight", maps > 0, (heads, 1), 0.0)
        self._parameter("map_weight", maps > 1, (maps, 1, 1), 0.0)
        if self.map_weight is not None:
            self.map_weight.data[0] = 1.0

    def forward(self) -> Weights:
        if self.far_weight is None or self.map_weight is None:
            return self.near_weight, self.far_weight
        return self.near_weight, self.map_weight * self.far_weight


class Convex(Blend):
    """a S + (1 - a) (L_1 + sum_{l>1} c_l L_l), one scalar a = 0.5 and scalars c_l = 0: the authors' Pathfinder."""

    near_share: Tensor
    later_maps: Tensor | None

    def __init__(self, heads: int, value_dim: int, maps: int, near_field: bool) -> None:
        super().__init__(heads, value_dim, maps, near_field)
        self._parameter("near_share", True, (1, 1), 0.5)
        self._parameter("later_maps", maps > 1, (max(maps - 1, 0), 1, 1), 0.0)

    def forward(self) -> Weights:
        near = self.near_share if self.near_field else None
        if self.maps == 0:
            return near, None
        far_share = 1 - self.near_share
        if self.later_maps is None:
            return near, far_share
        first = torch.ones_like(self.later_maps[:1])
        return near, far_share * torch.cat([first, self.later_maps])


RULES: dict[str, type[Blend]] = {
    "paper": SigmoidPerHead,
    "sum": Sum,
    "raw_per_channel": RawPerChannel,
    "raw_per_head": RawPerHead,
    "convex": Convex,
}


def make_blend(rule: str, *, heads: int, value_dim: int, maps: int, near_field: bool) -> Blend:
    """The rule of that name; ValueError naming the allowed ones if there is none."""
    if rule not in RULES:
        raise ValueError(
            f"FMMAttention: blend is {rule!r}, allowed are {', '.join(RULES)}; "
            "or pass a module of your own whose forward() returns (near_weight, far_weight)"
        )
    return RULES[rule](heads, value_dim, maps, near_field)
