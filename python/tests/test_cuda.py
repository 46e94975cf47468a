# SPDX-License-Identifier: Apache-2.0
"""What holds on a GPU beyond what holds everywhere: agreement with the CPU, large calls, several GPUs. What each folder of
kernels must hold is in test_cuda_kernels.py."""

from __future__ import annotations

import pytest
import torch
from helpers import assert_close, random_inputs, same_bits, value_and_gradients

from fmmformer import fmm_attention, fmm_attention_prefill, fmm_attention_step

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

OPTIONS = dict(bandwidth=20, feature_maps=("elu", "elu_flip", "tanh1"))


def on_gpu(length: int = 300, dtype: torch.dtype = torch.float32, dim: int = 32) -> dict[str, torch.Tensor]:
    tensors = random_inputs(length=length, head_dim=dim, value_dim=dim, dtype=dtype)
    return {name: tensor.cuda() for name, tensor in zip("qkv", tensors)}


@pytest.mark.parametrize("causal", [False, True])
def test_cpu_and_gpu_agree_and_drop_the_same_probabilities(causal: bool) -> None:
    gpu = on_gpu()
    upstream = torch.randn_like(gpu["v"])
    seed = torch.tensor([7])
    options = dict(causal=causal, near_dropout=0.4, **OPTIONS)
    actual = value_and_gradients(fmm_attention, gpu, upstream, dropout_seed=seed.cuda(), **options)
    cpu = {name: tensor.cpu() for name, tensor in gpu.items()}
    expected = value_and_gradients(fmm_attention, cpu, upstream.cpu(), dropout_seed=seed.cpu(), **options)
    for name, tensor in expected.items():
        assert_close(actual[name].cpu(), tensor.cpu(), 1e-5, name)


def test_a_captured_step_moves_the_state_on() -> None:
    q, k, v = on_gpu(length=40).values()
    options = dict(causal=True, **OPTIONS)
    _, state = fmm_attention_prefill(q[:, :30], k[:, :30], v[:, :30], **options)
    token = [x[:, 30].clone() for x in (q, k, v)]
    fmm_attention_step(*token, state.clone(), **options)  # loads the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fmm_attention_step(*token, state, **options)
    exact = fmm_attention(q, k, v, **options)
    for t in range(30, 40):
        for place, x in zip(token, (q, k, v)):
            place.copy_(x[:, t])
        graph.replay()
        assert_close(out, exact[:, t], 1e-5, f"token {t}")
    assert state.position.tolist() == [40]


@pytest.mark.parametrize("normaliser", ["row_sum", "none", "inv_sqrt_length"])
@pytest.mark.parametrize("length", [30, 300])
def test_a_prompt_leaves_the_same_state_as_on_the_cpu(normaliser: str, length: int) -> None:
    gpu = on_gpu(length=length, dtype=torch.bfloat16)
    options = dict(causal=True, normaliser=normaliser, **OPTIONS)
    _, actual = fmm_attention_prefill(*gpu.values(), **options)
    _, expected = fmm_attention_prefill(*(tensor.cpu() for tensor in gpu.values()), **options)
    for name in ("far_sums", "far_key_sums"):
        assert_close(getattr(actual, name).cpu(), getattr(expected, name), 1e-2, name)


def test_double_is_refused_with_the_way_out() -> None:
    tensors = {name: tensor.double() for name, tensor in on_gpu(length=8).items()}
    with pytest.raises(ValueError, match="Double on a GPU.*float"):
        torch.ops.fmmformer.fmm_attention_forward(
            tensors["q"], tensors["k"], tensors["v"], None, None, None, None, [1, 0, 1, 0, 0, 0], [1e-6, 0, 1, 0], False
        )


@pytest.mark.parametrize("causal", [False, True])
def test_more_than_two_to_the_thirty_first_elements(causal: bool) -> None:
    length, heads, dim = 2**18, 132, 64  # 2.2e9 elements
    if torch.cuda.get_device_properties(0).total_memory < 60 * 2**30:
        pytest.skip("needs 60 GiB on the GPU")
    q, k, v = (torch.randn(1, length, heads, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    assert q.numel() > 2**31
    tensors = [x.requires_grad_() for x in (q, k, v)]
    out = fmm_attention(q, k, v, causal=causal, bandwidth=5, feature_maps=("elu",))
    out.backward(torch.ones_like(out))
    # The last head lies beyond 2^31: it must be what it is by itself.
    last = [x.detach()[:, :, -1:].clone().requires_grad_() for x in tensors]
    alone = fmm_attention(*last, causal=causal, bandwidth=5, feature_maps=("elu",))
    alone.backward(torch.ones_like(alone))
    assert_close(out[:, :, -1:], alone, 1e-2, "out")
    for name, whole, part in zip("qkv", tensors, last):
        assert_close(whole.grad[:, :, -1:], part.grad, 1e-2, name)


def test_more_than_65535_heads_in_all() -> None:
    q, k, v = (torch.randn(9000, 20, 8, 16, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    out = fmm_attention(q, k, v, causal=True, **OPTIONS)
    assert_close(out[-3:], fmm_attention(q[-3:], k[-3:], v[-3:], causal=True, **OPTIONS), 1e-2, "out")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_of_another_gpu_than_the_current_one() -> None:
    first = on_gpu()
    second = {name: tensor.to("cuda:1") for name, tensor in first.items()}
    upstream = torch.randn_like(first["v"])
    expected = value_and_gradients(fmm_attention, first, upstream, causal=True, **OPTIONS)
    actual = value_and_gradients(fmm_attention, second, upstream.to("cuda:1"), causal=True, **OPTIONS)
    assert torch.cuda.current_device() == 0
    assert all(same_bits(actual[name].cpu(), tensor.cpu()) for name, tensor in expected.items())
