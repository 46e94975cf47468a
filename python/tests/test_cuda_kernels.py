# SPDX-License-Identifier: Apache-2.0
"""What every folder of GPU kernels must hold: the same bits in every run, replays of captured graphs, any stream."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from helpers import random_inputs, same_bits, value_and_gradients
from torch import Tensor

from fmmformer import fmm_attention

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

MAPS = ("elu", "elu_flip", "tanh1")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@dataclasses.dataclass
class Call:
    """A call that such kernels serve on an H200; on other GPUs some of them are served by others."""

    kernels: str
    dtype: torch.dtype
    shape: tuple[int, int, int, int]  # batch, length, heads, dim
    maps: int = 2
    causal: bool = True
    bandwidth: int = 20
    channel_weights: bool = False
    dropout: bool = False

    def tensors(self) -> dict[str, Tensor]:
        batch, length, heads, dim = self.shape
        inputs = random_inputs(batch, length, heads, dim, dim, self.dtype)
        channels = dim if self.channel_weights else 1
        weights = torch.rand(heads, channels), torch.rand(self.maps, heads, channels)
        names = ("q", "k", "v", "near_weight", "far_weight")
        return {name: x.cuda() for name, x in zip(names, (*inputs, *weights))}

    def options(self, seed: Tensor) -> dict[str, Any]:
        dropout = dict(near_dropout=0.5, dropout_seed=seed) if self.dropout else {}
        return dict(causal=self.causal, bandwidth=self.bandwidth, feature_maps=MAPS[:self.maps], **dropout)


CALLS = [
    Call("whole", BF16, (4, 200, 4, 16)),
    Call("strips", BF16, (2, 2100, 2, 32), maps=3, dropout=True),
    Call("strips, two-sided", BF16, (2, 2100, 2, 32), causal=False, bandwidth=17),
    Call("strips, a cluster a head", BF16, (8, 2100, 4, 32), causal=False, bandwidth=5),
    Call("strips in fp32", FP32, (2, 2100, 2, 16), causal=False, bandwidth=17, dropout=True),
    Call("teams", FP32, (2, 2100, 2, 32), maps=3),
    Call("narrow/both_sides", BF16, (32, 300, 8, 32), maps=3, channel_weights=True, dropout=True),
    Call("narrow_fp32", FP32, (16, 300, 8, 32), maps=3, channel_weights=True, dropout=True),
    Call("chunks/both_sides", BF16, (16, 300, 8, 64)),
    Call("chunks/both_sides in segments", BF16, (8, 1024, 8, 64)),
    Call("chunks/warpgroup", BF16, (1, 3000, 2, 64), maps=3, dropout=True),
    Call("warpgroups", BF16, (1, 3000, 2, 128)),
    Call("warpgroups, backward at once", BF16, (11, 300, 8, 128)),
    Call("chunks/both_sides with dropout", BF16, (8, 1024, 8, 64), dropout=True),
    Call("warpgroups with dropout", BF16, (1, 3000, 2, 128), dropout=True),
    Call("chunks_fp32, fed", FP32, (1, 3000, 2, 64)),
    Call("chunks_fp32", FP32, (1, 3000, 2, 64), maps=3, dropout=True),
    Call("chunks_fp32/wide", FP32, (1, 3000, 2, 128)),
    Call("chunks/both_sides with room to spare", BF16, (16, 300, 8, 48)),
    Call("chunks/warpgroup with room to spare", BF16, (1, 3000, 2, 40), maps=3, dropout=True),
    Call("warpgroups with room to spare", BF16, (1, 3000, 2, 96)),
    Call("chunks_fp32, fed, with room to spare", FP32, (1, 3000, 2, 48)),
    Call("warpgroups with room to spare, backward at once", BF16, (11, 300, 8, 96), dropout=True),
    Call("chunks_fp32 with room to spare", FP32, (1, 3000, 2, 48), maps=3, dropout=True),
    Call("chunks_fp32/wide with room to spare", FP32, (1, 3000, 2, 80)),
    Call("roles", BF16, (2, 2100, 2, 48), causal=False, dropout=True),
    Call("roles, causal", BF16, (2, 2100, 2, 64), channel_weights=True, dropout=True),
    Call("general", FP32, (2, 2100, 2, 48), causal=False, dropout=True),
    Call("general, causal", FP32, (2, 2100, 2, 64), channel_weights=True, dropout=True),
    Call("general in fp16", FP16, (2, 2100, 2, 48), causal=False),
    Call("fp32's in fp16", FP16, (2, 2100, 2, 64), dropout=True),
    Call("fp32's with room to spare in fp16", FP16, (2, 2100, 2, 48), dropout=True),
]
every_kernel = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.kernels)


def one_seed(value: int = 1) -> Tensor:
    return torch.tensor([value], device="cuda")


@every_kernel
def test_ten_runs_give_the_same_bits(call: Call) -> None:
    tensors, options = call.tensors(), call.options(one_seed())
    upstream = torch.randn_like(tensors["v"])
    first = value_and_gradients(fmm_attention, tensors, upstream, **options)
    for _ in range(9):
        again = value_and_gradients(fmm_attention, tensors, upstream, **options)
        assert all(same_bits(again[name], tensor) for name, tensor in first.items())


@every_kernel
def test_a_captured_graph_replays_with_new_inputs_and_fresh_dropout(call: Call) -> None:
    tensors, seed = call.tensors(), one_seed()
    options = call.options(seed)
    leaves = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
    upstream = torch.randn_like(tensors["v"])

    def run() -> list[Tensor]:
        out = fmm_attention(**leaves, **options)
        return [out.detach(), *torch.autograd.grad(out, list(leaves.values()), upstream)]

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    graph.replay()
    before = captured[0].clone()
    for value in (2, 3, 4):
        seed.fill_(value)
        with torch.no_grad():
            leaves["q"].copy_(torch.randn_like(leaves["q"]))
        graph.replay()
        assert all(same_bits(a, b) for a, b in zip(captured, run())), value
    assert not same_bits(captured[0], before)


@every_kernel
def test_it_runs_on_the_current_stream(call: Call) -> None:
    tensors, options = call.tensors(), call.options(one_seed())
    upstream = torch.randn_like(tensors["v"])
    expected = value_and_gradients(fmm_attention, tensors, upstream, **options)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # work that ours must wait for
        late = {name: tensor * 1 for name, tensor in tensors.items()}
        actual = value_and_gradients(fmm_attention, late, upstream, **options)
    stream.synchronize()
    assert all(same_bits(actual[name], tensor) for name, tensor in expected.items())
