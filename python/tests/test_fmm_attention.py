# SPDX-License-Identifier: Apache-2.0
"""The operator's values and gradients against the reference, for every option, type, layout and width."""

from __future__ import annotations

import pytest
import torch
from helpers import (
    ALLOWED_RMS,
    CASES,
    TYPES,
    Case,
    as_leaves,
    assert_all_close,
    assert_close,
    dense_attention,
    device_type,
    random_inputs,
    random_weights,
    same_bits,
    value_and_gradients,
)

from fmmformer import fmm_attention, fmm_attention_reference


def compare_with_reference(case: Case, dtype: torch.dtype, slack: float = 1.0, **shape: int) -> None:
    q, k, v = random_inputs(dtype=dtype, shift=case.shift, **shape)
    # Weights stay in fp32 beside 16-bit inputs, as a training run has them.
    weights = random_weights(case, torch.float64 if dtype == torch.float64 else torch.float32)
    tensors = {"q": q, "k": k, "v": v, **weights}
    upstream = torch.randn(v.shape).to(dtype)
    actual = value_and_gradients(fmm_attention, tensors, upstream, **case.options)
    doubles = {name: tensor.double() for name, tensor in tensors.items()}
    expected = value_and_gradients(fmm_attention_reference, doubles, upstream, **case.options)
    assert actual["out"].dtype == dtype
    assert_all_close(actual, expected, dtype, slack)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_value_and_gradients_equal_the_reference(case: Case, dtype: torch.dtype) -> None:
    # Signed maps divide by sums of mixed sign, which costs every algorithm digits.
    slack = 3.0 if case.shift else 1.0
    compare_with_reference(case, dtype, slack, length=75)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradcheck_passes_in_double(case: Case) -> None:
    q, k, v = as_leaves(*random_inputs(batch=1, length=7, head_dim=3, shift=case.shift))
    weights = random_weights(case)
    leaves = as_leaves(*weights.values())

    def function(q, k, v, *leaves):
        return fmm_attention(q, k, v, **dict(zip(weights, leaves)), **case.options)

    assert torch.autograd.gradcheck(function, (q, k, v, *leaves))


@pytest.mark.parametrize("causal", [False, True])
def test_gradcheck_passes_with_a_token_mask_and_dropout(causal: bool) -> None:
    q, k, v = as_leaves(*random_inputs(batch=2, length=6, head_dim=3))
    mask = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 0, 1, 1, 1, 0]], dtype=torch.bool)
    seed = torch.tensor([5])

    def function(q, k, v):
        return fmm_attention(q, k, v, bandwidth=3, causal=causal, token_mask=mask, near_dropout=0.4, dropout_seed=seed)

    assert torch.autograd.gradcheck(function, (q, k, v))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "head_dim, value_dim", [(1, 1), (1, 256), (3, 64), (16, 16), (31, 33), (48, 80), (256, 1), (256, 256)]
)
def test_every_width_of_keys_and_values_works(head_dim: int, value_dim: int, causal: bool) -> None:
    case = Case("widths", dict(bandwidth=4, causal=causal, feature_maps=("elu", "elu_flip", "tanh1")))
    shape = dict(batch=1, length=70, head_dim=head_dim, value_dim=value_dim)
    compare_with_reference(case, torch.float32, **shape)
    compare_with_reference(case, torch.bfloat16, **shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_error_is_at_most_twice_that_of_plain_torch_in_the_same_type(causal: bool, dtype: torch.dtype) -> None:
    q, k, v = random_inputs(length=200, head_dim=32, value_dim=32, dtype=dtype)
    options = dict(bandwidth=20, causal=causal, feature_maps=("elu", "elu_flip", "tanh1"))
    upstream = torch.randn(v.shape).to(dtype)
    tensors = {"q": q, "k": k, "v": v}
    doubles = {name: tensor.double() for name, tensor in tensors.items()}
    exact = value_and_gradients(dense_attention, doubles, upstream, **options)
    plain = value_and_gradients(dense_attention, tensors, upstream, **options)
    ours = value_and_gradients(fmm_attention, tensors, upstream, **options)
    # On a GPU a product of fp32 is three of tf32, whose sums the tensor cores cut off instead of rounding.
    times = 6 if device_type() == "cuda" and dtype == torch.float32 else 2
    for name, truth in exact.items():
        scale = truth.abs().max()
        ours_error, plain_error = ((r[name].double() - truth).abs().max() / scale for r in (ours, plain))
        assert ours_error <= times * plain_error + torch.finfo(dtype).eps, f"{name}: {ours_error:.2e}, {plain_error:.2e}"


@pytest.mark.parametrize("width", [1, 4, 5, 16, 37, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_results_are_rounded_to_the_nearest_number_of_their_type(dtype: torch.dtype, width: int) -> None:
    if dtype == torch.bfloat16 and device_type() == "cuda":
        pytest.skip("a GPU's bf16 products round their operands, so the last bit is not theirs to give")
    tensors = dict(zip("qkv", random_inputs(length=100, head_dim=width, value_dim=width, dtype=dtype)))
    upstream = torch.randn(tensors["v"].shape).to(dtype)
    for maps in ((), ("elu",)):
        options = dict(bandwidth=5, causal=True, feature_maps=maps)
        actual = value_and_gradients(fmm_attention, tensors, upstream, **options)
        doubles = {name: tensor.double() for name, tensor in tensors.items()}
        exact = value_and_gradients(fmm_attention_reference, doubles, upstream, **options)
        for name in ("out", "v"):
            share = (actual[name] == exact[name].to(dtype)).double().mean()
            assert share > 0.98, f"{name}: {share:.3f} of the numbers are the nearest ones"


@pytest.mark.parametrize("causal", [False, True])
def test_both_layouts_give_the_same_bits(causal: bool) -> None:
    q, k, v = random_inputs(length=70, dtype=torch.float32)
    upstream = torch.randn_like(v)
    options = dict(bandwidth=5, causal=causal)
    tokens_first = value_and_gradients(fmm_attention, {"q": q, "k": k, "v": v}, upstream, **options)
    other = {name: t.transpose(1, 2).contiguous() for name, t in {"q": q, "k": k, "v": v}.items()}
    heads_first = value_and_gradients(fmm_attention, other, upstream.transpose(1, 2), layout="bhnd", **options)
    for name, tensor in tokens_first.items():
        assert same_bits(heads_first[name].transpose(1, 2), tensor), name


def test_the_other_layout_is_a_view_and_not_a_copy() -> None:
    q, k, v = (t.transpose(1, 2).contiguous() for t in random_inputs(dtype=torch.float32))
    out = fmm_attention(q, k, v, layout="bhnd", bandwidth=3)
    assert out.shape == v.shape and out.transpose(1, 2).is_contiguous()


def test_strided_views_give_the_same_bits_as_contiguous_tensors() -> None:
    q, k, v = random_inputs(head_dim=5, dtype=torch.float32)
    packed = torch.stack([q, k, v], dim=3)  # [B, N, H, 3, D], as one fused projection leaves them
    views = packed.unbind(3)
    assert not views[0].is_contiguous()
    assert same_bits(fmm_attention(*views, bandwidth=3), fmm_attention(q, k, v, bandwidth=3))


@pytest.mark.parametrize("causal", [False, True])
def test_expanded_heads_of_stride_zero_work_and_sum_their_gradients(causal: bool) -> None:
    q, _, _ = random_inputs(heads=4)
    k, v = (torch.randn(2, 21, 1, d, dtype=torch.float64) for d in (4, 5))

    def with_shared_heads(function):
        return lambda q, k, v: function(q, k.expand(-1, -1, 4, -1), v.expand(-1, -1, 4, -1), bandwidth=4, causal=causal)

    tensors = {"q": q, "k": k, "v": v}
    upstream = torch.randn(2, 21, 4, 5, dtype=torch.float64)
    actual = value_and_gradients(with_shared_heads(fmm_attention), tensors, upstream)
    expected = value_and_gradients(with_shared_heads(fmm_attention_reference), tensors, upstream)
    assert_all_close(actual, expected, torch.float64)


def test_an_expanded_upstream_gradient_works() -> None:
    """out.sum().backward() hands down one number with stride 0 everywhere."""
    tensors = dict(zip("qkv", random_inputs(dtype=torch.float32)))
    ones = torch.ones(tensors["v"].shape)
    expected = value_and_gradients(fmm_attention, tensors, ones, bandwidth=3)
    leaves = dict(zip(tensors, as_leaves(*tensors.values())))
    fmm_attention(**leaves, bandwidth=3).sum().backward()
    for name, leaf in leaves.items():
        assert same_bits(leaf.grad, expected[name]), name


def test_an_upstream_gradient_of_any_strides_works() -> None:
    tensors = dict(zip("qkv", random_inputs(dtype=torch.float32)))
    upstream = torch.randn_like(tensors["v"])
    backwards = upstream.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    assert backwards.stride(-1) != 1
    expected = value_and_gradients(fmm_attention, tensors, upstream, bandwidth=3)
    actual = value_and_gradients(fmm_attention, tensors, backwards, bandwidth=3)
    assert all(same_bits(actual[name], tensor) for name, tensor in expected.items())


def test_gradients_come_only_for_what_asks_for_them() -> None:
    q, k, v = random_inputs()
    weight = torch.ones(2, 1, dtype=torch.float64, requires_grad=True)
    out = fmm_attention(q, k, v, bandwidth=3, far_weight=weight)
    out.sum().backward()
    assert q.grad is None and weight.grad.shape == weight.shape
    v.requires_grad_()
    fmm_attention(q, k, v, bandwidth=3).sum().backward()
    assert v.grad is not None and k.grad is None


def test_weights_that_start_at_zero_still_receive_gradients() -> None:
    tensors = {
        **dict(zip("qkv", random_inputs())),
        "near_weight": torch.zeros(2, 5),
        "far_weight": torch.zeros(2, 2, 5),
    }
    tensors = {name: tensor.double() for name, tensor in tensors.items()}
    upstream = torch.randn_like(tensors["v"])
    actual = value_and_gradients(fmm_attention, tensors, upstream, bandwidth=4, causal=True)
    expected = value_and_gradients(fmm_attention_reference, tensors, upstream, bandwidth=4, causal=True)
    assert_all_close(actual, expected, torch.float64)
    assert actual["near_weight"].abs().min() > 0 and actual["far_weight"].abs().min() > 0


@pytest.mark.parametrize("length", [1, 40, 130])
def test_causal_windows_that_reach_the_start_are_equal_bit_for_bit(length: int) -> None:
    tensors = dict(zip("qkv", random_inputs(length=length, dtype=torch.float32)))
    upstream = torch.randn_like(tensors["v"])
    results = [
        value_and_gradients(fmm_attention, tensors, upstream, window=window, causal=True, feature_maps=())
        for window in [(length, length), (length - 1, 0), (length, 0)]
    ]
    for name, tensor in results[0].items():
        assert same_bits(tensor, results[1][name]) and same_bits(tensor, results[2][name]), name


def test_a_bandwidth_of_zero_or_none_means_no_near_field() -> None:
    q, k, v = random_inputs()
    plain = fmm_attention(q, k, v)
    assert same_bits(fmm_attention(q, k, v, bandwidth=0), plain)
    assert same_bits(fmm_attention(q, k, v, bandwidth=None, window=None), plain)


@pytest.mark.parametrize("causal", [False, True])
def test_a_bandwidth_is_the_window_of_the_paper(causal: bool) -> None:
    q, k, v = random_inputs()
    window = (4, 0) if causal else (4, 4)
    assert same_bits(
        fmm_attention(q, k, v, bandwidth=5, causal=causal), fmm_attention(q, k, v, window=window, causal=causal)
    )


@pytest.mark.parametrize("causal", [False, True])
def test_keys_outside_the_band_do_not_move_the_output(causal: bool) -> None:
    q, k, v = random_inputs(length=40)
    before = fmm_attention(q, k, v, bandwidth=4, causal=causal, feature_maps=())
    k[:, 20], v[:, 20] = 3.0, 7.0
    changed = (fmm_attention(q, k, v, bandwidth=4, causal=causal, feature_maps=()) != before).any(3).any(2)[0]
    assert changed.nonzero().flatten().tolist() == list(range(20 if causal else 17, 24))


def test_later_tokens_do_not_move_a_causal_output() -> None:
    q, k, v = random_inputs(length=100, dtype=torch.float32)
    before = fmm_attention(q, k, v, bandwidth=4, causal=True)
    for tensor in (q, k, v):
        tensor[:, 70:] = torch.randn_like(tensor[:, 70:])
    after = fmm_attention(q, k, v, bandwidth=4, causal=True)
    assert same_bits(before[:, :70], after[:, :70]) and not torch.equal(before[:, 70:], after[:, 70:])


def test_very_negative_inputs_keep_their_digits() -> None:
    """elu(x) + 1 is exp(x) there; taken as (exp(x) - 1) + 1 nothing would be left of it."""
    q, k, v = random_inputs(length=50, dtype=torch.float32)
    q, k = q - 20, k - 20
    options = dict(feature_maps=("elu",), eps=0.0, causal=True)
    expected = fmm_attention_reference(q, k, v, **options)
    assert_close(fmm_attention(q, k, v, **options), expected, ALLOWED_RMS[torch.float32][0])


def test_large_scores_do_not_overflow_the_softmax() -> None:
    q, k, v = random_inputs(length=50, dtype=torch.float32)
    options = dict(bandwidth=9, near_scale=1000.0, feature_maps=())
    expected = fmm_attention_reference(q, k, v, **options)
    assert_close(fmm_attention(q, k, v, **options), expected, 1e-3)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("head_dim", (16, 32, 64, 128))
@pytest.mark.parametrize("length", (65, 200))
def test_very_negative_scores_leave_the_gradient_of_a_weight_finite(
    length: int, head_dim: int, dtype: torch.dtype
) -> None:
    """exp(-log_sum_exp) is infinite then: nothing may multiply it where no token is, behind the last one of a tile."""
    q = torch.full((1, length, 2, head_dim), 24 / head_dim**0.25, dtype=dtype)
    v = torch.randn(1, length, 2, head_dim).to(dtype)
    weight = torch.ones(2, 1, requires_grad=True)
    fmm_attention(q, -q, v, bandwidth=9, causal=True, feature_maps=("elu",), near_weight=weight).sum().backward()
    expected = v.double().cumsum(1)  # equal scores: the mean of the keys in the band
    expected = (expected - torch.nn.functional.pad(expected, (0, 0, 0, 0, 9, 0))[:, :length]).sum((0, 3))
    seen = torch.arange(1, length + 1, dtype=torch.double).clamp(max=9)
    expected = (expected / seen[:, None]).sum(0)
    assert torch.allclose(weight.grad.squeeze(1).double(), expected, rtol=1e-2, atol=0.05 * length**0.5)
