#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A hash of the code that decides what runs on a GPU: the CUDA folders of the operators, and every header of ours that they
include, directly or not. A result measured on a GPU carries it, and is stale once it changes. Comments and the places of
line breaks are no code: who mends one need not measure again.

    scripts/kernel_hash.py                 prints the hash
    scripts/kernel_hash.py RESULT.json..   says of each result whether it is of these kernels
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
import sys

from check_layers import INCLUDE, ROOT, resolve

KERNELS = [ROOT / "src" / "attention" / operator / "cuda" for operator in ("fmm", "fast_weight")]
SOURCES = {".cu", ".cuh", ".cpp", ".h", ".inc"}
COMMENT_OR_LITERAL = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL)


def kernel_sources() -> list[pathlib.Path]:
    waiting = [path for folder in KERNELS for path in folder.rglob("*") if path.suffix in SOURCES]
    found: set[pathlib.Path] = set()
    while waiting:
        path = waiting.pop().resolve()
        if path in found:
            continue
        found.add(path)
        headers = (resolve(name, path) for name in INCLUDE.findall(path.read_text(encoding="utf-8")))
        waiting.extend(header for header in headers if header is not None)
    return sorted(found)


def code_of(text: str) -> str:
    """Without comments, and with one space for every run of blanks and line breaks."""
    bare = COMMENT_OR_LITERAL.sub(lambda match: " " if match[0].startswith("/") else match[0], text)
    return " ".join(bare.split())


def kernel_hash() -> str:
    whole = hashlib.sha256()
    for path in kernel_sources():
        whole.update(f"{path.relative_to(ROOT)}\n{code_of(path.read_text(encoding='utf-8'))}\n".encode())
    return whole.hexdigest()


def why_stale(result: pathlib.Path) -> str:
    """What is out of date about a result; "" when it is of these kernels."""
    record = json.loads(result.read_text(encoding="utf-8"))
    measured = record.get("kernel_hash")
    now = kernel_hash()
    if measured == now:
        return ""
    origin = f"{record.get('created', 'an unknown date')}, commit {record.get('commit', 'unknown')}"
    of = f"kernel sources {measured[:12]}" if measured else "kernels that it does not name"
    return (f"{result.name} was measured with {of} ({origin}), these are {now[:12]}: "
            "run scripts/gpu_check.sh on such a GPU and commit its result")


def main() -> None:
    for name in sys.argv[1:]:
        print(why_stale(pathlib.Path(name)) or f"{name} is of these kernels")
    if len(sys.argv) == 1:
        print(kernel_hash())


if __name__ == "__main__":
    main()
