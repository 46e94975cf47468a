# SPDX-License-Identifier: Apache-2.0
"""The attention layer and its blend rules."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from helpers import assert_close, device_type, same_bits
from torch import Tensor, nn

from fmmformer import AttentionState, FMMAttention, fast_weight_attention_reference, fmm_attention_reference
from fmmformer.blend import RULES, make_blend

DIM, HEADS, HEAD_DIM = 12, 3, 4


def weights_of(rule: str, maps: int = 2, near_field: bool = True) -> tuple[Tensor | None, Tensor | None]:
    return make_blend(rule, heads=HEADS, value_dim=HEAD_DIM, maps=maps, near_field=near_field)()


def blended(rule: str, maps: int) -> tuple[Tensor, Tensor]:
    near, far = weights_of(rule, maps)
    near = torch.ones(()) if near is None else near
    far = torch.ones(()) if far is None else far
    return near.expand(HEADS, HEAD_DIM).detach(), far.expand(maps, HEADS, HEAD_DIM).detach()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("causal", [False, True])
def test_the_layer_is_projections_blend_and_reference(rule: str, causal: bool) -> None:
    layer = FMMAttention(DIM, HEADS, blend=rule, causal=causal, bandwidth=3).double()
    for parameter in layer.blend.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 17, DIM, dtype=torch.float64)
    mask = torch.rand(2, 17) < 0.8
    q, k, v = (projection(x).view(2, 17, HEADS, HEAD_DIM) for projection in (layer.query, layer.key, layer.value))
    near_weight, far_weight = layer.blend()
    expected = fmm_attention_reference(
        q, k, v, bandwidth=3, causal=causal, near_weight=near_weight, far_weight=far_weight, token_mask=mask
    )
    expected = layer.output(expected.reshape(2, 17, DIM))
    out = layer(x, mask)
    assert_close(out, expected, 1e-12)
    parameters = list(layer.parameters())
    for actual, wanted in zip(
        torch.autograd.grad(out.square().sum(), parameters),
        torch.autograd.grad(expected.square().sum(), parameters),
    ):
        assert_close(actual, wanted, 1e-11)


def test_the_paper_blends_by_sigmoids_of_zero_and_one() -> None:
    near, far = blended("paper", 2)
    assert_close(near, torch.full_like(near, 0.5), 1e-6)
    assert_close(far, torch.full_like(far, 0.7310586), 1e-6)


def test_the_sum_has_no_weights() -> None:
    assert weights_of("sum") == (None, None)
    assert not list(FMMAttention(DIM, HEADS, blend="sum").blend.parameters())


@pytest.mark.parametrize("maps", [1, 2, 3])
def test_raw_per_channel_starts_as_the_mean_of_the_far_fields(maps: int) -> None:
    near, far = weights_of("raw_per_channel", maps)
    assert near.shape == (HEADS, HEAD_DIM) and torch.all(near == 0)
    assert far.shape == (maps, HEADS, HEAD_DIM) and torch.all(far == 1 / maps)


@pytest.mark.parametrize("maps", [1, 2, 3])
def test_raw_per_head_starts_as_the_near_field_alone(maps: int) -> None:
    rule = make_blend("raw_per_head", heads=HEADS, value_dim=HEAD_DIM, maps=maps, near_field=True)
    near, far = rule()
    assert near.shape == (HEADS, 1) and torch.all(near == 1) and torch.all(far == 0)
    assert sum(p.numel() for p in rule.parameters()) == 2 * HEADS + (maps if maps > 1 else 0)
    nn.init.ones_(rule.far_weight)  # then only the first map counts
    far = rule()[1].expand(maps, HEADS, 1)
    assert torch.all(far[0] == 1) and torch.all(far[1:] == 0)


@pytest.mark.parametrize("maps", [1, 2, 3])
def test_convex_shares_one_between_near_and_far(maps: int) -> None:
    rule = make_blend("convex", heads=HEADS, value_dim=HEAD_DIM, maps=maps, near_field=True)
    nn.init.constant_(rule.near_share, 0.3)
    near, far = (weight.flatten().tolist() for weight in rule())
    assert near == pytest.approx([0.3]) and far == pytest.approx([0.7] + [0.0] * (maps - 1))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("maps, bandwidth", [(0, 3), (1, 0), (1, 3), (3, None)])
def test_every_parameter_of_every_rule_receives_a_gradient(rule: str, maps: int, bandwidth: int | None) -> None:
    layer = FMMAttention(DIM, HEADS, blend=rule, bandwidth=bandwidth, feature_maps=("elu",) * maps)
    layer(torch.randn(2, 9, DIM)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in layer.blend.parameters())


def test_a_blend_of_ones_own_works() -> None:
    class NearTwice(nn.Module):
        def forward(self) -> tuple[Tensor, None]:
            return torch.tensor(2.0), None

    x = torch.randn(2, 9, DIM)
    own = FMMAttention(DIM, HEADS, blend=NearTwice(), bandwidth=3, feature_maps=())
    plain = FMMAttention(DIM, HEADS, blend="sum", bandwidth=3, feature_maps=())
    plain.load_state_dict(own.state_dict())
    with torch.no_grad():
        own.output.bias.zero_()
        plain.output.bias.zero_()
        assert_close(own(x), 2 * plain(x), 1e-6)


def test_head_dim_may_differ_from_dim_over_heads() -> None:
    layer = FMMAttention(10, 3, head_dim=7, bias=False)
    assert layer(torch.randn(2, 9, 10)).shape == (2, 9, 10)
    assert sum(p.numel() for p in layer.parameters()) == 4 * 10 * 21 + 2 * 3


def test_the_window_can_be_given_instead_of_the_bandwidth() -> None:
    by_window = FMMAttention(DIM, HEADS, bandwidth=None, window=(4, 4))
    by_bandwidth = FMMAttention(DIM, HEADS, bandwidth=5)
    by_bandwidth.load_state_dict(by_window.state_dict())
    x = torch.randn(2, 20, DIM)
    assert same_bits(by_window(x).detach(), by_bandwidth(x).detach())


def test_dropout_acts_in_training_only_and_is_fresh_each_time() -> None:
    layer = FMMAttention(DIM, HEADS, near_dropout=0.5)
    x = torch.randn(2, 20, DIM)
    torch.manual_seed(4)
    first, second = layer(x), layer(x)
    torch.manual_seed(4)
    assert same_bits(layer(x).detach(), first.detach()) and not torch.equal(first, second)
    layer.eval()
    assert same_bits(layer(x).detach(), layer(x).detach())


def test_masked_tokens_neither_see_nor_are_seen() -> None:
    layer = FMMAttention(DIM, HEADS)
    x, mask = torch.randn(2, 20, DIM), torch.rand(2, 20) < 0.7
    expected = layer(x, mask)
    moved = layer(torch.where(mask[..., None], x, 100.0), mask)
    assert same_bits(moved.detach(), expected.detach())
    assert torch.equal(expected[~mask], layer.output.bias.expand_as(expected[~mask]))


@pytest.mark.parametrize("rule", RULES)
def test_state_dict_deepcopy_and_whole_modules_come_back(rule: str) -> None:
    layer = FMMAttention(DIM, HEADS, blend=rule, causal=True)
    x = torch.randn(2, 9, DIM)
    expected = layer(x).detach()
    other = FMMAttention(DIM, HEADS, blend=rule, causal=True)
    other.load_state_dict(layer.state_dict())
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for twin in (other, copy.deepcopy(layer), torch.load(file, weights_only=False)):
        assert same_bits(twin(x).detach(), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_the_layer_works_in_other_types(dtype: torch.dtype) -> None:
    layer = FMMAttention(DIM, HEADS).to(dtype)
    out = layer(torch.randn(2, 9, DIM, dtype=dtype))
    assert out.dtype == dtype
    out.square().sum().backward()
    assert layer.blend.near_logit.grad.dtype == dtype


@pytest.mark.parametrize("rule", RULES)
def test_prefill_and_steps_equal_one_forward(rule: str) -> None:
    layer = FMMAttention(DIM, HEADS, blend=rule, causal=True, near_dropout=0.5).double().eval()
    x = torch.randn(2, 20, DIM, dtype=torch.float64)
    out, state = layer.prefill(x[:, :8])
    steps = [layer.step(x[:, t], state) for t in range(8, 20)]
    joined = torch.cat([out, torch.stack(steps, 1)], 1)
    assert_close(joined, layer(x), 1e-12)
    assert not joined.requires_grad


def test_decoding_padded_prompts_equals_each_alone() -> None:
    layer = FMMAttention(DIM, HEADS, causal=True).double()
    x = torch.randn(2, 12, DIM, dtype=torch.float64)
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[1, 6:] = False
    _, state = layer.prefill(x[:, :10], mask)
    steps = torch.stack([layer.step(x[:, t], state) for t in (10, 11)], 1)
    assert_close(steps[:1], layer(x[:1])[:, 10:], 1e-12)
    alone = torch.cat([x[1:, :6], x[1:, 10:]], 1)
    assert_close(steps[1:], layer(alone)[:, 6:], 1e-12)


def test_decoding_works_under_autocast() -> None:
    layer = FMMAttention(DIM, HEADS, causal=True)
    x = torch.randn(2, 12, DIM)
    with torch.autocast(device_type(), dtype=torch.bfloat16):
        out, state = layer.prefill(x[:, :8])
        steps = [layer.step(x[:, t], state) for t in range(8, 12)]
    assert state.keys.dtype == torch.bfloat16 and steps[0].dtype == torch.bfloat16
    assert_close(torch.cat([out, torch.stack(steps, 1)], 1), layer(x), 3e-2)


def test_the_printed_layer_names_its_options() -> None:
    text = repr(FMMAttention(DIM, HEADS, causal=True))
    assert "dim=12" in text and "bandwidth=5" in text and "causal=True" in text


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("maps, bandwidth", [(1, 0), (2, 0), (1, 3), (3, 3)])
def test_fast_weights_are_the_first_far_field(rule: str, maps: int, bandwidth: int) -> None:
    feature_maps = ("elu", "tanh1", "elu_flip")[:maps]
    layer = FMMAttention(
        DIM, HEADS, blend=rule, causal=True, bandwidth=bandwidth, feature_maps=feature_maps, unit_features=True,
        eps=1e-5, far_scale=0.5, fast_weights=True,
    ).double()  # fmt: skip
    for parameter in layer.blend.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 17, DIM, dtype=torch.float64)
    q, k, v = (projection(x).view(2, 17, HEADS, HEAD_DIM) for projection in (layer.query, layer.key, layer.value))
    near, far = layer.blend()
    near = torch.ones(1, 1, dtype=torch.float64) if near is None else near
    far = (torch.ones(()) if far is None else far).expand(maps, HEADS, HEAD_DIM)
    options = {"unit_features": True, "eps": 1e-5, "far_scale": 0.5}
    beta = layer.gate(x).sigmoid()
    expected = far[0] * fast_weight_attention_reference(q, k, v, beta, feature_map="elu", **options)
    for weight, name in zip(far[1:], feature_maps[1:]):
        expected = expected + weight * fmm_attention_reference(
            q, k, v, bandwidth=0, causal=True, feature_maps=(name,), **options
        )
    if bandwidth:
        expected = expected + near * fmm_attention_reference(
            q, k, v, bandwidth=bandwidth, causal=True, feature_maps=()
        )
    expected = layer.output(expected.flatten(-2))
    out = layer(x)
    assert_close(out, expected, 1e-11)
    used = [p for p in layer.parameters() if rule != "convex" or bandwidth or p is not layer.blend.near_share]
    for actual, wanted in zip(
        torch.autograd.grad(out.square().sum(), used), torch.autograd.grad(expected.square().sum(), used)
    ):
        assert_close(actual, wanted, 1e-10)


@pytest.mark.parametrize("maps, bandwidth", [(1, 0), (2, 3)])
def test_a_layer_with_fast_weights_decodes_as_it_attends(maps: int, bandwidth: int) -> None:
    layer = FMMAttention(
        DIM, HEADS, causal=True, bandwidth=bandwidth, feature_maps=("elu",) * maps, unit_features=True, fast_weights=True
    ).double()
    x = torch.randn(2, 17, DIM, dtype=torch.float64)
    out, state = layer.prefill(x[:, :9])
    assert isinstance(state, AttentionState) and (state.fields is None) == (maps == 1)
    before = state.clone()
    steps = torch.stack([layer.step(x[:, t], state) for t in range(9, 17)], 1)
    assert_close(torch.cat([out, steps], 1), layer(x), 1e-11)
    assert_close(layer.step(x[:, 9], before), steps[:, 0], 1e-12)


def test_mistakes_with_fast_weights_are_named() -> None:
    with pytest.raises(ValueError, match="causal"):
        FMMAttention(DIM, HEADS, fast_weights=True)
    with pytest.raises(ValueError, match="feature_maps"):
        FMMAttention(DIM, HEADS, fast_weights=True, causal=True, feature_maps=())
    with pytest.raises(ValueError, match="normaliser"):
        FMMAttention(DIM, HEADS, fast_weights=True, causal=True, fast_weight_normaliser="row")
    layer = FMMAttention(DIM, HEADS, fast_weights=True, causal=True, unit_features=True)
    plain = FMMAttention(DIM, HEADS, causal=True)
    with pytest.raises(TypeError, match="AttentionState"):
        layer.step(torch.randn(2, DIM), plain.prefill(torch.randn(2, 5, DIM))[1])
