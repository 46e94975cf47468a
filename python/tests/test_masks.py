# SPDX-License-Identifier: Apache-2.0
"""Masked tokens are dead, wherever they stand and whatever they hold."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import ALLOWED_RMS, TYPES, assert_all_close, assert_close, random_inputs, same_bits, value_and_gradients
from torch import Tensor

from fmmformer import fmm_attention, fmm_attention_prefill, fmm_attention_reference, fmm_attention_step

LENGTH = 83


def mask_of(pattern: str) -> Tensor:
    mask = torch.ones(2, LENGTH, dtype=torch.bool)
    match pattern:
        case "left":
            mask[0, :20], mask[1, :1] = False, False
        case "right":
            mask[0, -20:], mask[1, -65:] = False, False
        case "interior":
            mask[0, 10:30], mask[1, 60:62] = False, False
        case "scattered":
            mask = torch.rand(2, LENGTH) < 0.5
        case "one_entry_dead":
            mask[0] = False
    return mask


PATTERNS = ["left", "right", "interior", "scattered", "one_entry_dead"]
GARBAGE = [0.0, -50.0, math.nan, math.inf, -math.inf]


def filled(tensors: dict[str, Tensor], mask: Tensor, garbage: float) -> dict[str, Tensor]:
    """The same tensors with `garbage` at the masked tokens."""
    dead = ~mask[:, :, None, None]
    return {name: tensor.masked_fill(dead, garbage) for name, tensor in tensors.items()}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_masked_sequences_equal_the_reference(pattern: str, causal: bool, dtype: torch.dtype) -> None:
    tensors = dict(zip("qkv", random_inputs(length=LENGTH, dtype=dtype)))
    upstream = torch.randn(tensors["v"].shape).to(dtype)
    options = dict(bandwidth=5, causal=causal, token_mask=mask_of(pattern))
    actual = value_and_gradients(fmm_attention, tensors, upstream, **options)
    expected = value_and_gradients(fmm_attention_reference, tensors, upstream, **options)
    assert_all_close(actual, expected, dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_masked_tokens_hold_changes_no_bit_and_gets_no_gradient(pattern: str, causal: bool) -> None:
    mask = mask_of(pattern)
    tensors = dict(zip("qkv", random_inputs(length=LENGTH, dtype=torch.float32)))
    upstream = torch.randn_like(tensors["v"]).masked_fill(~mask[:, :, None, None], math.nan)
    weights = {"near_weight": torch.rand(2, 5), "far_weight": torch.rand(2, 2, 1)}
    options = dict(bandwidth=5, causal=causal, token_mask=mask)
    expected = None
    for garbage in GARBAGE:
        inputs = {**filled(tensors, mask, garbage), **weights}
        result = value_and_gradients(fmm_attention, inputs, upstream, **options)
        for name in ("out", "q", "k", "v"):
            assert torch.all(result[name][~mask] == 0), f"{name} with {garbage}"
        expected = expected or result
        for name, tensor in result.items():
            assert torch.all(tensor.isfinite()) and same_bits(tensor, expected[name]), f"{name} with {garbage}"


@pytest.mark.parametrize("unit_features", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_at_an_end_equals_the_sequence_alone(side: str, causal: bool, unit_features: bool) -> None:
    q, k, v = random_inputs(length=LENGTH, dtype=torch.float32)
    options = dict(bandwidth=5, causal=causal, unit_features=unit_features)
    real = slice(30, None) if side == "left" else slice(None, -30)
    mask = torch.zeros(2, LENGTH, dtype=torch.bool)
    mask[:, real] = True
    padded = fmm_attention(q, k, v, token_mask=mask, **options)
    alone = fmm_attention(q[:, real], k[:, real], v[:, real], **options)
    assert_close(padded[:, real], alone, ALLOWED_RMS[torch.float32][0])


def test_a_mask_of_all_true_changes_no_bit() -> None:
    q, k, v = random_inputs(length=LENGTH, dtype=torch.float32)
    mask = torch.ones(2, LENGTH, dtype=torch.bool)
    assert same_bits(fmm_attention(q, k, v, bandwidth=5), fmm_attention(q, k, v, bandwidth=5, token_mask=mask))


def test_an_expanded_or_transposed_mask_works() -> None:
    q, k, v = random_inputs(length=LENGTH, dtype=torch.float32)
    mask = mask_of("scattered")
    expected = fmm_attention(q, k, v, bandwidth=5, token_mask=mask)
    assert same_bits(fmm_attention(q, k, v, bandwidth=5, token_mask=mask.t().contiguous().t()), expected)
    row = mask[:1]
    expected = fmm_attention(q, k, v, bandwidth=5, token_mask=row.repeat(2, 1))
    assert same_bits(fmm_attention(q, k, v, bandwidth=5, token_mask=row.expand(2, -1)), expected)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_masked_tokens_hold_does_not_reach_the_cached_state(pattern: str) -> None:
    mask = mask_of(pattern)
    tensors = dict(zip("qkv", random_inputs(length=LENGTH, dtype=torch.float32)))
    options = dict(bandwidth=5, causal=True)
    expected = None
    for garbage in GARBAGE:
        out, state = fmm_attention_prefill(**filled(tensors, mask, garbage), token_mask=mask, **options)
        result = [out, *state.tensors()]
        expected = expected or result
        assert all(same_bits(a, b) for a, b in zip(result, expected)), garbage
        assert all(torch.all(tensor.isfinite()) for tensor in result), garbage


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_prompts_of_different_lengths_go_on_as_each_would_alone(side: str) -> None:
    lengths, longest, more = [1, 4, 30, 64, 50], 64, 12
    q, k, v = random_inputs(batch=len(lengths), length=longest + more, dtype=torch.float32)
    options = dict(bandwidth=9, causal=True)
    starts = [longest - n if side == "left" else 0 for n in lengths]
    mask = torch.zeros(len(lengths), longest, dtype=torch.bool)
    for b, (start, n) in enumerate(zip(starts, lengths)):
        mask[b, start : start + n] = True
    prompts = {name: t[:, :longest] for name, t in dict(q=q, k=k, v=v).items()}
    out, state = fmm_attention_prefill(**filled(prompts, mask, math.nan), token_mask=mask, **options)
    tokens = range(longest, longest + more)
    steps = [fmm_attention_step(q[:, t], k[:, t], v[:, t], state, **options) for t in tokens]
    for b, (start, n) in enumerate(zip(starts, lengths)):
        kept = [*range(start, start + n), *tokens]
        expected = fmm_attention_reference(*(t[b : b + 1, kept] for t in (q, k, v)), **options)[0]
        actual = torch.cat([out[b, start : start + n], torch.stack([step[b] for step in steps])])
        assert_close(actual, expected, ALLOWED_RMS[torch.float32][0], f"entry {b}")


def test_interior_holes_in_a_prompt_keep_their_distance() -> None:
    q, k, v = random_inputs(length=40, dtype=torch.float32)
    mask = torch.rand(2, 40) < 0.6
    mask[:, 27] = True  # the prompt ends with a real token, so that nothing moves
    options = dict(bandwidth=6, causal=True)
    expected = fmm_attention_reference(q, k, v, token_mask=mask, **options)
    _, state = fmm_attention_prefill(q[:, :28], k[:, :28], v[:, :28], token_mask=mask[:, :28], **options)
    for t in range(28, 40):
        live = mask[:, t]
        step = fmm_attention_step(q[:, t], k[:, t], v[:, t], state, token_mask=live, **options)
        assert_close(step, expected[:, t], ALLOWED_RMS[torch.float32][0], f"token {t}")
        assert torch.all(step[~live] == 0)


def test_what_a_masked_step_holds_does_not_reach_the_state() -> None:
    q, k, v = random_inputs(length=12, dtype=torch.float32)
    options = dict(bandwidth=4, causal=True)
    live = torch.tensor([True, False])
    results = []
    for garbage in GARBAGE:
        _, state = fmm_attention_prefill(q[:, :8], k[:, :8], v[:, :8], **options)
        token = [t[:, 8].masked_fill(~live[:, None, None], garbage) for t in (q, k, v)]
        out = fmm_attention_step(*token, state, token_mask=live, **options)
        assert torch.all(out[1] == 0)
        after = [fmm_attention_step(q[:, t], k[:, t], v[:, t], state, **options) for t in range(9, 12)]
        results.append([out, *after, *state.tensors()])
    for result in results:
        assert all(torch.all(t.isfinite()) and same_bits(t, u) for t, u in zip(result, results[0]))
