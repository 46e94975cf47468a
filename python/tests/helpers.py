# SPDX-License-Identifier: Apache-2.0
"""What the tests share: inputs, the named cases, truths to hold results against, and error measures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Options = dict[str, Any]

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

# Relative RMS error that is allowed against the double reference on the same rounded inputs: (output, gradients).
# Rounding a result to nearest costs 1.6e-3 in bf16 and 2.1e-4 in fp16, cutting it off would cost twice that.
ALLOWED_RMS = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (1e-5, 1e-5),
    torch.bfloat16: (3.3e-3, 6e-3),
    torch.float16: (3e-4, 4e-4),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One setting of the operator, used by every test that goes through all of them."""

    name: str
    options: Options
    near_weight: tuple[int, ...] | None = None  # shapes, e.g. (heads, 1); filled with random numbers
    far_weight: tuple[int, ...] | None = None
    shift: float = 0.0  # added to q and k: keeps the sums of signed feature maps away from 0

    def __str__(self) -> str:
        return self.name


HEADS, VALUE_DIM = 2, 5  # of the inputs that the weight shapes below fit

THREE_MAPS = ("elu", "elu_flip", "tanh1")
CASES = [
    Case("paper_two_sided", dict(bandwidth=5)),
    Case("paper_causal", dict(bandwidth=5, causal=True, feature_maps=THREE_MAPS)),
    Case("band_alone", dict(bandwidth=3, feature_maps=())),
    Case("band_alone_causal", dict(bandwidth=30, causal=True, feature_maps=())),
    Case("diagonal_alone", dict(bandwidth=1, feature_maps=())),
    Case("lopsided_window", dict(window=(6, 2))),
    Case("lopsided_window_causal", dict(window=(1, 4), causal=True)),
    Case("window_to_the_right", dict(window=(0, 3), feature_maps=("elu",))),
    Case("window_beyond_both_ends", dict(window=(500, 700), feature_maps=("elu",))),
    Case("far_field_alone", dict(feature_maps=THREE_MAPS)),
    Case("far_field_alone_causal", dict(feature_maps=THREE_MAPS, causal=True)),
    Case("unit_features", dict(bandwidth=2, unit_features=True, feature_maps=THREE_MAPS)),
    Case("unit_features_causal", dict(bandwidth=2, unit_features=True, causal=True, eps=1e-5)),
    Case("relu_and_softplus", dict(bandwidth=2, feature_maps=("relu", "softplus"), causal=True)),
    Case("unit_relu", dict(feature_maps=("relu",), unit_features=True)),
    Case("signed_maps", dict(bandwidth=2, feature_maps=("tanh", "identity")), shift=2.0),
    Case("signed_maps_causal", dict(feature_maps=("tanh", "identity"), causal=True), shift=2.0),
    Case("signed_maps_guarded", dict(feature_maps=("identity", "tanh"), eps=6.0, causal=True), shift=0.7),
    Case("unit_signed_maps", dict(feature_maps=("identity",), unit_features=True), shift=2.0),
    Case("inverse_square_root_of_length", dict(bandwidth=4, normaliser="inv_sqrt_length")),
    Case("no_normaliser", dict(bandwidth=4, normaliser="none", far_scale=0.1)),
    Case("no_normaliser_causal", dict(normaliser="none", far_scale=0.1, causal=True)),
    Case("no_normaliser_signed", dict(normaliser="none", far_scale=0.1, feature_maps=("identity", "tanh"))),
    Case("other_scales", dict(bandwidth=6, near_scale=-0.7, far_scale=0.25, causal=True)),
    Case("large_eps", dict(bandwidth=2, eps=3.0)),
    Case("repeated_map", dict(bandwidth=3, feature_maps=("elu", "elu"))),
    Case("eight_maps", dict(bandwidth=3, causal=True, feature_maps=("elu", "elu_flip") * 4)),
    Case("scalar_weights", dict(bandwidth=4), near_weight=(), far_weight=()),
    Case("weights_per_head", dict(bandwidth=4, causal=True), near_weight=(HEADS, 1), far_weight=(HEADS, 1)),
    Case("weights_per_map", dict(bandwidth=4), near_weight=(1,), far_weight=(2, 1, 1)),
    Case("weights_per_map_and_head", dict(bandwidth=4, causal=True), far_weight=(2, HEADS, 1)),
    Case("weights_per_channel", dict(bandwidth=4), near_weight=(VALUE_DIM,), far_weight=(VALUE_DIM,)),
    Case(
        "weights_per_head_and_channel",
        dict(bandwidth=4),
        near_weight=(HEADS, VALUE_DIM),
        far_weight=(2, HEADS, VALUE_DIM),
    ),
    Case(
        "weights_per_head_and_channel_causal",
        dict(bandwidth=4, causal=True, feature_maps=THREE_MAPS),
        near_weight=(HEADS, VALUE_DIM),
        far_weight=(3, HEADS, VALUE_DIM),
    ),
    Case("weighted_band_alone", dict(bandwidth=4, feature_maps=()), near_weight=(HEADS, VALUE_DIM)),
]


def device_type() -> str:
    """Where the tests' tensors are: "cpu" or "cuda"."""
    return torch.get_default_device().type


# --- inputs ---------------------------------------------------------------------------------------


def random_inputs(
    batch: int = 2,
    length: int = 21,
    heads: int = HEADS,
    head_dim: int = 4,
    value_dim: int = VALUE_DIM,
    dtype: torch.dtype = torch.float64,
    shift: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v as [B, N, H, D] from N(0, 1), rounded to dtype."""
    q, k = (torch.randn(batch, length, heads, head_dim, dtype=torch.float64) + shift for _ in range(2))
    v = torch.randn(batch, length, heads, value_dim, dtype=torch.float64)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def random_weights(case: Case, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    shapes = {"near_weight": case.near_weight, "far_weight": case.far_weight}
    return {name: torch.randn(shape, dtype=dtype) for name, shape in shapes.items() if shape is not None}


def as_leaves(*tensors: Tensor) -> list[Tensor]:
    """Copies that gradients flow to; strides are kept."""
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def value_and_gradients(
    function: Callable[..., Tensor], tensors: dict[str, Tensor], upstream: Tensor, **options: Any
) -> dict[str, Tensor]:
    """Calls function(**tensors, **options) on fresh leaves: "out", and a gradient for each tensor by its name."""
    leaves = dict(zip(tensors, as_leaves(*tensors.values())))
    out = function(**leaves, **options)
    gradients = torch.autograd.grad(out, list(leaves.values()), upstream.to(out.dtype), materialize_grads=True)
    return {"out": out.detach(), **dict(zip(leaves, gradients))}


# --- truths ---------------------------------------------------------------------------------------


def window_of(options: Options) -> tuple[int, int] | None:
    """The paper's bandwidth, spelled out once more: abs(i - j) < k."""
    if "window" in options:
        return options["window"]
    bandwidth = options.get("bandwidth") or 0
    return (bandwidth - 1, bandwidth - 1) if bandwidth else None


LOOP_MAPS: dict[str, Callable[[float], float]] = {
    "elu": lambda x: x + 1 if x > 0 else math.exp(x),
    "elu_flip": lambda x: 1 - x if x < 0 else math.exp(-x),
    "tanh1": lambda x: math.tanh(x) + 1,
    "tanh": math.tanh,
    "relu": lambda x: max(x, 0.0),
    "softplus": lambda x: math.log1p(math.exp(x)),
    "identity": lambda x: x,
}
SIGNED_MAPS = ("tanh", "identity")


def loop_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    token_mask: Tensor | None = None,
    near_weight: Tensor | None = None,
    far_weight: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """FMM attention read off its formula in plain Python numbers, one query at a time."""
    batch, length, heads, _ = q.shape
    value_dim = v.shape[-1]
    maps = options.get("feature_maps", ("elu", "elu_flip"))
    one = torch.ones((), dtype=torch.float64)
    near_weight = (one if near_weight is None else near_weight).expand(heads, value_dim).tolist()
    far_weight = (one if far_weight is None else far_weight).expand(len(maps), heads, value_dim).tolist()
    mask = torch.ones(batch, length, dtype=torch.bool) if token_mask is None else token_mask
    out = torch.zeros(batch, length, heads, value_dim, dtype=torch.float64)
    for b in range(batch):
        real = [j for j in range(length) if mask[b, j]]
        for h in range(heads):
            queries, keys, values = (t[b, :, h].tolist() for t in (q, k, v))
            for i in real:
                row = [0.0] * value_dim
                for j, share in _loop_near(queries, keys, i, real, options).items():
                    kept = _loop_dropout(b * heads + h, i, j, options)
                    for d in range(value_dim):
                        row[d] += near_weight[h][d] * kept * share * values[j][d]
                for index, name in enumerate(maps):
                    for j, share in _loop_far(queries, keys, i, real, name, options).items():
                        for d in range(value_dim):
                            row[d] += far_weight[index][h][d] * share * values[j][d]
                out[b, i, h] = torch.tensor(row, dtype=torch.float64)
    return out


def _dot(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b))


def _loop_near(queries: list, keys: list, i: int, real: list[int], options: Options) -> dict[int, float]:
    window = window_of(options)
    if window is None:
        return {}
    left, right = window
    band = [j for j in real if -left <= j - i <= right and not (options.get("causal") and j > i)]
    scale = options.get("near_scale") or 1 / math.sqrt(len(queries[i]))
    powers = {j: math.exp(scale * _dot(queries[i], keys[j])) for j in band}
    total = math.fsum(powers.values())
    return {j: power / total for j, power in powers.items()}


def _loop_dropout(pair: int, i: int, j: int, options: Options) -> float:
    """Entries (i, j) of the pair b * H + h that share i // 16, i % 8, j // 16 and j % 8 // 2 share a block."""
    probability = options.get("near_dropout", 0.0)
    if probability == 0.0:
        return 1.0
    counter = [j // 16 * 4 + j % 8 // 2, i // 16 * 8 + i % 8, pair, 0]
    word = philox(counter, int(options["dropout_seed"]))[i // 8 % 2 * 2 + j // 8 % 2]
    dropped = min(int(probability * 2**15 + 0.5), 2**15 - 1)
    return 0.0 if (word >> j % 2 * 16) % 2**15 < dropped else 2**15 / (2**15 - dropped)


def philox(counter: list[int], seed: int) -> list[int]:
    """Philox4x32-7 as its authors define it (Salmon et al., 2011)."""
    low_word = 2**32 - 1
    key = [seed & low_word, seed >> 32 & low_word]
    c0, c1, c2, c3 = counter
    for number in range(7):
        keys = [key[0] + number * 0x9E3779B9 & low_word, key[1] + number * 0xBB67AE85 & low_word]
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            second >> 32 ^ c1 ^ keys[0],
            second & low_word,
            first >> 32 ^ c3 ^ keys[1],
            first & low_word,
        )
    return [c0, c1, c2, c3]


def _loop_far(queries: list, keys: list, i: int, real: list[int], name: str, options: Options) -> dict[int, float]:
    def features(x: list[float]) -> list[float]:
        phi = [LOOP_MAPS[name](value) for value in x]
        if not options.get("unit_features"):
            return phi
        total = math.fsum(phi)
        return [value / total if total != 0 else 0.0 for value in phi]

    reach = [j for j in real if not (options.get("causal") and j > i)]
    products = {j: _dot(features(queries[i]), features(keys[j])) for j in reach}
    norm, eps = math.fsum(products.values()), options.get("eps", 1e-6)
    match options.get("normaliser", "row_sum"):
        case "none":
            norm = 1.0
        case "inv_sqrt_length":
            norm = math.sqrt(len(queries))
        case "row_sum" if name not in SIGNED_MAPS:
            norm += eps
        case "row_sum" if abs(norm) < eps:
            norm = math.copysign(eps, norm)
    return {j: options.get("far_scale", 1.0) * product / norm for j, product in products.items()}


DENSE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": lambda x: torch.nn.functional.elu(x) + 1,
    "elu_flip": lambda x: torch.nn.functional.elu(-x) + 1,
    "tanh1": lambda x: torch.tanh(x) + 1,
    "relu": torch.relu,
    "softplus": torch.nn.functional.softplus,
}


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    rows: list[int] | None = None,
    bandwidth: int,
    causal: bool = False,
    feature_maps: tuple[str, ...] = ("elu", "elu_flip"),
    eps: float = 1e-6,
) -> Tensor:
    """What one would write in torch, in the type of the inputs: only the options of the paper, for the given rows.

    In double and for a few rows it is an affordable truth at lengths where a whole matrix is not; in a 16-bit type it
    says how much error that type makes unavoidable.
    """
    length = q.shape[1]
    i = torch.arange(length)[:, None] if rows is None else torch.tensor(rows)[:, None]
    j = torch.arange(length)[None, :]
    reach = (j <= i) if causal else torch.ones(i.shape[0], length, dtype=torch.bool)
    band = reach & ((i - j).abs() < bandwidth)
    q, k, v = q[:, i[:, 0]].transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~band, -math.inf)
    out = scores.softmax(-1) @ v
    for name in feature_maps:
        weights = (DENSE_MAPS[name](q) @ DENSE_MAPS[name](k).mT).masked_fill(~reach, 0)
        out = out + weights @ v / (weights.sum(-1, keepdim=True) + eps)
    return out.transpose(1, 2)


# --- measures -------------------------------------------------------------------------------------


def relative_rms(actual: Tensor, expected: Tensor) -> float:
    """Error over size, both as root mean squares. Sizes below 0.1 count as 0.1: inputs are of size 1, and a gradient
    that cancels to almost nothing (one visible key, say) has no digits to compare."""
    if expected.numel() == 0:
        return 0.0
    actual, expected = actual.detach().double(), expected.detach().double()
    size = expected.square().mean().sqrt().clamp(min=0.1)
    return float((actual - expected).square().mean().sqrt() / size)


def assert_close(actual: Tensor, expected: Tensor, allowed: float, what: str = "out") -> None:
    """Within `allowed` relative RMS, and of the same shape."""
    assert actual.shape == expected.shape, f"{what}: {list(actual.shape)}, wanted {list(expected.shape)}"
    error = relative_rms(actual, expected)
    assert error <= allowed, f"{what}: relative RMS error {error:.2e}, allowed {allowed:.1e}"


def assert_all_close(
    actual: dict[str, Tensor], expected: dict[str, Tensor], dtype: torch.dtype, slack: float = 1.0
) -> None:
    """Output and gradients within what `dtype` is allowed."""
    for_out, for_gradients = ALLOWED_RMS[dtype]
    for name, tensor in expected.items():
        assert_close(actual[name], tensor, slack * (for_out if name == "out" else for_gradients), name)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal, and NaN only where the other has it too; the device does not matter."""
    a, b = a.cpu(), b.cpu()
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(12345.0), b.nan_to_num(12345.0))
