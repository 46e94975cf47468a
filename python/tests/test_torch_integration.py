# SPDX-License-Identifier: Apache-2.0
"""The operator as a good citizen of torch: opcheck, torch.compile, autocast, gradient modes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from helpers import (
    ALLOWED_RMS,
    CASES,
    Case,
    as_leaves,
    assert_close,
    device_type,
    random_inputs,
    random_weights,
    same_bits,
    value_and_gradients,
)
from torch import Tensor

from fmmformer import (
    FMMAttention,
    fmm_attention,
    fmm_attention_prefill,
    fmm_attention_reference,
    fmm_attention_step,
    full_attention,
)

OPERATOR_OPTIONS: dict[str, Any] = dict(
    window=[3, 0],
    causal=True,
    feature_maps=["elu", "tanh1"],
    unit_features=False,
    normaliser="row_sum",
    eps=1e-6,
    near_scale=None,
    far_scale=1.0,
    near_dropout=0.0,
)

# --- opcheck --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        dict(),
        dict(causal=False, window=[3, 3]),
        dict(window=None, unit_features=True),
        dict(feature_maps=[], near_scale=0.5),
        dict(causal=False, normaliser="inv_sqrt_length"),
        dict(near_dropout=0.3),
    ],
    ids=str,
)
def test_opcheck_is_clean(changes: dict[str, Any]) -> None:
    options = {**OPERATOR_OPTIONS, **changes}
    q, k, v = as_leaves(*random_inputs(length=13, dtype=torch.float32))
    near_weight, far_weight = as_leaves(torch.rand(2, 1), torch.rand(len(options["feature_maps"]), 2, 5))
    mask = torch.rand(2, 13) < 0.7
    seed = torch.tensor([7]) if options["near_dropout"] else None
    torch.library.opcheck(
        torch.ops.fmmformer.fmm_attention.default, (q, k, v, near_weight, far_weight, mask, seed), options
    )


def test_opcheck_is_clean_without_weights_mask_and_gradients() -> None:
    q, k, v = random_inputs(length=13, dtype=torch.bfloat16)
    torch.library.opcheck(
        torch.ops.fmmformer.fmm_attention.default, (q, k, v, None, None, None, None), OPERATOR_OPTIONS
    )


def test_opcheck_is_clean_for_strided_inputs() -> None:
    q, k, v = (t.transpose(1, 2) for t in random_inputs(length=13, dtype=torch.float32))
    k, v = k[:, :, :1].expand(-1, -1, 13, -1), v[:, :, :1].expand(-1, -1, 13, -1)
    torch.library.opcheck(
        torch.ops.fmmformer.fmm_attention.default, (q, k, v, None, None, None, None), OPERATOR_OPTIONS
    )


def test_opcheck_is_clean_for_prefill_and_step() -> None:
    q, k, v = random_inputs(length=13, dtype=torch.float32)
    mask = torch.rand(2, 13) < 0.7
    operators = torch.ops.fmmformer
    torch.library.opcheck(operators.fmm_attention_prefill.default, (q, k, v, None, None, mask), OPERATOR_OPTIONS)
    _, *state = operators.fmm_attention_prefill(q, k, v, None, None, mask, **OPERATOR_OPTIONS)
    token = [t[:, 0].contiguous() for t in (q, k, v)]
    torch.library.opcheck(
        operators.fmm_attention_step.default,
        (*token, None, torch.rand(2, 1), mask[:, 0].contiguous(), *state, OPERATOR_OPTIONS["feature_maps"],
         OPERATOR_OPTIONS["unit_features"]),
        OPERATOR_OPTIONS,
    )


def test_opcheck_is_clean_for_the_baseline() -> None:
    q, k, v = as_leaves(*random_inputs(length=13, dtype=torch.float32))
    torch.library.opcheck(
        torch.ops.fmmformer.full_attention.default,
        (q, k, v, torch.rand(2, 13) < 0.7),
        dict(causal=True, scale=None, dropout=0.0),
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_shape_only_kernels_tell_the_true_shape_type_and_strides(case: Case) -> None:
    q, k, v = random_inputs(dtype=torch.float32)
    weights = random_weights(case, torch.float32)
    out = fmm_attention(q, k, v, **weights, **case.options)
    weights = {name: tensor.to("meta") for name, tensor in weights.items()}
    shape_only = fmm_attention(q.to("meta"), k.to("meta"), v.to("meta"), **weights, **case.options)
    assert shape_only.shape == out.shape and shape_only.dtype == out.dtype
    assert shape_only.stride() == out.stride() and shape_only.device.type == "meta"


# --- torch.compile --------------------------------------------------------------------------------


@pytest.fixture
def compiler() -> None:
    """Compiled code of earlier tests is forgotten: recompilations are counted."""
    torch._dynamo.reset()


def compare_compiled(function: Callable[..., Tensor], backend: str, lengths: list[int], **options: Any) -> None:
    """Values and gradients of compiled and eager code; after two lengths nothing may be compiled again."""
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    for number, length in enumerate(lengths):
        tensors = dict(zip("qkv", random_inputs(length=length, dtype=torch.float32)))
        tensors["near_weight"] = torch.rand(2, 1)
        upstream = torch.randn_like(tensors["v"])
        expected = value_and_gradients(function, tensors, upstream, **options)
        stance = "default" if number < 2 else "fail_on_recompile"
        with torch.compiler.set_stance(stance):
            actual = value_and_gradients(compiled, tensors, upstream, **options)
        for name, tensor in expected.items():
            assert_close(actual[name], tensor, 1e-6, f"{name} at length {length}")


def test_torch_compile_gives_one_graph_that_serves_every_length(compiler: None) -> None:
    def squared(q, k, v, near_weight, **options):
        return fmm_attention(q * 2, k, v, near_weight=near_weight, **options).square()

    compare_compiled(squared, "inductor", [21, 34, 5, 130, 64], bandwidth=5, causal=True)


@pytest.mark.parametrize(
    "options",
    [dict(bandwidth=3), dict(bandwidth=2, feature_maps=()), dict(window=(2, 1), layout="bnhd", normaliser="none")],
    ids=str,
)
def test_torch_compile_takes_every_kind_of_option(compiler: None, options: dict[str, Any]) -> None:
    def scaled(q, k, v, near_weight, **options):
        return fmm_attention(q, k, v, near_weight=near_weight.exp(), **options)

    compare_compiled(scaled, "aot_eager", [21, 34, 55], **options)


def test_torch_compile_takes_masks_and_dropout_seeds(compiler: None) -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(q, mask, seed):
        return fmm_attention(q, q, q, bandwidth=4, token_mask=mask, near_dropout=0.4, dropout_seed=seed, layout="bhnd")

    for length in (12, 17):
        q, mask = torch.randn(2, 3, length, 8), torch.rand(2, length) < 0.6
        for seed in (torch.tensor([1]), torch.tensor([2])):
            eager = fmm_attention(
                q, q, q, bandwidth=4, token_mask=mask, near_dropout=0.4, dropout_seed=seed, layout="bhnd"
            )
            assert same_bits(compiled(q, mask, seed), eager)


def test_torch_compile_draws_a_fresh_seed_on_every_call(compiler: None) -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(q):
        return fmm_attention(q, q, q, bandwidth=4, near_dropout=0.4)

    q = torch.randn(2, 12, 3, 8)
    assert not torch.equal(compiled(q), compiled(q))


def test_a_whole_layer_compiles_and_trains(compiler: None) -> None:
    layer = FMMAttention(8, 2, causal=True, near_dropout=0.1)
    x = torch.randn(2, 15, 8)
    layer.eval()
    expected = layer(x)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_close(compiled(x), expected, 1e-6)
    layer.train()
    compiled(x).square().sum().backward()
    assert all(p.grad is not None and torch.all(p.grad.isfinite()) for p in layer.parameters())


def test_a_compiled_step_advances_the_state_in_place(compiler: None) -> None:
    options = dict(bandwidth=4, causal=True)
    q, k, v = random_inputs(length=16, dtype=torch.float32)
    compiled = torch.compile(fmm_attention_step, fullgraph=True, backend="aot_eager")
    _, state = fmm_attention_prefill(q[:, :10], k[:, :10], v[:, :10], **options)
    expected = fmm_attention_reference(q, k, v, **options)
    for t in range(10, 16):
        step = compiled(q[:, t], k[:, t], v[:, t], state, **options)
        assert_close(step, expected[:, t], ALLOWED_RMS[torch.float32][0], f"token {t}")
    assert state.position.tolist() == [16]


# --- autocast and gradient modes ------------------------------------------------------------------


def test_a_layer_trains_under_autocast_with_weights_in_fp32() -> None:
    layer = FMMAttention(16, 2, blend="raw_per_channel")
    x = torch.randn(2, 30, 16)
    exact = layer(x)
    with torch.autocast(device_type(), dtype=torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    assert_close(out, exact, 3e-2)
    out.float().square().sum().backward()
    assert all(p.grad.dtype == torch.float32 and torch.all(p.grad.isfinite()) for p in layer.parameters())


def test_inputs_of_mixed_types_work_under_autocast() -> None:
    """Projections leave bf16, while something like a rotation of q and k may have stayed in fp32."""
    q, k, v = random_inputs(length=40, dtype=torch.float32)
    leaves = as_leaves(q, k, v.bfloat16())
    with torch.autocast(device_type(), dtype=torch.bfloat16):
        out = fmm_attention(*leaves, bandwidth=5)
        assert_close(out, fmm_attention(q, k, v, bandwidth=5), 1e-2)
    gradients = torch.autograd.grad(out.float().sum(), leaves)
    assert [g.dtype for g in gradients] == [torch.float32, torch.float32, torch.bfloat16]


def test_inference_mode_and_no_grad_give_the_same_bits() -> None:
    leaves = as_leaves(*random_inputs(length=40, dtype=torch.float32))
    expected = fmm_attention(*leaves, bandwidth=5, causal=True)
    assert expected.requires_grad
    with torch.no_grad():
        out = fmm_attention(*leaves, bandwidth=5, causal=True)
    assert same_bits(out, expected.detach()) and not out.requires_grad
    with torch.inference_mode():
        out = fmm_attention(*leaves, bandwidth=5, causal=True)
        assert same_bits(out, expected.detach()) and out.is_inference()
        inputs = random_inputs(dtype=torch.float32)
        _, state = fmm_attention_prefill(*inputs, bandwidth=5, causal=True)
        fmm_attention_step(*(t[:, 0] for t in inputs), state, bandwidth=5, causal=True)


def test_a_second_derivative_is_a_clear_error() -> None:
    leaves = as_leaves(*random_inputs())
    out = fmm_attention(*leaves, bandwidth=5)
    (gradient,) = torch.autograd.grad(out.square().sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="derivative.*fmm_attention|fmm_attention.*derivative"):
        torch.autograd.grad(gradient.sum(), leaves[0])


def test_forward_derivatives_and_functorch_transforms_are_clear_errors() -> None:
    q, k, v = random_inputs()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(NotImplementedError, match="fmm_attention: an input has a forward derivative"):
            fmm_attention(dual, k, v, bandwidth=5)
    with pytest.raises(RuntimeError, match="functorch transforms"):
        torch.func.grad(lambda q: fmm_attention(q, k, v, bandwidth=5).sum())(q)


def test_backward_works_under_compiled_autograd(compiler: None) -> None:
    def gradients() -> tuple[Tensor, ...]:
        leaves = as_leaves(*inputs)
        fmm_attention(*leaves[:3], near_weight=leaves[3], bandwidth=5, causal=True).square().sum().backward()
        return tuple(leaf.grad for leaf in leaves)

    for length in (13, 21, 34):
        inputs = (*random_inputs(length=length, dtype=torch.float32), torch.rand(2, 1))
        expected = gradients()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            actual = gradients()
        assert all(same_bits(a, b) for a, b in zip(actual, expected, strict=True))


def test_a_second_backward_without_a_retained_graph_is_torchs_own_error() -> None:
    leaves = as_leaves(*random_inputs())
    out = fmm_attention(*leaves, bandwidth=5)
    torch.autograd.grad(out.sum(), leaves)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out.sum(), leaves)


def test_an_input_that_changed_in_place_since_forward_is_torchs_own_error() -> None:
    q, k, v = random_inputs()
    leaf = q.clone().requires_grad_()
    out = fmm_attention(leaf, k, v, bandwidth=5)
    k.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("wanted", range(5))
def test_one_input_alone_can_want_a_gradient(wanted: int) -> None:
    inputs = [*random_inputs(dtype=torch.float32), torch.rand(2, 1), torch.rand(1, 2, 1)]

    def run(*tensors: Tensor) -> Tensor:
        q, k, v, near_weight, far_weight = tensors
        return fmm_attention(q, k, v, near_weight=near_weight, far_weight=far_weight, bandwidth=5, causal=True)

    leaves = as_leaves(*inputs)
    expected = torch.autograd.grad(run(*leaves).square().sum(), leaves)[wanted]
    inputs[wanted] = leaves[wanted]
    run(*inputs).square().sum().backward()
    assert same_bits(leaves[wanted].grad, expected)


def test_an_output_without_a_gradient_gives_its_inputs_none() -> None:
    class Swallow(torch.autograd.Function):
        @staticmethod
        def forward(context: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(context: torch.autograd.function.FunctionCtx, gradient: Tensor) -> None:
            return None

    leaves = as_leaves(*random_inputs())
    Swallow.apply(fmm_attention(*leaves, bandwidth=5)).sum().backward()
    assert all(leaf.grad is None for leaf in leaves)


def test_backward_can_run_twice_over_a_retained_graph() -> None:
    leaves = as_leaves(*random_inputs())
    out = fmm_attention(*leaves, bandwidth=5)
    first = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
    assert all(same_bits(a, b) for a, b in zip(first, torch.autograd.grad(out.sum(), leaves)))


@pytest.mark.parametrize("pairs, length, dim", [(4, 256, 16), (256, 130, 32), (132, 130, 64), (66, 512, 64)])
def test_backward_with_weights_can_run_twice_over_a_retained_graph(pairs: int, length: int, dim: int) -> None:
    inputs = random_inputs(batch=pairs // 2, length=length, heads=2, head_dim=dim, value_dim=dim, dtype=torch.bfloat16)
    near_weight = torch.rand(2, dim if dim == 32 else 1)
    far_weight = torch.rand(2, 2, dim if dim == 32 else 1)
    leaves = as_leaves(*inputs, near_weight, far_weight)
    out = fmm_attention(*leaves[:3], bandwidth=5, causal=True, feature_maps=("elu", "elu_flip"),
                        near_weight=leaves[3], far_weight=leaves[4])
    first = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
    assert all(same_bits(a, b) for a, b in zip(first, torch.autograd.grad(out.sum(), leaves)))


def test_changing_an_input_in_place_before_backward_is_an_error() -> None:
    (q,) = as_leaves(random_inputs()[0])
    changed = q * 1
    out = fmm_attention(changed, changed, changed, bandwidth=5)
    with torch.no_grad():
        changed.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_python_threads_may_call_at_the_same_time() -> None:
    tensors = [dict(zip("qkv", random_inputs(length=300, dtype=torch.float32))) for _ in range(4)]

    def run(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return value_and_gradients(fmm_attention, inputs, torch.ones_like(inputs["v"]), bandwidth=5, causal=True)

    expected = [run(inputs) for inputs in tensors]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for actual, wanted in zip(pool.map(run, tensors), expected):
                assert all(same_bits(actual[name], tensor) for name, tensor in wanted.items())


def test_memory_kept_for_backward_is_the_inputs_and_a_few_numbers_a_row() -> None:
    """q, k, v themselves, and 4 (r + 1) bytes per row and head; no component, no chunk state. On a GPU also what each
    segment of 256 tokens or more begins with."""
    q, k, v = as_leaves(*random_inputs(batch=1, length=4096, heads=2, head_dim=16, value_dim=16, dtype=torch.float32))
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = fmm_attention(q, k, v, bandwidth=5, causal=True, feature_maps=("elu", "elu_flip"))
    inputs = {tensor.data_ptr() for tensor in (q, k, v)}
    extra = sum(size for address, size in kept.items() if address not in inputs)
    state = 2 * 16 * (16 + 1) * 4
    starts = 4096 // 256 * 2 * state if device_type() == "cuda" else 0
    assert 0 < extra <= 4 * (2 + 1) * 4096 * 2 + starts
    assert out.untyped_storage().data_ptr() not in kept


@pytest.mark.parametrize(
    ("batch", "length", "dim", "maps", "dtype"),
    [(8, 1100, 64, ("elu", "elu_flip", "tanh1"), torch.bfloat16), (1, 2400, 48, ("elu",), torch.float32)],
)
def test_hooks_for_saved_tensors_may_change_their_strides(
    batch: int, length: int, dim: int, maps: tuple[str, ...], dtype: torch.dtype
) -> None:
    """Backward then finds q in other places than forward did, and may cut the sequence otherwise."""
    wide, k, v = random_inputs(batch=batch, length=length, heads=8, head_dim=dim + 2, value_dim=dim, dtype=dtype)
    upstream = torch.randn_like(v)

    def gradients() -> list[Tensor]:
        leaves = as_leaves(wide, k, v)
        # The first channel does not begin at a multiple of sixteen bytes.
        out = fmm_attention(
            leaves[0][..., 1:dim + 1], leaves[1][..., :dim], leaves[2], bandwidth=30, causal=True, feature_maps=maps
        )
        out.backward(upstream)
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    expected = gradients()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.contiguous().clone(), lambda tensor: tensor):
        actual = gradients()
    for name, tensor, wanted in zip("qkv", actual, expected, strict=True):
        assert_close(tensor, wanted, 2 * ALLOWED_RMS[dtype][1], name)


def test_full_attention_has_gradients_like_the_reference() -> None:
    tensors = dict(zip("qkv", random_inputs()))
    upstream = torch.randn_like(tensors["v"])
    actual = value_and_gradients(full_attention, tensors, upstream, causal=True)
    expected = value_and_gradients(
        fmm_attention_reference, tensors, upstream, bandwidth=99, causal=True, feature_maps=()
    )
    for name, tensor in expected.items():
        assert_close(actual[name], tensor, 1e-12, name)
