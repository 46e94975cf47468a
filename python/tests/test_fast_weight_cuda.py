# SPDX-License-Identifier: Apache-2.0
"""What holds of fast weights on a GPU beyond what holds everywhere: agreement with the CPU, graphs, streams, sizes."""

from __future__ import annotations

import pytest
import torch
from helpers import assert_close, same_bits, value_and_gradients

from fmmformer import fast_weight_attention, fast_weight_attention_prefill, fast_weight_attention_step

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

NORMALISERS = ("none", "output", "output_and_key")


def on_gpu(
    length: int = 300, dtype: torch.dtype = torch.float32, dim: int = 32, batch: int = 2, heads: int = 2
) -> dict[str, torch.Tensor]:
    draw = lambda *shape: torch.randn(*shape, device="cuda").to(dtype)  # noqa: E731
    tensors = {name: draw(batch, length, heads, dim) for name in "qkv"}
    return {**tensors, "beta": draw(batch, length, heads).sigmoid()}


# 1300 tokens are three segments, whose states are joined.
@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("length", [70, 1300])
def test_cpu_and_gpu_agree(normaliser: str, length: int) -> None:
    gpu = on_gpu(length)
    upstream = torch.randn_like(gpu["v"])
    actual = value_and_gradients(fast_weight_attention, gpu, upstream, normaliser=normaliser)
    cpu = {name: tensor.cpu() for name, tensor in gpu.items()}
    expected = value_and_gradients(fast_weight_attention, cpu, upstream.cpu(), normaliser=normaliser)
    for name, tensor in expected.items():
        assert_close(actual[name].cpu(), tensor.cpu(), 1e-5, name)


def test_joined_segments_are_the_sequence_in_one_go() -> None:
    """Few pairs are cut into segments, many are not: a pair alone and among many others is the same."""
    many = on_gpu(length=1100, dim=16, batch=70, heads=8)
    alone = {name: tensor[3:4, :, 2:3] for name, tensor in many.items()}
    upstream = torch.randn_like(many["v"])
    of_many = value_and_gradients(fast_weight_attention, many, upstream)
    of_one = value_and_gradients(fast_weight_attention, alone, upstream[3:4, :, 2:3])
    for name, tensor in of_one.items():
        assert_close(of_many[name][3:4, :, 2:3], tensor, 1e-5, name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_thirty_runs_give_the_same_bits(dtype: torch.dtype) -> None:
    tensors = on_gpu(length=2100, dtype=dtype)
    upstream = torch.randn_like(tensors["v"])
    first = value_and_gradients(fast_weight_attention, tensors, upstream, normaliser="output_and_key")
    for _ in range(29):
        again = value_and_gradients(fast_weight_attention, tensors, upstream, normaliser="output_and_key")
        assert all(same_bits(again[name], tensor) for name, tensor in first.items())


@pytest.mark.parametrize("length", [300, 1300])
def test_a_captured_graph_replays_on_new_numbers(length: int) -> None:
    tensors = on_gpu(length, dtype=torch.bfloat16)
    leaves = [tensor.requires_grad_() for tensor in tensors.values()]
    upstream = torch.randn_like(leaves[2])

    def run() -> list[torch.Tensor]:
        out = fast_weight_attention(*leaves)
        return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    for _ in range(2):
        with torch.no_grad():
            for leaf in leaves[:3]:
                leaf.copy_(torch.randn_like(leaf))
        graph.replay()
        assert all(same_bits(a, b) for a, b in zip(captured, run()))


def test_a_captured_step_moves_the_state_on() -> None:
    tensors = list(on_gpu(length=40).values())
    options = dict(normaliser="output_and_key")
    _, state = fast_weight_attention_prefill(*(x[:, :30] for x in tensors), **options)
    token = [x[:, 30].clone() for x in tensors]
    fast_weight_attention_step(*token, state.clone(), **options)  # loads the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fast_weight_attention_step(*token, state, **options)
    exact = fast_weight_attention(*tensors, **options)
    for t in range(30, 40):
        for place, x in zip(token, tensors):
            place.copy_(x[:, t])
        graph.replay()
        assert_close(out, exact[:, t], 1e-5, f"token {t}")
    assert state.tokens.tolist() == [40, 40]


@pytest.mark.parametrize("length", [30, 1300])
def test_a_prompt_leaves_the_same_state_as_on_the_cpu(length: int) -> None:
    gpu = on_gpu(length)
    _, actual = fast_weight_attention_prefill(*gpu.values())
    _, expected = fast_weight_attention_prefill(*(tensor.cpu() for tensor in gpu.values()))
    for name in ("memory", "key_sums"):
        assert_close(getattr(actual, name).cpu(), getattr(expected, name), 1e-5, name)


def test_it_runs_on_the_current_stream() -> None:
    tensors = on_gpu(length=4000)
    expected = fast_weight_attention(**tensors)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # work that ours must wait for
        late = {name: tensor * 1 for name, tensor in tensors.items()}
        out = fast_weight_attention(**late)
    stream.synchronize()
    assert same_bits(out, expected)


def test_double_is_refused_with_the_way_out() -> None:
    tensors = {name: tensor.double() for name, tensor in on_gpu(length=8).items()}
    with pytest.raises(ValueError, match="Double on a GPU.*float"):
        torch.ops.fmmformer.fast_weight_attention_forward(*tensors.values(), None, [0, 1, 1], [1e-5, 1.0], 0)


def test_more_than_65535_heads_in_all() -> None:
    tensors = on_gpu(length=20, dtype=torch.bfloat16, dim=16, batch=9000, heads=8)
    out = fast_weight_attention(**tensors)
    last = fast_weight_attention(**{name: tensor[-3:] for name, tensor in tensors.items()})
    assert same_bits(out[-3:], last)
