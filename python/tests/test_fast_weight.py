# SPDX-License-Identifier: Apache-2.0
"""fast_weight_attention: against its reference and a loop of plain numbers, and as a good citizen of torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import (
    ALLOWED_RMS,
    LOOP_MAPS,
    SIGNED_MAPS,
    TYPES,
    as_leaves,
    assert_all_close,
    assert_close,
    device_type,
    random_inputs,
    same_bits,
    value_and_gradients,
)
from torch import Tensor

from fmmformer import (
    FastWeightState,
    fast_weight_attention,
    fast_weight_attention_prefill,
    fast_weight_attention_reference,
    fast_weight_attention_step,
    fmm_attention,
    fmm_attention_step,
)

NORMALISERS = ("none", "output", "output_and_key")
OPTIONS: list[dict[str, Any]] = [
    *(dict(normaliser=normaliser) for normaliser in NORMALISERS),
    dict(far_scale=0.25, eps=0.5),
    dict(feature_map="elu_flip"),
    dict(feature_map="tanh1", normaliser="output_and_key"),
    dict(feature_map="relu", eps=0.1),
    dict(feature_map="softplus"),
    dict(feature_map="tanh", unit_features=False, eps=0.7),
    dict(feature_map="identity", unit_features=False, normaliser="none"),
    dict(feature_map="identity", unit_features=False, normaliser="output_and_key", eps=1.5),
]


def inputs(length: int = 21, dtype: torch.dtype = torch.float64, **shape: int) -> dict[str, Tensor]:
    """q, k, v and gates. Few channels: features that are not unit features then stay small enough."""
    shape = {"head_dim": 3, **shape}
    tensors = dict(zip("qkv", random_inputs(length=length, dtype=dtype, **shape)))
    batch, length, heads, _ = tensors["q"].shape
    return {**tensors, "beta": torch.rand(batch, length, heads, dtype=torch.float64).to(dtype)}


def loop_attention(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, token_mask: Tensor | None = None,
                   feature_map: str = "elu", unit_features: bool = True, normaliser: str = "output",
                   eps: float = 1e-5, far_scale: float = 1.0) -> Tensor:  # fmt: skip
    """The formula in plain Python numbers, one token at a time."""

    def features(x: Tensor) -> list[float]:
        phi = [LOOP_MAPS[feature_map](value) for value in x.tolist()]
        total = math.fsum(phi) if unit_features else 1.0
        return [value / total if total else 0.0 for value in phi]

    def divisor(s: float) -> float:
        if feature_map not in SIGNED_MAPS:
            return s + eps
        return s if abs(s) > eps else math.copysign(eps, s)

    def dot(a: list[float], b: list[float]) -> float:
        return math.fsum(x * y for x, y in zip(a, b))

    batch, length, heads, dim = q.shape
    value_dim = v.shape[-1]
    out = torch.zeros(batch, length, heads, value_dim, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            memory = [[0.0] * value_dim for _ in range(dim)]
            sums, first = [0.0] * dim, True
            for t in range(length):
                if token_mask is not None and not token_mask[b, t]:
                    continue
                x, y, gate = features(k[b, t, h]), features(q[b, t, h]), float(beta[b, t, h])
                read = [dot(x, [row[e] for row in memory]) for e in range(value_dim)]
                write, norm = gate, 1.0
                if normaliser == "output_and_key":
                    s = 1.0 if first else dot(x, sums)
                    norm = divisor(s)
                    write = gate * s / norm
                first = False
                for c in range(dim):
                    sums[c] += x[c]
                    for e in range(value_dim):
                        memory[c][e] += x[c] * write * (float(v[b, t, h, e]) - read[e] / norm)
                norm = 1.0 if normaliser == "none" else divisor(dot(y, sums))
                for e in range(value_dim):
                    out[b, t, h, e] = far_scale * dot(y, [row[e] for row in memory]) / norm
    return out


# --- values and gradients -------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_operator_and_reference_equal_a_loop_of_plain_numbers(options: dict[str, Any]) -> None:
    tensors, mask = inputs(), torch.rand(2, 21) < 0.7
    for token_mask in (None, mask):
        expected = loop_attention(**tensors, token_mask=token_mask, **options)
        assert_close(fast_weight_attention_reference(**tensors, token_mask=token_mask, **options), expected, 1e-12)
        assert_close(fast_weight_attention(**tensors, token_mask=token_mask, **options), expected, 1e-12)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradcheck(options: dict[str, Any]) -> None:
    leaves = as_leaves(*inputs(length=37, batch=1, value_dim=2).values())
    assert torch.autograd.gradcheck(lambda *t: fast_weight_attention(*t, **options), leaves)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_every_type_is_as_exact_as_it_can_be(dtype: torch.dtype, normaliser: str) -> None:
    tensors = inputs(length=700, dtype=dtype, head_dim=24, value_dim=40)
    upstream = torch.randn_like(tensors["v"])
    actual = value_and_gradients(fast_weight_attention, tensors, upstream, normaliser=normaliser)
    assert all(actual[name].dtype == tensors.get(name, actual["out"]).dtype for name in actual)
    expected = value_and_gradients(
        fast_weight_attention_reference,
        {name: tensor.double() for name, tensor in tensors.items()},
        upstream.double(),
        normaliser=normaliser,
    )
    assert_all_close(actual, expected, dtype)


def test_every_length_from_1_to_130_in_chunks_and_in_steps(poisoned_memory: None) -> None:
    """One call over the whole, a prompt and the rest in steps, and the reference: all the same."""
    options = dict(normaliser="output_and_key")
    longest = inputs(length=130, dtype=torch.float32, batch=1, head_dim=8)
    truth = fast_weight_attention_reference(**longest, **options)
    allowed = ALLOWED_RMS[torch.float32][0]
    for length in range(1, 131):
        tensors = {name: tensor[:, :length] for name, tensor in longest.items()}
        assert_close(fast_weight_attention(**tensors, **options), truth[:, :length], allowed, f"length {length}")
        prompt = max(1, length * 5 // 8)
        out, state = fast_weight_attention_prefill(*(t[:, :prompt] for t in tensors.values()), **options)
        assert_close(out, truth[:, :prompt], allowed, f"prompt of {prompt}")
        for t in range(prompt, min(length, prompt + 3)):
            step = fast_weight_attention_step(*(x[:, t] for x in tensors.values()), state, **options)
            assert_close(step, truth[:, t], allowed, f"token {t} after a prompt of {prompt}")


@pytest.mark.parametrize("length", [1, 2, 5, 16, 17, 31, 32, 33, 63, 64, 65, 97, 127, 128, 129, 130])
def test_gradients_at_many_lengths_with_poisoned_memory(length: int, poisoned_memory: None) -> None:
    tensors = inputs(length=length)
    upstream = torch.randn_like(tensors["v"])
    for normaliser in NORMALISERS:
        actual = value_and_gradients(fast_weight_attention, tensors, upstream, normaliser=normaliser)
        expected = value_and_gradients(fast_weight_attention_reference, tensors, upstream, normaliser=normaliser)
        assert_all_close(actual, expected, torch.float64)


@pytest.mark.parametrize("dim", [8, 16, 24])  # one tile that is not full, a full one, two
def test_gradients_at_every_length_from_1_to_130_with_poisoned_memory(dim: int, poisoned_memory: None) -> None:
    for length in range(1, 131):
        tensors = inputs(length, torch.float32, batch=1, head_dim=dim, value_dim=dim)
        upstream = torch.randn_like(tensors["v"])
        actual = value_and_gradients(fast_weight_attention, tensors, upstream)
        expected = value_and_gradients(fast_weight_attention_reference, tensors, upstream)
        assert_all_close(actual, expected, torch.float32)


def test_steps_from_an_empty_state_onwards_equal_the_whole() -> None:
    tensors = inputs(length=130)
    whole = fast_weight_attention(**tensors, normaliser="output_and_key")
    nothing = torch.zeros(2, 1, dtype=torch.bool)
    _, state = fast_weight_attention_prefill(
        *(t[:, :1] for t in tensors.values()), normaliser="output_and_key", token_mask=nothing
    )
    for t in range(130):
        step = fast_weight_attention_step(*(x[:, t] for x in tensors.values()), state, normaliser="output_and_key")
        assert_close(step, whole[:, t], 1e-12, f"token {t}")


# --- masks, layouts, bits -------------------------------------------------------------------------


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_masked_tokens_are_dead_whatever_they_hold(normaliser: str, poisoned_memory: None) -> None:
    tensors, mask = inputs(length=70), torch.rand(2, 70) < 0.6
    upstream = torch.randn_like(tensors["v"])
    expected = value_and_gradients(
        fast_weight_attention_reference, tensors, upstream, normaliser=normaliser, token_mask=mask
    )
    for garbage in (math.nan, math.inf, -math.inf):
        for name, tensor in tensors.items():
            tensor[~mask] = garbage
        actual = value_and_gradients(
            fast_weight_attention, tensors, upstream, normaliser=normaliser, token_mask=mask
        )
        assert_all_close(actual, expected, torch.float64)
        for name, tensor in actual.items():
            assert torch.all(tensor[~mask] == 0), name


def test_both_layouts_and_shared_heads_agree() -> None:
    tensors = inputs(length=40, dtype=torch.float32)
    expected = fast_weight_attention(**tensors)
    q, k, v = (tensors[name].transpose(1, 2).contiguous() for name in "qkv")
    assert same_bits(fast_weight_attention(q, k, v, tensors["beta"], layout="bhnd").transpose(1, 2), expected)
    shared = {**tensors, **{name: tensors[name][:, :, :1].expand(-1, -1, 2, -1) for name in "kv"}}
    copied = {name: tensor.contiguous() for name, tensor in shared.items()}
    assert same_bits(fast_weight_attention(**shared), fast_weight_attention(**copied))


def test_thirty_runs_and_any_number_of_threads_give_the_same_bits(set_threads: Callable[[int], None]) -> None:
    tensors = inputs(length=600, dtype=torch.float32, batch=3, head_dim=16, value_dim=16)
    upstream = torch.randn_like(tensors["v"])
    first = value_and_gradients(fast_weight_attention, tensors, upstream, normaliser="output_and_key")
    for run in range(30):
        set_threads(1 + run % 3)
        again = value_and_gradients(fast_weight_attention, tensors, upstream, normaliser="output_and_key")
        assert all(same_bits(again[name], tensor) for name, tensor in first.items())


@pytest.mark.parametrize("dim", [16, 32])
def test_memory_kept_for_backward_is_the_inputs_and_a_state_every_512_tokens(dim: int) -> None:
    """And on a GPU, with narrow heads, 148 bytes a token and head: what the walk through their chunks found."""
    leaves = as_leaves(*inputs(length=4096, dtype=torch.float32, batch=1, head_dim=dim, value_dim=dim).values())
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        fast_weight_attention(*leaves)
    extra = sum(size for address, size in kept.items() if address not in {t.data_ptr() for t in leaves})
    walk = 2 * 4096 * 148 if dim == 16 and device_type() == "cuda" else 0
    assert extra == 4 * 2 * 8 * (dim * dim + dim) + walk


# --- torch ----------------------------------------------------------------------------------------

OPERATOR_OPTIONS = dict(feature_map="elu", unit_features=True, normaliser="output", eps=1e-5, far_scale=1.0)


@pytest.mark.parametrize("changes", [dict(), dict(normaliser="output_and_key"), dict(feature_map="tanh")], ids=str)
def test_opcheck_is_clean(changes: dict[str, Any]) -> None:
    operators, options = torch.ops.fmmformer, {**OPERATOR_OPTIONS, **changes}
    leaves = as_leaves(*inputs(length=13, dtype=torch.float32).values())
    mask = torch.rand(2, 13) < 0.7
    torch.library.opcheck(operators.fast_weight_attention.default, (*leaves, mask), options)
    another = torch.float64 if device_type() == "cpu" else torch.bfloat16
    torch.library.opcheck(operators.fast_weight_attention.default, (*inputs(13, another).values(), None), options)


def test_opcheck_is_clean_for_strided_inputs_and_for_decoding() -> None:
    operators = torch.ops.fmmformer
    tensors = inputs(length=13, dtype=torch.float32)
    strided = {name: tensor.transpose(1, 2).contiguous().transpose(1, 2) for name, tensor in tensors.items()}
    torch.library.opcheck(operators.fast_weight_attention.default, (*as_leaves(*strided.values()), None),
                          OPERATOR_OPTIONS)  # fmt: skip
    mask = torch.rand(2, 13) < 0.7
    torch.library.opcheck(
        operators.fast_weight_attention_prefill.default, (*tensors.values(), mask), OPERATOR_OPTIONS
    )
    _, *state = operators.fast_weight_attention_prefill(*tensors.values(), mask, **OPERATOR_OPTIONS)
    token = [tensor[:, 0].contiguous() for tensor in tensors.values()]
    torch.library.opcheck(
        operators.fast_weight_attention_step.default,
        (*token, mask[:, 0].contiguous(), *state, "elu", True, "output"),
        OPERATOR_OPTIONS,
    )


def test_torch_compile_gives_one_graph_that_serves_every_length() -> None:
    torch._dynamo.reset()

    def squared(q, k, v, beta):
        return fast_weight_attention(q * 2, k, v, beta.sigmoid()).square()

    compiled = torch.compile(squared, fullgraph=True)
    for number, length in enumerate([21, 34, 5, 130, 64, 600]):
        tensors = inputs(length=length, dtype=torch.float32)
        upstream = torch.randn_like(tensors["v"])
        expected = value_and_gradients(squared, tensors, upstream)
        with torch.compiler.set_stance("default" if number < 2 else "fail_on_recompile"):
            actual = value_and_gradients(compiled, tensors, upstream)
        for name, tensor in expected.items():
            assert_close(actual[name], tensor, 1e-6, f"{name} at length {length}")


def test_a_compiled_step_advances_the_state_in_place() -> None:
    torch._dynamo.reset()
    tensors = inputs(length=16, dtype=torch.float32)
    compiled = torch.compile(fast_weight_attention_step, fullgraph=True, backend="aot_eager")
    _, state = fast_weight_attention_prefill(*(t[:, :10] for t in tensors.values()))
    expected = fast_weight_attention_reference(**tensors)
    for t in range(10, 16):
        step = compiled(*(x[:, t] for x in tensors.values()), state)
        assert_close(step, expected[:, t], ALLOWED_RMS[torch.float32][0], f"token {t}")
    assert state.tokens.tolist() == [16, 16]


def test_autocast_runs_in_low_precision_and_leaves_beta_alone() -> None:
    tensors = inputs(length=40, dtype=torch.float32)
    leaves = as_leaves(*tensors.values())
    with torch.autocast(device_type(), dtype=torch.bfloat16):
        out = fast_weight_attention(*leaves)
    assert out.dtype == torch.bfloat16
    assert_close(out, fast_weight_attention(**tensors), 1e-2)
    gradients = torch.autograd.grad(out.float().sum(), leaves)
    assert all(gradient.dtype == torch.float32 for gradient in gradients)


def test_inference_mode_and_no_grad_give_the_same_bits() -> None:
    leaves = as_leaves(*inputs(length=40, dtype=torch.float32).values())
    expected = fast_weight_attention(*leaves)
    with torch.no_grad():
        out = fast_weight_attention(*leaves)
    assert same_bits(out, expected.detach()) and not out.requires_grad
    with torch.inference_mode():
        out = fast_weight_attention(*leaves)
        assert same_bits(out, expected.detach()) and out.is_inference()


def test_an_expanded_upstream_gradient_is_fine() -> None:
    leaves = as_leaves(*inputs(length=20).values())
    out = fast_weight_attention(*leaves)
    for upstream in (torch.ones(()).double().expand(out.shape), torch.randn(5, 2, 20, 2).double().permute(1, 2, 3, 0)):
        actual = torch.autograd.grad(out, leaves, upstream, retain_graph=True)
        expected = torch.autograd.grad(out, leaves, upstream.contiguous(), retain_graph=True)
        assert all(same_bits(a, b) for a, b in zip(actual, expected))


def test_a_second_derivative_is_a_clear_error() -> None:
    leaves = as_leaves(*inputs().values())
    (gradient,) = torch.autograd.grad(fast_weight_attention(*leaves).square().sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="derivative.*fast_weight|fast_weight.*derivative"):
        torch.autograd.grad(gradient.sum(), leaves[0])


def test_shape_only_kernels_tell_the_true_shape_type_and_strides() -> None:
    tensors = inputs(dtype=torch.float32)
    out = fast_weight_attention(**tensors)
    shape_only = fast_weight_attention(**{name: tensor.to("meta") for name, tensor in tensors.items()})
    assert (shape_only.shape, shape_only.dtype, shape_only.stride()) == (out.shape, out.dtype, out.stride())


# --- identities -----------------------------------------------------------------------------------


def test_a_gate_near_zero_gives_the_sum_rule() -> None:
    """Beta small: nothing is erased, and beta v is summed as linear attention does."""
    tensors = inputs(length=50)
    tensors["beta"] = torch.full_like(tensors["beta"], 1e-9)
    out = fast_weight_attention(**tensors) * 1e9
    linear = fmm_attention(
        tensors["q"], tensors["k"], tensors["v"], causal=True, feature_maps=("elu",), unit_features=True, eps=1e-5
    )
    assert_close(out, linear, 1e-7)


# --- state and errors -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_saved_state_goes_on_where_it_was(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = inputs(dtype=dtype)
    _, state = fast_weight_attention_prefill(*(t[:, :20] for t in tensors.values()))
    state.save(tmp_path / "state")
    loaded, copy = FastWeightState.load(tmp_path / "state").to(device_type()), state.clone()
    assert "tokens=[20, 20]" in repr(loaded) and loaded.feature_map == "elu"
    assert loaded.unit_features and loaded.normaliser == "output"
    steps = [fast_weight_attention_step(*(t[:, 20] for t in tensors.values()), one) for one in (state, loaded, copy)]
    assert same_bits(steps[0], steps[1]) and same_bits(steps[0], steps[2])
    with pytest.raises(ValueError, match="FastWeightState.load"):
        FastWeightState.load(tmp_path / "none")


def test_mistakes_are_named() -> None:
    tensors = inputs()
    with pytest.raises(ValueError, match="beta is of type NoneType"):
        fast_weight_attention(**{**tensors, "beta": None})
    with pytest.raises(ValueError, match=r"beta has shape \[2, 20, 2\]"):
        fast_weight_attention(**{**tensors, "beta": tensors["beta"][:, :20]})
    with pytest.raises(ValueError, match="unknown fast-weight normaliser 'row_sum'"):
        fast_weight_attention(**tensors, normaliser="row_sum")
    with pytest.raises(ValueError, match="'elu2'"):
        fast_weight_attention(**tensors, feature_map="elu2")
    with pytest.raises(TypeError, match="did you mean 'feature_map'"):
        fast_weight_attention_reference(**tensors, feature_maps="elu")
    _, state = fast_weight_attention_prefill(**tensors)
    with pytest.raises(ValueError, match="give the options that prefill was called with"):
        fast_weight_attention_step(*(t[:, 0] for t in tensors.values()), state, unit_features=False)
    with pytest.raises(ValueError, match="normaliser output, this call has elu with unit_features and normaliser none"):
        fast_weight_attention_step(*(t[:, 0] for t in tensors.values()), state, normaliser="none")
    with pytest.raises(TypeError, match="wanted is a FastWeightState"):
        fast_weight_attention_step(*(t[:, 0] for t in tensors.values()), None)
    with pytest.raises(TypeError, match="wanted is an FmmState"):
        fmm_attention_step(*(tensors[name][:, 0] for name in "qkv"), state)
