# SPDX-License-Identifier: Apache-2.0
"""The same bits on every run and for every number of threads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import random_inputs, same_bits, value_and_gradients
from torch import Tensor

from fmmformer import fmm_attention, fmm_attention_prefill

# Long enough for several segments of work, and odd.
SHAPE = dict(batch=1, heads=3, length=2111, head_dim=16, value_dim=16)


def everything(dtype: torch.dtype = torch.float32, **options) -> Callable[[], dict[str, Tensor]]:
    tensors = dict(zip("qkv", random_inputs(dtype=dtype, **SHAPE)))
    tensors["near_weight"], tensors["far_weight"] = torch.rand(3, 16), torch.rand(3, 3, 16)
    mask = torch.rand(1, SHAPE["length"]) < 0.9
    upstream = torch.randn(tensors["v"].shape).to(dtype)
    settings = dict(bandwidth=30, feature_maps=("elu", "elu_flip", "tanh1"), token_mask=mask, **options)
    return lambda: value_and_gradients(fmm_attention, tensors, upstream, **settings)


@pytest.mark.parametrize("causal", [False, True])
def test_thirty_backward_runs_are_equal_bit_for_bit(causal: bool) -> None:
    run = everything(causal=causal, near_dropout=0.1, dropout_seed=torch.tensor([3]))
    first = run()
    for _ in range(29):
        again = run()
        assert all(same_bits(again[name], tensor) for name, tensor in first.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_any_number_of_threads_gives_the_same_bits(
    causal: bool, dtype: torch.dtype, set_threads: Callable[[int], None]
) -> None:
    run = everything(dtype, causal=causal)
    set_threads(1)
    one = run()
    for threads in (2, 3):
        set_threads(threads)
        more = run()
        for name, tensor in one.items():
            assert same_bits(more[name], tensor), f"{name} with {threads} threads"


def test_prefill_gives_the_same_state_for_any_number_of_threads(set_threads: Callable[[int], None]) -> None:
    q, k, v = random_inputs(dtype=torch.float32, **SHAPE)
    results = []
    for threads in (1, 2):
        set_threads(threads)
        out, state = fmm_attention_prefill(q, k, v, bandwidth=9, causal=True)
        results.append([out, *state.tensors()])
    assert all(same_bits(a, b) for a, b in zip(*results))


@pytest.mark.parametrize("causal", [False, True])
def test_an_entry_does_not_depend_on_its_neighbours_in_the_batch(causal: bool) -> None:
    q, k, v = random_inputs(batch=5, length=200, dtype=torch.float32)
    together = fmm_attention(q, k, v, bandwidth=5, causal=causal)
    alone = fmm_attention(q[3:4], k[3:4], v[3:4], bandwidth=5, causal=causal)
    assert same_bits(together[3:4], alone)
