# SPDX-License-Identifier: Apache-2.0
"""Times what Python packages offer on a GPU today, each where it is installed: FlexAttention, flash-attn and
flash-linear-attention, and the two latter joined to FMM attention. `fmmformer bench attention --device cuda
--python-peers` runs this file, and `bench fast-weight` with "operator": "fast_weight_attention"; by hand:

    python3 bench/gpu_peers.py '{"device": "cuda:0", "seconds": 0.1, "cases": [
        {"name": "a", "shape": [8, 1024, 8, 64], "bandwidth": 20, "causal": true,
         "feature_maps": ["elu", "elu_flip"], "dtype": "bf16"}]}'

Prints {"a bf16": {"flex_band": {"graph_ms": [...], "eager_ms": [...], "peak_bytes": n} or {"not_run": "why"}, ...}}:
forward and backward, every single duration, as a replayed CUDA graph and eagerly through autograd. No peer is given
the case's mask or dropout, which none of them knows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
from compiled_composite import DTYPES, FEATURE_MAPS

Attention = Callable[..., torch.Tensor]  # of q, k, v: [batch, length, heads, dim], and beta: [batch, length, heads]
LONGEST = 65536
REPLAYS_IN_A_ROW = 8  # the host's first launch, during which the GPU waits, is then a small share


class NotHere(Exception):
    """Why a peer does not run a case."""


def band_of(case: dict) -> tuple[int, int]:
    left = case["bandwidth"] - 1
    return left, 0 if case["causal"] else left


def flex_band(case: dict) -> Attention:
    """The band alone, by FlexAttention, compiled."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    left, right = band_of(case)
    length = case["shape"][1]

    def in_band(batch, head, query, key):
        return (query - key <= left) & (key - query <= right)

    mask = torch.compile(create_block_mask)(in_band, None, None, length, length, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)

    def run(q, k, v):
        return compiled(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), block_mask=mask).transpose(1, 2)

    return run


def flash_band(case: dict) -> Attention:
    """The band alone, by flash-attn's window."""
    try:
        from flash_attn import flash_attn_func
    except ImportError as error:
        raise NotHere("flash-attn is not installed") from error
    if case["dtype"] == "fp32":
        raise NotHere("flash-attn has no fp32")
    return lambda q, k, v: flash_attn_func(q, k, v, causal=case["causal"], window_size=band_of(case))


def linear_field(case: dict, feature_map: str) -> Attention:
    """One causal far field, by flash-linear-attention's chunks."""
    try:
        from fla.ops.linear_attn import chunk_linear_attn
    except ImportError as error:
        raise NotHere("flash-linear-attention (fla) is not installed") from error
    if not case["causal"]:
        raise NotHere("fla is causal")
    phi = FEATURE_MAPS[feature_map]
    return lambda q, k, v: chunk_linear_attn(phi(q), phi(k), v, scale=1.0, normalize=True)[0]


def fla_linear(case: dict) -> Attention:
    return linear_field(case, case["feature_maps"][0])


def flash_fla_composite(case: dict) -> Attention:
    """FMM attention as a user would join it: the band by flash-attn, each far field by fla, a blend in torch."""
    near = flash_band(case)
    far = [linear_field(case, name) for name in case["feature_maps"]]

    def run(q, k, v):
        out = 0.5 * near(q, k, v)
        for field in far:
            out = out + 0.5 * field(q, k, v)
        return out

    return run


def fla_delta_rule(case: dict) -> Attention:
    """The delta rule alone, by flash-linear-attention's chunks: features and normaliser are left to the user."""
    try:
        from fla.ops.delta_rule import chunk_delta_rule
    except ImportError as error:
        raise NotHere("flash-linear-attention (fla) is not installed") from error
    return lambda q, k, v, beta: chunk_delta_rule(q, torch.nn.functional.normalize(k, dim=-1), v, beta, scale=1.0)[0]


PEERS = {
    "fmm_attention": {"flex_band": flex_band, "flash_band": flash_band, "fla_linear": fla_linear,
                      "flash_fla_composite": flash_fla_composite},
    "fast_weight_attention": {"fla_delta_rule": fla_delta_rule},
}


def durations(run: Callable[[], None], seconds: float, in_a_row: int = 1) -> list[float]:
    """In milliseconds a run, by events, until `seconds` are spent and ten are there."""
    found: list[float] = []
    while len(found) < 10 or sum(found) * in_a_row < 1e3 * seconds:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(in_a_row):
            run()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / in_a_row)
        if len(found) == 100:
            break
    return found


def recorded(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def peak_bytes(run: Callable[[], None]) -> int:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def measure(attention: Attention, case: dict, gated: bool, seconds: float) -> dict:
    size, dtype = tuple(case["shape"]), DTYPES[case["dtype"]]
    leaves = [torch.randn(size, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)]
    if gated:
        leaves.append(torch.rand(size[:3], device="cuda", dtype=dtype, requires_grad=True))
    upstream = torch.randn(size, device="cuda", dtype=dtype)

    def both() -> None:
        torch.autograd.grad(attention(*leaves), leaves, upstream)

    both()  # compiles
    graph = recorded(both)
    return {"graph_ms": durations(graph.replay, seconds, REPLAYS_IN_A_ROW),
            "eager_ms": durations(both, seconds), "peak_bytes": peak_bytes(both)}


def measure_or_say_why(operator: str, name: str, case: dict, seconds: float) -> dict:
    if case["shape"][1] > LONGEST:
        return {"not_run": f"not asked beyond length {LONGEST}"}
    torch._dynamo.reset()
    try:
        return measure(PEERS[operator][name](case), case, operator == "fast_weight_attention", seconds)
    except NotHere as reason:
        return {"not_run": str(reason)}
    except Exception as error:  # noqa: BLE001  a peer that fails is a finding about the peer, not an end
        return {"not_run": f"failed: {type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"}


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        raise SystemExit(__doc__)
    request = json.loads(sys.argv[1])
    torch.manual_seed(0)
    results, operator = {}, request.get("operator", "fmm_attention")
    with torch.cuda.device(request["device"]):
        for case in request["cases"]:
            print(f"peers in Python: {case['name']} {case['dtype']}", file=sys.stderr)
            results[f"{case['name']} {case['dtype']}"] = {
                name: measure_or_say_why(operator, name, case, request["seconds"]) for name in PEERS[operator]}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
