# SPDX-License-Identifier: Apache-2.0
"""A user's mistake is a ValueError that names the function, what came, what is allowed and the way out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import device_type, random_inputs

import fmmformer
from fmmformer import (
    FMMAttention,
    FmmState,
    fmm_attention,
    fmm_attention_prefill,
    fmm_attention_reference,
    fmm_attention_step,
    full_attention,
)

SHAPE = (2, 6, 2, 4)


def q(*shape: int, dtype: torch.dtype = torch.float32, device: str | None = None) -> torch.Tensor:
    return torch.ones(shape or SHAPE, dtype=dtype, device=device)


def qkv(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {name: q(dtype=dtype) for name in "qkv"}


def last_dimension_not_contiguous() -> torch.Tensor:
    return torch.ones(2, 6, 4, 2).transpose(2, 3)


def wrong(name: str, *fragments: str, **arguments: Any) -> Any:
    """A call that must fail, and what its message must contain beside the function's name."""
    return pytest.param(arguments, fragments, id=name)


MISTAKES = [
    wrong("q_of_rank_3", "q", "3", "[2, 6, 8]", q=q(2, 6, 8)),
    wrong("q_of_rank_5", "q", "5", q=q(2, 6, 2, 4, 1)),
    wrong("v_of_rank_2", "v", "2", v=q(2, 6)),
    wrong("other_batch", "k", "[3, 6, 2, 4]", k=q(3, 6, 2, 4)),
    wrong("other_length", "k", "[2, 7, 2, 4]", k=q(2, 7, 2, 4)),
    wrong("other_heads", "k", "[2, 6, 1, 4]", k=q(2, 6, 1, 4)),
    wrong("other_width", "k", "[2, 6, 2, 5]", k=q(2, 6, 2, 5)),
    wrong("v_of_other_length", "v", "[2, 5, 2, 4]", v=q(2, 5, 2, 4)),
    wrong("no_tokens", "0", q=q(2, 0, 2, 4), k=q(2, 0, 2, 4), v=q(2, 0, 2, 4)),
    wrong("no_heads", "heads", "0", q=q(2, 6, 0, 4), k=q(2, 6, 0, 4), v=q(2, 6, 0, 4)),
    wrong("width_0", "0", "256", q=q(2, 6, 2, 0), k=q(2, 6, 2, 0)),
    wrong("width_257", "257", "256", q=q(2, 6, 2, 257), k=q(2, 6, 2, 257)),
    wrong("value_width_0", "0", "256", v=q(2, 6, 2, 0)),
    wrong("value_width_257", "257", "256", v=q(2, 6, 2, 257)),
    wrong("integers", "Long", **qkv(torch.int64)),
    wrong("complex_numbers", "Complex", **qkv(torch.complex64)),
    wrong("mixed_types", "Float", "Double", k=q(dtype=torch.float64)),
    wrong("mixed_16_bit_types", "BFloat16", "Half", **{**qkv(torch.bfloat16), "v": q(dtype=torch.half)}),
    wrong("mixed_devices", "meta", device_type(), v=q(device="meta")),
    wrong("last_dimension_strided", "contiguous", q=last_dimension_not_contiguous()),
    wrong("last_dimension_of_v_strided", "contiguous", v=last_dimension_not_contiguous()),
    wrong("negative_window", "-1", window=(-1, 2)),
    wrong("negative_window_right", "-3", window=(1, -3)),
    wrong("window_of_one", "(3,)", "(left, right)", window=(3,)),
    wrong("window_of_floats", "(1.5, 2)", "(left, right)", window=(1.5, 2)),
    wrong("window_as_number", "7", "(left, right)", window=7),
    wrong("negative_bandwidth", "-2", ">= 0", bandwidth=-2),
    wrong("fractional_bandwidth", "2.5", "integer", bandwidth=2.5),
    wrong("bandwidth_and_window", "bandwidth=3", "window=(1, 1)", "bandwidth=None", bandwidth=3, window=(1, 1)),
    wrong("unknown_feature_map", "elo", "elu", "softplus", feature_maps=("elo",)),
    wrong("feature_maps_as_text", "'elu'", '("elu",)', feature_maps="elu"),
    wrong("nine_feature_maps", "9", "8", feature_maps=("elu",) * 9),
    wrong("unknown_normaliser", "rowsum", "row_sum", "inv_sqrt_length", normaliser="rowsum"),
    wrong("eps_not_a_number", "eps", "nan", eps=math.nan),
    wrong("negative_eps", "eps", "-1", eps=-1.0),
    wrong("infinite_eps", "eps", "inf", eps=math.inf),
    wrong("near_scale_not_a_number", "near_scale", "nan", near_scale=math.nan, bandwidth=3),
    wrong("far_scale_not_a_number", "far_scale", "nan", far_scale=math.nan),
    wrong("infinite_far_scale", "far_scale", "inf", far_scale=math.inf),
    wrong("near_weight_does_not_broadcast", "near_weight", "[3]", "[2, 4]", near_weight=torch.ones(3), bandwidth=2),
    wrong("near_weight_of_rank_3", "near_weight", "[1, 2, 4]", near_weight=torch.ones(1, 2, 4), bandwidth=2),
    wrong("far_weight_does_not_broadcast", "far_weight", "[3, 1, 1]", "[2, 2, 4]", far_weight=torch.ones(3, 1, 1)),
    wrong("far_weight_of_rank_4", "far_weight", "[1, 2, 2, 4]", far_weight=torch.ones(1, 2, 2, 4)),
    wrong("near_weight_of_integers", "near_weight", "Long", near_weight=torch.ones(2, 4).long(), bandwidth=2),
    wrong("near_weight_elsewhere", "near_weight", "meta", near_weight=torch.ones(2, 4, device="meta"), bandwidth=2),
    wrong("mask_of_floats", "token_mask", "Float", "bool", token_mask=torch.ones(2, 6)),
    wrong("mask_of_integers", "token_mask", "Long", "bool", token_mask=torch.ones(2, 6).long()),
    wrong("mask_of_other_shape", "token_mask", "[2, 5]", "[2, 6]", token_mask=torch.ones(2, 5).bool()),
    wrong("mask_of_rank_4", "token_mask", "[2, 1, 1, 6]", token_mask=torch.ones(2, 1, 1, 6).bool()),
    wrong("near_weight_as_number", "near_weight", "float", "tensor", near_weight=0.5, bandwidth=2),
    wrong("far_weight_as_list", "far_weight", "list", "tensor", far_weight=[0.5, 0.5]),
    wrong("mask_as_list", "token_mask", "list", "tensor", token_mask=[[True] * 6] * 2),
    wrong("seed_as_number", "dropout_seed", "int", "tensor", near_dropout=0.5, dropout_seed=1, bandwidth=2),
    wrong("q_as_list", "q", "list", "tensor", q=[1.0]),
    wrong("no_v", "v", "NoneType", "tensor", v=None),
    wrong("dropout_of_one", "near_dropout", "1", near_dropout=1.0, bandwidth=2),
    wrong("negative_dropout", "near_dropout", "-0.1", near_dropout=-0.1, bandwidth=2),
    wrong("dropout_not_a_number", "near_dropout", "nan", near_dropout=math.nan, bandwidth=2),
    wrong("seed_of_floats", "dropout_seed", "Float", near_dropout=0.5, dropout_seed=torch.ones(1), bandwidth=2),
    wrong("two_seeds", "dropout_seed", "[2]", near_dropout=0.5, dropout_seed=torch.ones(2).long(), bandwidth=2),
    wrong("unknown_layout", "'nbhd'", "'bhnd'", layout="nbhd"),
]  # fmt: skip


def message_of(function: Callable[..., Any], *tensors: Any, **options: Any) -> str:
    """The text of the ValueError, which names the function and leaves C++ frames out."""
    with pytest.raises(ValueError) as error:
        function(*tensors, **options)
    message = str(error.value)
    assert function.__name__ in message, message
    assert "frame #" not in message, message
    assert len(message) < 600, message
    return message


@pytest.mark.parametrize("function", [fmm_attention, fmm_attention_reference, fmm_attention_prefill])
@pytest.mark.parametrize("arguments, fragments", MISTAKES)
def test_a_mistake_is_named(
    function: Callable[..., Any], arguments: dict[str, Any], fragments: tuple[str, ...]
) -> None:
    if function is fmm_attention_prefill and isinstance(arguments.get("dropout_seed"), torch.Tensor):
        return  # decoding is inference: prefill takes a seed, so that options can be shared, and does not look at it
    arguments = dict(arguments)
    tensors = [arguments.pop(name, q()) for name in "qkv"]
    message = message_of(function, *tensors, causal=True, **arguments)
    for fragment in fragments:
        assert fragment in message, message


def test_an_unknown_option_names_the_nearest_right_one() -> None:
    for function in (fmm_attention_reference, fmm_attention_prefill):
        with pytest.raises(TypeError, match="'bandwith'.*did you mean 'bandwidth'"):
            function(q(), q(), q(), bandwith=3)
    with pytest.raises(TypeError, match="bandwith"):
        fmm_attention(q(), q(), q(), bandwith=3)


def test_prefill_refuses_what_is_not_causal() -> None:
    assert "causal" in message_of(fmm_attention_prefill, q(), q(), q(), causal=False)


@pytest.mark.parametrize("function", [fmm_attention, fmm_attention_prefill])
def test_a_mistake_in_the_other_layout_is_named_too(function: Callable[..., Any]) -> None:
    message = message_of(function, q(2, 6, 8), q(), q(), layout="bhnd", causal=True)
    assert "[2, 6, 8]" in message


@pytest.mark.parametrize("function", [fmm_attention, fmm_attention_reference, full_attention])
def test_a_shape_in_the_other_layout_is_shown_as_it_was_given(function: Callable[..., Any]) -> None:
    heads_first = q(2, 3, 6, 4)
    message = message_of(function, heads_first, q(2, 3, 7, 4), heads_first, layout="bhnd")
    assert "k has shape [2, 3, 7, 4] but q has [2, 3, 6, 4]" in message
    message = message_of(function, heads_first, heads_first, q(2, 5, 6, 4), layout="bhnd")
    assert "v has shape [2, 5, 6, 4] but q has [2, 3, 6, 4]" in message


# --- steps ----------------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = dict(window=(3, 0), causal=True)


def state() -> FmmState:
    return fmm_attention_prefill(*random_inputs(*SHAPE, value_dim=4, dtype=torch.float32), **OPTIONS)[1]


STEP_MISTAKES = [
    wrong("tokens_of_rank_4", "q", q=q()),
    wrong("other_batch", "3", q=q(3, 2, 4), k=q(3, 2, 4), v=q(3, 2, 4)),
    wrong("other_heads", "5", q=q(2, 5, 4), k=q(2, 5, 4), v=q(2, 5, 4)),
    wrong("other_width", "7", q=q(2, 2, 7), k=q(2, 2, 7)),
    wrong("other_value_width", "7", v=q(2, 2, 7)),
    wrong("k_of_other_shape", "k has shape [2, 2, 7] but q has [2, 2, 4]", k=q(2, 2, 7)),
    wrong("v_of_other_heads", "v has shape [2, 5, 4] but q has [2, 2, 4]", v=q(2, 5, 4)),
    wrong("q_as_number", "q", "float", "tensor", q=1.0),
    wrong("other_type", "Double", **{name: q(2, 2, 4, dtype=torch.float64) for name in "qkv"}),
    wrong("another_window", "8", "3", window=(8, 0)),
    wrong("no_window", "keys", "[2, 3, 2, 4]", window=None),
    wrong("more_feature_maps", "(elu, elu_flip)", "(elu, elu_flip, tanh1)", feature_maps=("elu", "elu_flip", "tanh1")),
    wrong("other_feature_maps", "(elu, elu_flip)", "(elu, tanh1)", feature_maps=("elu", "tanh1")),
    wrong("other_order_of_feature_maps", "(elu_flip, elu)", feature_maps=("elu_flip", "elu")),
    wrong("unit_features", "unit_features", unit_features=True),
    wrong("not_causal", "causal", causal=False),
    wrong("no_length", "inv_sqrt_length", normaliser="inv_sqrt_length"),
    wrong("mask_of_rank_2", "token_mask", "[2, 6]", "[batch] = [2]", token_mask=torch.ones(2, 6).bool()),
    wrong("mask_of_other_batch", "token_mask", "[3]", "[batch] = [2]", token_mask=torch.ones(3).bool()),
    wrong("unknown_feature_map", "elo", feature_maps=("elu", "elo")),
]


@pytest.mark.parametrize("arguments, fragments", STEP_MISTAKES)
def test_a_mistake_in_a_step_is_named_and_leaves_the_state_alone(
    arguments: dict[str, Any], fragments: tuple[str, ...]
) -> None:
    arguments = dict(arguments)
    tensors = [arguments.pop(name, q(2, 2, 4)) for name in "qkv"]
    before = state()
    after = before.clone()
    message = message_of(fmm_attention_step, *tensors, after, **{**OPTIONS, **arguments})
    for fragment in fragments:
        assert fragment in message, message
    assert all(torch.equal(a, b) for a, b in zip(after.tensors(), before.tensors()))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda tensor: tensor.unsqueeze(0), id="rank"),
        pytest.param(lambda tensor: torch.cat([tensor, tensor]), id="size"),
        pytest.param(lambda tensor: tensor.to(torch.int16), id="type"),
        pytest.param(lambda tensor: tensor.to("meta"), id="device"),
    ],
)
@pytest.mark.parametrize("field", ["keys", "values", "live", "far_sums", "far_key_sums", "position"])
def test_a_step_refuses_a_state_of_another_shape_type_or_device(field: str, change: Callable[..., Any]) -> None:
    odd = state()
    setattr(odd, field, change(getattr(odd, field)))
    assert field in message_of(fmm_attention_step, q(2, 2, 4), q(2, 2, 4), q(2, 2, 4), odd, **OPTIONS)


def test_a_step_refuses_what_is_no_state() -> None:
    with pytest.raises(TypeError, match="fmm_attention_step: state is of type tuple.*FmmState"):
        fmm_attention_step(q(2, 2, 4), q(2, 2, 4), q(2, 2, 4), tuple(state().tensors()), **OPTIONS)


# --- baseline and layer ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, fragments",
    [
        wrong("q_of_rank_3", "[2, 6, 8]", q=q(2, 6, 8)),
        wrong("other_length", "[2, 7, 2, 4]", k=q(2, 7, 2, 4)),
        # Torch's own attention ends the process here.
        wrong("no_heads", "heads", "0", q=q(2, 6, 0, 4), k=q(2, 6, 0, 4), v=q(2, 6, 0, 4)),
        wrong("mixed_types", "Double", v=q(dtype=torch.float64)),
        wrong("mask_of_floats", "token_mask", "Float", token_mask=torch.ones(2, 6)),
        wrong("dropout_above_one", "dropout", "1.5", dropout=1.5),
        wrong("scale_not_a_number", "scale", "nan", scale=math.nan),
        wrong("unknown_layout", "'hnbd'", layout="hnbd"),
    ],
)
def test_a_mistake_in_the_baseline_is_named(arguments: dict[str, Any], fragments: tuple[str, ...]) -> None:
    arguments = dict(arguments)
    tensors = [arguments.pop(name, q()) for name in "qkv"]
    message = message_of(full_attention, *tensors, **arguments)
    for fragment in fragments:
        assert fragment in message, message


@pytest.mark.parametrize(
    "arguments, fragments",
    [
        (dict(dim=10, heads=3), ("10", "3", "head_dim")),
        (dict(dim=0, heads=3), ("dim", "0")),
        (dict(dim=8, heads=-1), ("heads", "-1")),
        (dict(dim=8, heads=2, head_dim=0), ("head_dim", "0")),
        (dict(dim=8, heads=2, head_dim=257), ("257", "256")),
        (dict(dim=8, heads=2, blend="learned"), ("'learned'", "paper", "convex")),
        (dict(dim=8, heads=2, feature_maps=("elo",)), ("elo", "elu")),
        (dict(dim=8, heads=2, feature_maps="elu"), ("'elu'",)),
        (dict(dim=8, heads=2, window=(1, 1)), ("bandwidth=5", "bandwidth=None")),
        (dict(dim=8, heads=2, near_dropout=1.0), ("near_dropout", "1")),
        (dict(dim=8, heads=2, normaliser="sum"), ("sum", "row_sum")),
        (dict(dim=8, heads=2, bandwidth=-1), ("-1",)),
    ],
)
def test_a_layer_with_wrong_options_is_refused_when_it_is_made(
    arguments: dict[str, Any], fragments: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError) as error:
        FMMAttention(**arguments)
    for fragment in fragments:
        assert fragment in str(error.value)


def test_a_layer_names_the_input_shape_that_it_wants() -> None:
    layer = FMMAttention(8, 2, causal=True)
    with pytest.raises(ValueError, match=r"FMMAttention: x has shape \[2, 6, 9\], wanted is \[B, N, 8\]"):
        layer(torch.ones(2, 6, 9))
    _, after = layer.prefill(torch.ones(2, 6, 8))
    with pytest.raises(ValueError, match=r"wanted is \[B, 8\]"):
        layer.step(torch.ones(2, 1, 8), after)


def test_nothing_crashes_on_tensors_that_are_no_tensors() -> None:
    for function in (fmm_attention, fmm_attention_reference, full_attention):
        with pytest.raises((TypeError, RuntimeError, ValueError, AttributeError)):
            function(None, q(), q())
    with pytest.raises((TypeError, RuntimeError)):
        fmmformer.fmm_attention(q(), q(), q(), eps="small")
