# SPDX-License-Identifier: Apache-2.0
"""Times the torch composite under torch.compile beside fmm_attention, interleaved, in one process.

The composite is what a user would write today: the band by blocks, linear attention by chunks, a blend. It is the
same as the program's eager peer (src/bench/peers.cpp). `fmmformer bench attention --compiled` runs this file; by hand:

    .venv/bin/python bench/compiled_composite.py '{"threads": 2, "seconds": 1.5, "forward_only": false, "cases": [
        {"name": "a", "shape": [1, 2048, 8, 64], "bandwidth": 30, "causal": true,
         "feature_maps": ["elu", "elu_flip", "tanh1"], "dtype": "fp32"}]}'

Prints {"a": {"ours_ms": [...], "compiled_ms": [...], "eager_ms": [...]}}: every single run, in milliseconds.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

FEATURE_MAPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "elu": lambda x: F.elu(x) + 1,
    "elu_flip": lambda x: F.elu(-x) + 1,
    "tanh1": lambda x: torch.tanh(x) + 1,
    "relu": F.relu,
    "softplus": F.softplus,
}
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FAR_CHUNK = 64  # 128 and 32 are slower, eager and compiled
EPS = 1e-6


def near_field(q, k, v, bandwidth: int, causal: bool) -> torch.Tensor:
    """Query blocks against their own and the neighbouring key blocks; q, k, v: [groups, length, dim]."""
    groups, length, dim = q.shape
    size = max(16, -(-(bandwidth - 1) // 16) * 16)
    blocks = -(-length // size)
    pad = blocks * size - length
    before, after = (0, 0) if bandwidth == 1 else (1, 0 if causal else 1)

    def neighbours(x: torch.Tensor) -> torch.Tensor:
        cut = F.pad(x, (0, 0, before * size, pad + after * size))
        cut = cut.reshape(groups, blocks + before + after, size, x.shape[-1])
        parts = [cut[:, shift : shift + blocks] for shift in range(before + after + 1)]
        return torch.cat(parts, 2).flatten(0, 1)

    query = torch.arange(blocks * size).view(blocks, size, 1)
    first = (torch.arange(blocks) - before).view(blocks, 1, 1) * size
    key = first + torch.arange((1 + before + after) * size)
    offset = key - query
    in_band = (offset > -bandwidth) & (offset < (1 if causal else bandwidth)) & (key < length)
    seen = (key >= 0) & (in_band | (query >= length))  # rows of padding must see something, or they are NaN
    queries = F.pad(q, (0, 0, 0, pad)).reshape(groups * blocks, size, dim)
    scores = torch.bmm(queries, neighbours(k).transpose(1, 2)) * dim**-0.5
    scores = scores.view(groups, blocks, size, -1).masked_fill(~seen, -math.inf).flatten(0, 1)
    out = torch.bmm(scores.softmax(-1), neighbours(v))
    return out.view(groups, blocks * size, -1)[:, :length]


def far_fields_causal(q, k, v, far_weight, heads: int, maps: Sequence[str]) -> torch.Tensor:
    """Inside a chunk by the sum of the maps' weighted matrices, before it by their stacked states."""
    groups, length, _ = q.shape
    chunk = min(FAR_CHUNK, length)
    chunks = -(-length // chunk)

    def cut(x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (0, 0, 0, chunks * chunk - length)).reshape(groups * chunks, chunk, -1)

    def before_chunk(sums: torch.Tensor) -> torch.Tensor:
        by_chunk = sums.view(groups, chunks, sums.shape[1], sums.shape[2])
        return (by_chunk.cumsum(1) - by_chunk).view(sums.shape)

    values = cut(v)
    inside, queries, keys = 0, [], []
    for index, name in enumerate(maps):
        phi = FEATURE_MAPS[name]
        query, key = cut(phi(q)), cut(phi(k))
        similarity = torch.bmm(query, key.transpose(1, 2)).tril()
        before = (query * before_chunk(key.sum(1).unsqueeze(1))).sum(-1, keepdim=True)
        weight = far_weight[index].view(1, heads, 1, 1).expand(groups // heads, heads, chunks, 1)
        scale = weight.reshape(-1, 1, 1) / (similarity.sum(-1, keepdim=True) + before + EPS)
        inside = inside + similarity * scale
        queries.append(query * scale)
        keys.append(key)
    states = before_chunk(torch.bmm(torch.cat(keys, -1).transpose(1, 2), values))
    out = torch.bmm(inside, values) + torch.bmm(torch.cat(queries, -1), states)
    return out.view(groups, chunks * chunk, -1)[:, :length]


def far_field_two_sided(q, k, v) -> torch.Tensor:
    """One state for all queries."""
    row_sums = torch.bmm(q, k.sum(1).unsqueeze(-1))
    return torch.bmm(q, torch.bmm(k.transpose(1, 2), v)) / (row_sums + EPS)


def composite(q, k, v, near_weight, far_weight, bandwidth: int, causal: bool, maps: Sequence[str]) -> torch.Tensor:
    """[batch, length, heads, dim] in and out; no copies when the inputs lie head first."""
    batch, length, heads, _ = q.shape
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    out = near_field(q, k, v, bandwidth, causal).view(batch, heads, length, -1) * near_weight.unsqueeze(-2)
    if causal:
        out = out + far_fields_causal(q, k, v, far_weight, heads, maps).view(batch, heads, length, -1)
        return out.transpose(1, 2)
    for index, name in enumerate(maps):
        phi = FEATURE_MAPS[name]
        far = far_field_two_sided(phi(q), phi(k), v).view(batch, heads, length, -1)
        out = out + far * far_weight[index].unsqueeze(-2)
    return out.transpose(1, 2)


def make_work(run, leaves, upstream, forward_only: bool) -> Callable[[], None]:
    def forward() -> None:
        with torch.no_grad():
            run(*leaves)

    def forward_backward() -> None:
        torch.autograd.grad(run(*leaves), leaves, upstream)

    return forward if forward_only else forward_backward


RUNS_PER_TURN = 3


def time_in_turns(works: dict[str, Callable[[], None]], seconds: float) -> dict[str, list[float]]:
    """In turns, so that noise hits all alike, each beginning with a run that does not count: caches and freed memory
    are then a work's own. Two runs of warm-up first, which also compile."""
    for work in works.values():
        work()
        work()
    runs: dict[str, list[float]] = {name: [] for name in works}
    start = time.perf_counter()
    while time.perf_counter() - start < seconds * len(works) or len(next(iter(runs.values()))) < 5:
        for name, work in works.items():
            work()
            for _ in range(RUNS_PER_TURN):
                begin = time.perf_counter()
                work()
                runs[name].append((time.perf_counter() - begin) * 1e3)
    return runs


def measure(case: dict, request: dict) -> dict[str, list[float]]:
    from fmmformer import fmm_attention

    batch, length, heads, dim = case["shape"]
    dtype, maps = DTYPES[case["dtype"]], tuple(case["feature_maps"])
    options = {"bandwidth": case["bandwidth"], "causal": case["causal"]}
    torch.manual_seed(1)
    values = [torch.randn(batch, length, heads, dim).to(dtype) for _ in range(4)]
    upstream = values.pop()
    weights = [torch.full((heads, 1), 0.5), torch.full((len(maps), heads, 1), 0.5)]

    def leaves(laid_out) -> list[torch.Tensor]:
        return [x.detach().clone().requires_grad_() if x.dim() < 4 else laid_out(x).requires_grad_()
                for x in values + weights]

    def ours(q, k, v, near_weight, far_weight):
        return fmm_attention(q, k, v, feature_maps=maps, near_weight=near_weight, far_weight=far_weight, **options)

    def peer(q, k, v, near_weight, far_weight):
        return composite(q, k, v, near_weight.to(dtype), far_weight.to(dtype), maps=maps, **options)

    head_first = leaves(lambda x: x.transpose(1, 2).contiguous().transpose(1, 2))
    torch._dynamo.reset()
    compiled = torch.compile(peer, fullgraph=True, dynamic=False)
    forward_only = request["forward_only"]
    works = {"ours_ms": make_work(ours, leaves(torch.clone), upstream, forward_only),
             "compiled_ms": make_work(compiled, head_first, upstream, forward_only),
             "eager_ms": make_work(peer, head_first, upstream, forward_only)}
    difference = (ours(*leaves(torch.clone)) - peer(*head_first)).abs().max().item()
    if not difference < 0.1:  # the peer and the operator must be computing the same thing
        raise SystemExit(f"compiled_composite: {case['name']}: differs from fmm_attention by {difference}")
    return time_in_turns(works, request["seconds"])


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        raise SystemExit(__doc__)
    request = json.loads(sys.argv[1])
    torch.set_num_threads(request["threads"])
    results = {}
    for case in request["cases"]:
        print(f"compiled composite: {case['name']}", file=sys.stderr)
        results[case["name"]] = measure(case, request)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
