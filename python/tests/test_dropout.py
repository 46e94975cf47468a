# SPDX-License-Identifier: Apache-2.0
"""Dropout on the band's probabilities."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import (
    TYPES,
    assert_all_close,
    assert_close,
    loop_attention,
    philox,
    random_inputs,
    same_bits,
    value_and_gradients,
)
from torch import Tensor

from fmmformer import fmm_attention, fmm_attention_reference

SEED = torch.tensor([123456789012345])


def band_probabilities(length: int, probability: float, seed: Tensor | None, batch: int = 1, heads: int = 2, **options):
    """The near field's matrix [B, N, H, N]: equal keys, and values that are unit vectors."""
    q = torch.zeros(batch, length, heads, 4)
    v = torch.eye(length)[None, :, None, :].expand(batch, length, heads, length)
    settings = dict(window=(length, length), feature_maps=(), near_dropout=probability, dropout_seed=seed)
    return fmm_attention(q, q, v, **{**settings, **options})


def test_philox_gives_its_published_numbers() -> None:
    """The known answers that its authors ship."""
    assert philox([0, 0, 0, 0], 0) == [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]
    assert philox([2**32 - 1] * 4, -1) == [0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662]
    counter = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    assert philox(counter, 0x299F31D0A4093822) == [0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A]


@pytest.mark.parametrize("seed", [0, 1, 2**40 + 17, -3])
def test_the_mask_is_the_documented_function_of_seed_and_place(seed: int) -> None:
    q, k, v = random_inputs(length=37)
    options = dict(bandwidth=19, near_dropout=0.4, dropout_seed=torch.tensor([seed]))
    expected = loop_attention(q, k, v, **options)
    assert_close(fmm_attention_reference(q, k, v, **options), expected, 1e-14)
    assert_close(fmm_attention(q, k, v, **options), expected, 1e-13)


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_that_share_of_entries_is_dropped_and_the_others_grow(probability: float) -> None:
    kept = band_probabilities(200, probability, SEED, batch=3)
    share = 1 / 200 / (1 - probability)
    assert torch.all((kept == 0) | ((kept - share).abs() < 1e-4 * share))
    entries = kept.numel()
    deviation = (probability * (1 - probability) / entries) ** 0.5
    assert abs(float((kept == 0).float().mean()) - probability) < 5 * deviation


def test_the_mean_over_seeds_is_the_output_without_dropout() -> None:
    q, k, v = random_inputs(length=24, dtype=torch.float32)
    options = dict(bandwidth=6, causal=True)
    runs = [
        fmm_attention(q, k, v, near_dropout=0.3, dropout_seed=torch.tensor([seed]), **options) for seed in range(4000)
    ]
    mean, spread = torch.stack(runs).mean(0), torch.stack(runs).std(0)
    error = (mean - fmm_attention(q, k, v, **options)).abs() / (spread / 4000**0.5 + 1e-6)
    assert error.max() < 6  # standard errors


def test_a_probability_close_to_one_keeps_something_and_no_infinity() -> None:
    kept = band_probabilities(200, 0.999999, SEED, batch=8)
    assert torch.all(torch.isfinite(kept)) and 0 < int((kept > 0).sum()) < 100


def test_the_same_seed_gives_the_same_mask_and_another_seed_another() -> None:
    first = band_probabilities(64, 0.5, SEED)
    assert same_bits(band_probabilities(64, 0.5, SEED), first)
    agreement = ((band_probabilities(64, 0.5, SEED + 1) == 0) == (first == 0)).float().mean()
    assert 0.45 < agreement < 0.55


def test_masks_of_batch_entries_heads_rows_and_columns_are_unrelated() -> None:
    dropped = (band_probabilities(64, 0.5, SEED, batch=2) == 0).transpose(1, 2)  # [B, H, N, N]
    rolled = [dropped.roll(shift, dim) for dim in (2, 3) for shift in (1, 2, 4, 8, 16)]
    for other in (dropped.flip(0), dropped.flip(1), *rolled):
        assert 0.45 < (dropped == other).float().mean() < 0.55


def test_the_mask_of_an_entry_does_not_depend_on_the_window() -> None:
    whole = band_probabilities(64, 0.5, SEED)[0].transpose(0, 1)
    band = band_probabilities(64, 0.5, SEED, window=(7, 2))[0].transpose(0, 1)
    i, j = torch.arange(64)[:, None], torch.arange(64)[None, :]
    visible = (j - i >= -7) & (j - i <= 2)
    assert torch.equal((whole == 0)[:, visible], (band == 0)[:, visible])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_value_and_gradients_equal_the_reference_under_the_same_mask(causal: bool, dtype: torch.dtype) -> None:
    tensors = dict(zip("qkv", random_inputs(length=77, dtype=dtype)))
    tensors["near_weight"] = torch.rand(2, 5, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    mask = torch.rand(2, 77) < 0.8
    options = dict(bandwidth=9, causal=causal, token_mask=mask, near_dropout=0.3, dropout_seed=SEED)
    upstream = torch.randn(tensors["v"].shape).to(dtype)
    actual = value_and_gradients(fmm_attention, tensors, upstream, **options)
    doubles = {name: tensor.double() for name, tensor in tensors.items()}
    expected = value_and_gradients(fmm_attention_reference, doubles, upstream, **options)
    assert_all_close(actual, expected, dtype)


def test_the_mask_is_the_same_for_any_number_of_threads(set_threads: Callable[[int], None]) -> None:
    q, k, v = random_inputs(length=1500, dtype=torch.float32)
    results = []
    for threads in (1, 2):
        set_threads(threads)
        results.append(fmm_attention(q, k, v, bandwidth=9, near_dropout=0.3, dropout_seed=SEED))
    assert same_bits(*results)


def test_without_a_seed_torchs_generator_decides() -> None:
    q, k, v = random_inputs(dtype=torch.float32)

    def run() -> Tensor:
        return fmm_attention(q, k, v, bandwidth=5, near_dropout=0.5)

    torch.manual_seed(1)
    first, second = run(), run()
    torch.manual_seed(1)
    assert same_bits(run(), first) and not torch.equal(first, second)


def test_a_probability_of_zero_ignores_the_seed() -> None:
    q, k, v = random_inputs(dtype=torch.float32)
    plain = fmm_attention(q, k, v, bandwidth=5)
    assert same_bits(fmm_attention(q, k, v, bandwidth=5, near_dropout=0.0, dropout_seed=SEED), plain)


def test_the_far_field_is_never_dropped() -> None:
    q, k, v = random_inputs(dtype=torch.float32)
    assert same_bits(fmm_attention(q, k, v, near_dropout=0.9, dropout_seed=SEED), fmm_attention(q, k, v))
