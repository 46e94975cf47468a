# SPDX-License-Identifier: Apache-2.0
"""What causal attention remembers between tokens."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable

import torch
from torch import Tensor


@dataclasses.dataclass(eq=False, repr=False)
class FmmState:
    """All that causal FMM attention keeps of the tokens so far: constant in their number.

    Made by `fmm_attention_prefill`, advanced in place by `fmm_attention_step`. Keys and values have the type of the
    inputs, sums are fp32 (fp64 for fp64 inputs). Without a near field `left` is 0, without a far field r is 0.
    """

    keys: Tensor  #: [B, left, H, D]: the last `left` keys, a ring with slot = position % left
    values: Tensor  #: [B, left, H, Dv]: their values
    live: Tensor  #: bool [B, left]: whether a slot holds a real token
    far_sums: Tensor  #: [B, H, r, D, Dv]: sum_j f_l(k_j) v_j^T
    far_key_sums: Tensor  #: [B, H, r, D]: sum_j f_l(k_j)
    position: Tensor  #: int64 [1]: how many tokens were fed in
    feature_maps: tuple[str, ...]  #: whose sums these are; a step with others is an error
    unit_features: bool  #: likewise

    def __repr__(self) -> str:
        batch, left, heads, dim = self.keys.shape
        return (
            f"FmmState(position={self.position.item()}, batch={batch}, heads={heads}, head_dim={dim}, "
            f"value_dim={self.values.shape[-1]}, left={left}, feature_maps={self.feature_maps}, "
            f"unit_features={self.unit_features}, dtype={self.keys.dtype}, device={self.keys.device})"
        )

    def tensors(self) -> list[Tensor]:
        """The six tensors, in the order of the fields: what the operators take."""
        return [self.keys, self.values, self.live, self.far_sums, self.far_key_sums, self.position]

    def to(self, device: torch.device | str) -> FmmState:
        """The same state on another device (itself where it is there already: see `torch.Tensor.to`)."""
        return self._with(tensor.to(device) for tensor in self.tensors())

    def clone(self) -> FmmState:
        """An independent copy: several continuations can start from one prompt."""
        return self._with(tensor.clone() for tensor in self.tensors())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one safetensors file, whole or not at all; ValueError where its folder does not exist."""
        torch.ops.fmmformer.fmm_state_save(
            os.fspath(path), self.tensors(), list(self.feature_maps), self.unit_features
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FmmState:
        """Reads what `save` wrote, onto the CPU.

        Raises ValueError, saying what is wrong, for a file that is missing, cut short, damaged, of another version or
        no FmmState.
        """
        tensors, feature_maps, unit_features = torch.ops.fmmformer.fmm_state_load(os.fspath(path))
        return cls(*tensors, tuple(feature_maps), unit_features)

    def _with(self, tensors: Iterable[Tensor]) -> FmmState:
        return FmmState(*tensors, self.feature_maps, self.unit_features)


@dataclasses.dataclass(eq=False, repr=False)
class FastWeightState:
    """All that fast-weight attention keeps of the tokens so far: constant in their number.

    Made by `fast_weight_attention_prefill`, advanced in place by `fast_weight_attention_step`. Sums are fp32 (fp64 for
    fp64 inputs).
    """

    memory: Tensor  #: [B, H, D, Dv]: W
    key_sums: Tensor  #: [B, H, D]: z
    tokens: Tensor  #: int64 [B]: how many real tokens were fed in
    feature_map: str  #: whose sums these are; a step with another is an error
    unit_features: bool  #: likewise
    normaliser: str  #: likewise

    def __repr__(self) -> str:
        batch, heads, dim, value_dim = self.memory.shape
        return (
            f"FastWeightState(tokens={self.tokens.tolist()}, batch={batch}, heads={heads}, head_dim={dim}, "
            f"value_dim={value_dim}, feature_map={self.feature_map!r}, unit_features={self.unit_features}, "
            f"normaliser={self.normaliser!r}, dtype={self.memory.dtype}, device={self.memory.device})"
        )

    def tensors(self) -> list[Tensor]:
        """The three tensors, in the order of the fields: what the operators take."""
        return [self.memory, self.key_sums, self.tokens]

    def to(self, device: torch.device | str) -> FastWeightState:
        """The same state on another device (itself where it is there already: see `torch.Tensor.to`)."""
        return self._with(tensor.to(device) for tensor in self.tensors())

    def clone(self) -> FastWeightState:
        """An independent copy: several continuations can start from one prompt."""
        return self._with(tensor.clone() for tensor in self.tensors())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one safetensors file, whole or not at all; ValueError where its folder does not exist."""
        torch.ops.fmmformer.fast_weight_state_save(os.fspath(path), self.tensors(), *self._options())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FastWeightState:
        """Reads what `save` wrote, onto the CPU.

        Raises ValueError, saying what is wrong, for a file that is missing, cut short, damaged, of another version or
        no FastWeightState.
        """
        tensors, *options = torch.ops.fmmformer.fast_weight_state_load(os.fspath(path))
        return cls(*tensors, *options)

    def _with(self, tensors: Iterable[Tensor]) -> FastWeightState:
        return FastWeightState(*tensors, *self._options())

    def _options(self) -> tuple[str, bool, str]:
        return self.feature_map, self.unit_features, self.normaliser


@dataclasses.dataclass(eq=False)
class AttentionState:
    """What an FMMAttention layer with fast weights keeps: the states of its two operators."""

    fields: FmmState | None  #: of near field and linear far fields; None where the layer has none
    fast: FastWeightState  #: of the fast-weight far field

    def to(self, device: torch.device | str) -> AttentionState:
        """The same state on another device."""
        return AttentionState(self.fields and self.fields.to(device), self.fast.to(device))

    def clone(self) -> AttentionState:
        """An independent copy: several continuations can start from one prompt."""
        return AttentionState(self.fields and self.fields.clone(), self.fast.clone())
