# SPDX-License-Identifier: Apache-2.0
"""Shapes at which tiles end: every short length, long ones, nothing, very many heads; and what lies beyond the ends."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import (
    ALLOWED_RMS,
    assert_all_close,
    assert_close,
    dense_attention,
    random_inputs,
    same_bits,
    value_and_gradients,
)
from torch import Tensor

from fmmformer import fmm_attention, fmm_attention_prefill, fmm_attention_reference, fmm_attention_step

OPTIONS = dict(bandwidth=7, feature_maps=("elu", "elu_flip"))


@pytest.mark.parametrize("causal", [False, True])
def test_every_length_from_1_to_130_equals_the_reference(causal: bool) -> None:
    for length in range(1, 131):
        tensors = dict(zip("qkv", random_inputs(length=length, dtype=torch.float32, batch=1)))
        upstream = torch.randn_like(tensors["v"])
        actual = value_and_gradients(fmm_attention, tensors, upstream, causal=causal, **OPTIONS)
        expected = value_and_gradients(fmm_attention_reference, tensors, upstream, causal=causal, **OPTIONS)
        assert_all_close(actual, expected, torch.float32)


def test_prefill_and_steps_equal_the_reference_at_every_length_from_1_to_130() -> None:
    options = dict(causal=True, **OPTIONS)
    for length in range(1, 131):
        q, k, v = random_inputs(length=length, dtype=torch.float32, batch=1)
        prompt = (length + 2) // 3
        out, state = fmm_attention_prefill(q[:, :prompt], k[:, :prompt], v[:, :prompt], **options)
        steps = [fmm_attention_step(q[:, t], k[:, t], v[:, t], state, **options) for t in range(prompt, length)]
        joined = torch.cat([out, *(step[:, None] for step in steps)], dim=1)
        assert_close(joined, fmm_attention_reference(q, k, v, **options), ALLOWED_RMS[torch.float32][0])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("length", "dim"), [(8191, 4), (8192, 4), (8193, 4), (8193, 16), (8193, 32), (8193, 64), (8193, 128), (65536, 64)]
)
def test_long_odd_lengths_equal_the_formula_in_selected_rows(length: int, dim: int, causal: bool) -> None:
    rows = [0, 1, 63, 64, 511, 512, 1023, 4096, 8128, length - 2, length - 1]
    tensors = dict(zip("qkv", random_inputs(1, length, 2, dim, dim, torch.float32)))
    upstream = torch.zeros_like(tensors["v"])
    upstream[:, rows] = torch.randn_like(upstream[:, rows])
    actual = value_and_gradients(fmm_attention, tensors, upstream, causal=causal, **OPTIONS)
    doubles = {name: tensor.double() for name, tensor in tensors.items()}
    expected = value_and_gradients(dense_attention, doubles, upstream[:, rows], rows=rows, causal=causal, **OPTIONS)
    actual["out"] = actual["out"][:, rows]
    # The gradient lives on few rows, so its mean is small; measured against its own size.
    for name, truth in expected.items():
        error = (actual[name].double() - truth).norm() / truth.norm()
        assert error <= ALLOWED_RMS[torch.float32][1], f"{name}: {error:.2e}"


@pytest.mark.parametrize("causal", [False, True])
def test_more_than_65535_batch_entries_times_heads_work(causal: bool) -> None:
    tensors = dict(zip("qkv", random_inputs(batch=16400, heads=4, length=2, head_dim=2, dtype=torch.float32)))
    upstream = torch.randn_like(tensors["v"])
    actual = value_and_gradients(fmm_attention, tensors, upstream, causal=causal, bandwidth=2)
    expected = value_and_gradients(fmm_attention_reference, tensors, upstream, causal=causal, bandwidth=2)
    assert_all_close(actual, expected, torch.float32)


@pytest.mark.parametrize("causal", [False, True])
def test_a_single_token_sees_itself(causal: bool) -> None:
    q, k, v = random_inputs(length=1)
    assert_close(fmm_attention(q, k, v, bandwidth=5, causal=causal, feature_maps=()), v, 1e-15)
    assert_close(fmm_attention(q, k, v, causal=causal, feature_maps=("elu",), eps=0.0), v, 1e-15)


@pytest.mark.parametrize("causal", [False, True])
def test_a_batch_of_none_gives_an_empty_result_and_gradients(causal: bool) -> None:
    tensors = dict(zip("qkv", random_inputs(batch=0, dtype=torch.float32)))
    tensors["near_weight"] = torch.ones(2, 1)
    actual = value_and_gradients(fmm_attention, tensors, torch.empty(tensors["v"].shape), causal=causal, bandwidth=3)
    assert actual["out"].shape == (0, 21, 2, 5) and actual["q"].shape == (0, 21, 2, 4)
    assert torch.all(actual["near_weight"] == 0)


def test_neither_field_gives_zeros_and_zero_gradients() -> None:
    tensors = dict(zip("qkv", random_inputs()))
    actual = value_and_gradients(fmm_attention, tensors, torch.randn_like(tensors["v"]), feature_maps=())
    assert all(torch.all(tensor == 0) for tensor in actual.values())


def test_empty_bands_give_zeros_and_lonely_tokens_see_themselves() -> None:
    tensors = dict(zip("qkv", random_inputs(batch=1, length=30)))
    mask = torch.zeros(1, 30, dtype=torch.bool)
    mask[:, ::10] = True  # real tokens 0, 10, 20: none is in another's band
    out = fmm_attention(**tensors, window=(3, 9), feature_maps=(), token_mask=mask)
    assert_close(out[mask], tensors["v"][mask], 1e-15)
    assert torch.all(out[~mask] == 0)
    nobody = value_and_gradients(
        fmm_attention, tensors, torch.randn_like(out), bandwidth=3, token_mask=torch.zeros_like(mask)
    )
    assert all(torch.all(tensor == 0) for tensor in nobody.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_inputs_of_magnitude_ten_at_length_65536_stay_finite(causal: bool, dtype: torch.dtype) -> None:
    tensors = dict(zip("qkv", random_inputs(batch=1, heads=1, length=65536, head_dim=16, value_dim=16)))
    tensors = {name: (10 * tensor).to(dtype) for name, tensor in tensors.items()}
    options = dict(bandwidth=30, causal=causal, feature_maps=("elu", "elu_flip", "tanh1"))
    upstream = torch.randn(tensors["v"].shape).to(dtype)
    actual = value_and_gradients(fmm_attention, tensors, upstream, **options)
    for name, tensor in actual.items():
        assert torch.all(tensor.isfinite()), name
    rows = [0, 1000, 32768, 65535]
    exact = dense_attention(*(tensor.double() for tensor in tensors.values()), rows=rows, **options)
    assert_close(actual["out"][:, rows], exact, 2 * ALLOWED_RMS[dtype][0])


# --- beyond the ends ------------------------------------------------------------------------------

ODD_SHAPE = dict(batch=2, length=97, heads=3, head_dim=5, value_dim=7)


def with_weights(tensors: tuple[Tensor, Tensor, Tensor]) -> dict[str, Tensor]:
    return {**dict(zip("qkv", tensors)), "near_weight": torch.rand(3, 7), "far_weight": torch.rand(2, 3, 7)}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_partial_tiles_do_not_show_what_fresh_memory_held(
    request: pytest.FixtureRequest, dtype: torch.dtype, causal: bool
) -> None:
    tensors = with_weights(random_inputs(dtype=dtype, **ODD_SHAPE))
    if dtype == torch.float64:
        tensors = {name: tensor.double() for name, tensor in tensors.items()}
    mask = torch.rand(2, 97) < 0.8
    upstream = torch.randn(tensors["v"].shape).to(dtype)
    options = dict(causal=causal, token_mask=mask, **OPTIONS)
    before = value_and_gradients(fmm_attention, tensors, upstream, **options)
    request.getfixturevalue("poisoned_memory")
    assert torch.empty(1).isnan()
    after = value_and_gradients(fmm_attention, tensors, upstream, **options)
    for name, tensor in before.items():
        assert torch.all(tensor.isfinite()) and same_bits(after[name], tensor), name


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("width", [5, 64, 256])
def test_nan_in_one_call_does_not_reach_the_next(width: int, causal: bool) -> None:
    """Scratch memory is kept between calls."""
    shape = dict(batch=1, length=97, heads=2, head_dim=width, value_dim=width, dtype=torch.float32)
    clean = dict(zip("qkv", random_inputs(**shape)))
    poison = {name: torch.full_like(tensor, math.nan) for name, tensor in clean.items()}
    upstream = torch.ones_like(clean["v"])
    before = value_and_gradients(fmm_attention, clean, upstream, causal=causal, **OPTIONS)
    value_and_gradients(fmm_attention, poison, upstream, causal=causal, **OPTIONS)
    after = value_and_gradients(fmm_attention, clean, upstream, causal=causal, **OPTIONS)
    for name, tensor in before.items():
        assert torch.all(tensor.isfinite()) and same_bits(after[name], tensor), name


def test_prefill_and_steps_do_not_show_what_fresh_memory_held(poisoned_memory: None) -> None:
    q, k, v = random_inputs(dtype=torch.float32, **ODD_SHAPE)
    options = dict(causal=True, **OPTIONS)
    for prompt in (1, 3, 90):
        out, state = fmm_attention_prefill(q[:, :prompt], k[:, :prompt], v[:, :prompt], **options)
        assert torch.all(out.isfinite())
        for t in range(prompt, prompt + 7):
            assert torch.all(fmm_attention_step(q[:, t], k[:, t], v[:, t], state, **options).isfinite())


@pytest.mark.parametrize("causal", [False, True])
def test_what_lies_around_the_inputs_is_never_read(causal: bool) -> None:
    def inside_poison(tensor: Tensor) -> Tensor:
        batch, length, heads, dim = tensor.shape
        around = torch.full((batch + 2, length + 2, heads + 2, dim + 2), math.nan)
        view = around[1:-1, 1:-1, 1:-1, 1:-1]
        view.copy_(tensor)
        return view

    q, k, v = random_inputs(dtype=torch.float32, **ODD_SHAPE)
    upstream = torch.randn_like(v)
    options = dict(causal=causal, **OPTIONS)
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    views = [inside_poison(tensor.detach()).requires_grad_() for tensor in leaves]
    expected, actual = (fmm_attention(*tensors, **options) for tensors in (leaves, views))
    assert same_bits(actual.detach(), expected.detach())
    expected = torch.autograd.grad(expected, leaves, upstream)
    actual = torch.autograd.grad(actual, views, inside_poison(upstream))
    assert all(same_bits(a, b) for a, b in zip(actual, expected))
