# SPDX-License-Identifier: Apache-2.0
"""Times the operator on a GPU at the paper's shapes and at long ones, beside torch's softmax attention.

    .venv/bin/python bench/attention_cuda.py [--dtype bf16 fp32] [--json F]

Forward and backward, as a replayed CUDA graph (what the GPU needs) and eagerly through autograd (what a user's script
meets); medians. Peak memory is what the step allocates beyond its inputs. The floor is every input read and every
result written once, at the copy bandwidth measured in the same run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from collections.abc import Callable

import torch

from fmmformer import fmm_attention

MAPS = ("elu", "elu_flip", "tanh1")
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    batch: int
    length: int
    heads: int
    dim: int
    maps: int
    bandwidth: int
    causal: bool = True
    padded: bool = False  # the last quarter of every sequence is masked
    dropout: float = 0.0
    per_channel: bool = False  # blend weights


SHAPES = [
    Shape("long 3+30", 1, 65536, 8, 64, 3, 30),
    Shape("long 2+20", 1, 65536, 8, 64, 2, 20),
    Shape("long 1+5", 1, 65536, 8, 64, 1, 5),
    Shape("WikiText", 96, 256, 8, 16, 2, 20),
    Shape("ListOps", 32, 2048, 2, 32, 2, 5, causal=False, padded=True),
    Shape("Text", 32, 4096, 2, 32, 2, 5, causal=False, padded=True),
    Shape("Image", 256, 1024, 2, 32, 2, 5, causal=False, padded=True),
    Shape("copy", 64, 512, 8, 32, 3, 30, dropout=0.1, per_channel=True),
    Shape("medium", 8, 1024, 8, 64, 2, 20),
    Shape("wide", 1, 8192, 96, 128, 2, 20),
]
LONGEST_SOFTMAX = 8192


def median_ms(run: Callable[[], None], repeats: int = 20) -> float:
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def graph_ms(run: Callable[[], None]) -> float:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    in_a_row = 4
    return median_ms(lambda: [graph.replay() for _ in range(in_a_row)]) / in_a_row


def eager_ms(run: Callable[[], None]) -> float:
    for _ in range(5):
        run()
    return median_ms(run)


def peak_mib(run: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def copy_bandwidth() -> float:
    """Bytes read and written a second."""
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / (median_ms(lambda: target.copy_(source)) * 1e-3)


def inputs_of(shape: Shape, dtype: torch.dtype) -> tuple[list[torch.Tensor], dict, torch.Tensor]:
    size = (shape.batch, shape.length, shape.heads, shape.dim)
    q, k, v = (torch.randn(size, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
    channels = shape.dim if shape.per_channel else 1
    near = torch.randn(shape.heads, channels, device="cuda", requires_grad=True)
    far = torch.randn(shape.maps, shape.heads, channels, device="cuda", requires_grad=True)
    options = dict(bandwidth=shape.bandwidth, causal=shape.causal, feature_maps=MAPS[: shape.maps])
    if shape.padded:
        mask = torch.ones(shape.batch, shape.length, dtype=torch.bool, device="cuda")
        mask[:, shape.length * 3 // 4 :] = False
        options["token_mask"] = mask
    if shape.dropout:
        options.update(near_dropout=shape.dropout, dropout_seed=torch.tensor([5], device="cuda"))
    return [q, k, v, near, far], options, torch.randn(size, device="cuda", dtype=dtype)


def softmax_ms(shape: Shape, tensors: list[torch.Tensor], upstream: torch.Tensor) -> float:
    q, k, v = (x.detach().transpose(1, 2).contiguous().requires_grad_() for x in tensors[:3])
    upstream = upstream.transpose(1, 2).contiguous()

    def run() -> None:
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=shape.causal)
        torch.autograd.grad(out, [q, k, v], upstream)

    return graph_ms(run)


def measure(shape: Shape, dtype: torch.dtype, bandwidth: float) -> dict:
    tensors, options, upstream = inputs_of(shape, dtype)
    q, k, v, near, far = tensors

    def forward() -> None:
        with torch.no_grad():
            fmm_attention(q, k, v, near_weight=near, far_weight=far, **options)

    def both() -> None:
        out = fmm_attention(q, k, v, near_weight=near, far_weight=far, **options)
        torch.autograd.grad(out, tensors, upstream)

    row = {
        "forward_ms": graph_ms(forward),
        "graph_ms": graph_ms(both),
        "eager_ms": eager_ms(both),
        "peak_mib": peak_mib(both),
        "floor_ms": 11 * q.nbytes / bandwidth * 1e3,  # q, k, v twice, out, grad_out, dq, dk, dv
    }
    if dtype != torch.float32 and shape.length <= LONGEST_SOFTMAX:
        row["softmax_ms"] = softmax_ms(shape, tensors, upstream)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="*", choices=TYPES, default=["bf16", "fp32"])
    parser.add_argument("--json", help="write all numbers to this file")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    bandwidth = copy_bandwidth()
    record = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "copy_bytes_per_second": bandwidth,
        "rows": [],
    }
    print(f"{record['device']}, torch {torch.__version__}, copy {bandwidth / 1e12:.2f} TB/s; forward + backward, ms")
    print(f"{'shape':24s} {'type':5s} {'graph':>8s} {'forward':>8s} {'eager':>8s} {'softmax':>8s} {'floor':>7s} {'MiB':>6s}")
    for name in arguments.dtype:
        for shape in SHAPES:
            row = measure(shape, TYPES[name], bandwidth)
            record["rows"].append({"dtype": name, **dataclasses.asdict(shape), **row})
            softmax = f"{row['softmax_ms']:8.3f}" if "softmax_ms" in row else f"{'-':>8s}"
            print(
                f"{shape.name:24s} {name:5s} {row['graph_ms']:8.3f} {row['forward_ms']:8.3f} {row['eager_ms']:8.3f} "
                f"{softmax} {row['floor_ms']:7.3f} {row['peak_mib']:6.0f}",
                flush=True,
            )
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)


if __name__ == "__main__":
    main()
