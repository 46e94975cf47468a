# SPDX-License-Identifier: Apache-2.0
"""The copy task's model in plain torch, as a user would write it today: the peer of `fmmformer train`.

Same geometry, data, loss, optimizer and schedule as configs/copy; attention is torch's softmax or the composite of
compiled_composite.py (band by blocks, linear attention by chunks). Where it differs, it does less work: one blend weight
a head instead of one a channel, features that are not normalised, no dropout inside the band.

    .venv/bin/python bench/train_copy_torch.py --attention fmm3_band30 --length 512 --batch 8 --steps 12 [--compile]

Prints one JSON line with the median step time and tokens/s, after two steps of warm-up.
"""

import argparse
import json
import math
import statistics
import time

import torch
import torch.nn.functional as F
from compiled_composite import composite
from torch import nn

MAPS = ("elu", "elu_flip", "tanh1")


def copy_batch(batch: int, length: int, generator: torch.Generator):
    """Symbols, a separator, the same symbols; targets are the next tokens, weights what counts."""
    tokens = torch.zeros(batch, length, dtype=torch.long)
    weights = torch.zeros(batch, length)
    for row in range(batch):
        n = int(torch.randint(length // 4, (length - 1) // 2, (), generator=generator))
        symbols = torch.randint(1, 11, (n,), generator=generator)
        tokens[row, :n] = symbols
        tokens[row, n + 1 : 2 * n + 1] = symbols
        weights[row, n - 1 : 2 * n] = 1
    return tokens, F.pad(tokens[:, 1:], (0, 1)), weights


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, kind: str) -> None:
        super().__init__()
        self.heads = heads
        self.kind = kind
        self.project = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)
        if kind != "softmax":
            maps = int(kind[3])
            self.bandwidth = int(kind.split("band")[1])
            self.maps = MAPS[:maps]
            self.near_weight = nn.Parameter(torch.zeros(heads, 1))
            self.far_weight = nn.Parameter(torch.full((maps, heads, 1), 1 / maps))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, dim = x.shape
        q, k, v = self.project(x).view(batch, length, 3, self.heads, -1).unbind(2)
        if self.kind == "softmax":
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            dropout = 0.1 if self.training else 0.0
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout).transpose(1, 2)
        else:
            out = composite(q, k, v, self.near_weight, self.far_weight, self.bandwidth, True, self.maps)
        return self.output(out.reshape(batch, length, dim))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, ffn: int, kind: str) -> None:
        super().__init__()
        self.attention = Attention(dim, heads, kind)
        self.first, self.second = nn.Linear(dim, ffn), nn.Linear(ffn, dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + F.dropout(self.attention(x), 0.1, self.training))
        hidden = F.dropout(F.relu(self.first(x)), 0.1, self.training)
        return self.norm2(x + F.dropout(self.second(hidden), 0.1, self.training))


class Model(nn.Module):
    def __init__(self, length: int, kind: str, dim: int = 256, heads: int = 8, layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, dim // 2)
        place = torch.arange(length).unsqueeze(1)
        rate = torch.exp(torch.arange(0, dim // 2, 2) * (-math.log(10000.0) / (dim // 2)))
        code = torch.stack((torch.sin(place * rate), torch.cos(place * rate)), -1).flatten(1)
        self.register_buffer("code", code)
        self.blocks = nn.Sequential(*(Block(dim, heads, 4 * dim, kind) for _ in range(layers)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = torch.cat((self.embedding(tokens), self.code.expand(tokens.shape[0], -1, -1)), -1)
        return self.head(self.norm(self.blocks(x)))


def train_step(model, optimizer, batch) -> float:
    tokens, targets, weights = batch
    losses = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="none")
    loss = (losses * weights.flatten()).sum() / weights.sum()
    optimizer.zero_grad()
    loss.backward()
    parameters = [p for p in model.parameters() if p.grad is not None]
    norms = torch._foreach_norm([p.grad for p in parameters])
    for parameter, norm in zip(parameters, norms):
        parameter.grad.mul_((1 / (norm + 1e-6)).clamp(max=1))
    optimizer.step()
    return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", default="fmm3_band30", help="softmax, or fmmR_bandK")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="the whole model under torch.compile")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = Model(options.length, options.attention)
    run = torch.compile(model) if options.compile else model
    optimizer = torch.optim.RAdam(model.parameters(), lr=1e-3, weight_decay=0.01, decoupled_weight_decay=True)
    generator = torch.Generator().manual_seed(1)
    seconds = []
    for _ in range(options.steps + 2):
        begin = time.perf_counter()
        loss = train_step(run, optimizer, copy_batch(options.batch, options.length, generator))
        seconds.append(time.perf_counter() - begin)
    step = statistics.median(seconds[2:])
    tokens = options.batch * options.length
    print(
        json.dumps(
            {
                "attention": options.attention,
                "length": options.length,
                "batch": options.batch,
                "compiled": options.compile,
                "parameters": sum(p.numel() for p in model.parameters()),
                "step_milliseconds": 1e3 * step,
                "tokens_per_second": tokens / step,
                "loss": loss,
            }
        )
    )


if __name__ == "__main__":
    main()
