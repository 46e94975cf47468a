#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a text of made-up words whose frequencies fall as rank^-1.2: about one token in twenty is beyond word 20,000.

For timing the language models where WikiText-103 is not at hand: what a training step costs depends on how many targets
lie in each cluster of the adaptive softmax, and on nothing else of the text.

    scripts/zipf_text.py 10000000 > train.txt && head -n 12000 train.txt > valid.txt
    build/fmmformer data import wikitext --train train.txt --valid valid.txt --test valid.txt --out data/zipf
    build/fmmformer train wikitext103/fmm2_band20 --device cuda --set task.wikitext.data=data/zipf \\
        --set task.wikitext.vocabulary=0 --set model.vocabulary=267735 --set train.steps=400
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys

WORDS = 267_734  # WikiText-103's, but for <eos>
LINE = 20  # words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", type=int)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    sums = list(itertools.accumulate(rank**-1.2 for rank in range(1, WORDS + 1)))
    words = [f"w{rank}" for rank in range(1, WORDS + 1)]
    for _ in range(options.tokens // LINE):
        sys.stdout.write(" ".join(dice.choices(words, cum_weights=sums, k=LINE)) + "\n")


if __name__ == "__main__":
    main()
