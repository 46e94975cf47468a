# SPDX-License-Identifier: Apache-2.0
"""The shipped reference against independent ways to know the answer."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import CASES, Case, as_leaves, assert_close, loop_attention, random_inputs, random_weights

from fmmformer import fmm_attention_reference, full_attention


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_equals_the_formula_written_as_loops(case: Case) -> None:
    q, k, v = random_inputs(length=9, shift=case.shift)
    options = {**case.options, **random_weights(case)}
    assert_close(fmm_attention_reference(q, k, v, **options), loop_attention(q, k, v, **options), 1e-14)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_equals_the_formula_with_masked_tokens(case: Case) -> None:
    q, k, v = random_inputs(length=9, shift=case.shift)
    mask = torch.tensor([[1, 1, 0, 0, 0, 1, 1, 1, 0], [0] * 9], dtype=torch.bool)
    options = {**case.options, **random_weights(case), "token_mask": mask}
    expected = loop_attention(q, k, v, **options)
    for tensor in (q, k, v):
        tensor[~mask] = math.nan
    assert_close(fmm_attention_reference(q, k, v, **options), expected, 1e-14)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_has_the_gradients_of_its_values(case: Case) -> None:
    q, k, v = as_leaves(*random_inputs(batch=1, length=6, head_dim=3, shift=case.shift))
    weights = random_weights(case)
    leaves = as_leaves(*weights.values())

    def function(q, k, v, *leaves):
        return fmm_attention_reference(q, k, v, **dict(zip(weights, leaves)), **case.options)

    assert torch.autograd.gradcheck(function, (q, k, v, *leaves))


def test_reference_returns_double_for_every_input_type() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert fmm_attention_reference(*random_inputs(dtype=dtype), bandwidth=3).dtype == torch.float64


@pytest.mark.parametrize("causal", [False, True])
def test_a_band_wider_than_the_sequence_is_full_softmax_attention(causal: bool) -> None:
    q, k, v = random_inputs()
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal
    ).transpose(1, 2)
    band = fmm_attention_reference(q, k, v, bandwidth=21, causal=causal, feature_maps=())
    assert_close(band, expected, 1e-14)
    assert_close(full_attention(q, k, v, causal=causal), expected, 1e-14)


def test_a_band_of_one_returns_the_values() -> None:
    q, k, v = random_inputs()
    assert_close(fmm_attention_reference(q, k, v, bandwidth=1, feature_maps=()), v, 1e-15)


def test_a_far_field_of_equal_features_is_the_mean_of_the_values() -> None:
    q, _, v = random_inputs()
    same = torch.zeros_like(q)
    mean = fmm_attention_reference(same, same, v, feature_maps=("elu",), eps=0.0)
    assert_close(mean, v.mean(1, keepdim=True).expand_as(v), 1e-14)
    length, head_dim = q.shape[1], q.shape[3]
    scaled = fmm_attention_reference(same, same, v, feature_maps=("elu",), normaliser="inv_sqrt_length")
    assert_close(scaled, math.sqrt(length) * head_dim * mean, 1e-14)


def test_full_attention_treats_masked_tokens_like_the_operator_does() -> None:
    q, k, v = random_inputs()
    mask = torch.rand(q.shape[:2]) < 0.6
    expected = fmm_attention_reference(q, k, v, window=(99, 99), feature_maps=(), token_mask=mask)
    for tensor in (q, k, v):
        tensor[~mask] = math.nan
    leaves = as_leaves(q, k, v)
    out = full_attention(*leaves, token_mask=mask)
    assert_close(out, expected, 1e-14)
    for gradient in torch.autograd.grad(out.sum(), leaves):
        assert torch.all(gradient[~mask] == 0) and torch.all(gradient.isfinite())


def test_full_attention_takes_both_layouts_and_a_scale() -> None:
    q, k, v = random_inputs()
    heads_first = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    expected = fmm_attention_reference(q, k, v, bandwidth=30, near_scale=0.3, causal=True, feature_maps=())
    out = full_attention(*heads_first, causal=True, scale=0.3, layout="bhnd")
    assert_close(out.transpose(1, 2), expected, 1e-14)
