#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""AdamW under OneCycle, as the authors' code runs it, in torch.optim and in ours: the same rates, the same beta1 and the
same weights after every step. Usage: one_cycle_in_torch.py ONE_CYCLE_WRITER"""

import subprocess
import sys

import torch

STEPS, WARMUP, PEAK = 200, 40, 1e-2  # as one_cycle_writer.cpp has them


def torch_steps():
    weights = torch.nn.Parameter(torch.arange(1, 3, dtype=torch.float64))
    optimizer = torch.optim.AdamW([weights], lr=PEAK, betas=(0.9, 0.999), eps=1e-6, weight_decay=0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=PEAK, pct_start=WARMUP / STEPS, anneal_strategy="linear", total_steps=STEPS)
    place = torch.arange(0, 2, dtype=torch.float64)
    for step in range(STEPS):
        weights.grad = weights.detach() * (place + 1) + (place + step).sin()
        group = optimizer.param_groups[0]
        used = [group["lr"], group["betas"][0]]
        optimizer.step()
        yield used + weights.tolist()
        if step + 1 < STEPS:
            schedule.step()


def main():
    printed = subprocess.run([sys.argv[1]], check=True, capture_output=True, text=True).stdout.splitlines()
    ours = [[float(number) for number in line.split()] for line in printed]
    theirs = list(torch_steps())
    assert len(ours) == len(theirs) == STEPS, f"{len(ours)} steps, not {STEPS}"
    for step, (our, their) in enumerate(zip(ours, theirs)):
        for name, a, b in zip(("rate", "beta1", "weight 0", "weight 1"), our, their):
            assert abs(a - b) <= 1e-12 * max(abs(b), 1e-3), f"step {step}: {name} is {a}, torch has {b}"
    print(f"{STEPS} steps agree")


if __name__ == "__main__":
    main()
