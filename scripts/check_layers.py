#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every folder of src/ and include/fmmformer/ includes only what it may.

A folder may include its own files, those of the folders it needs, and what those need in turn.
"""

import pathlib
import re
import sys

NEEDS = {
    "core": [],
    "attention": ["core"],
    "nn": ["attention"],
    "models": ["nn"],
    "tasks": ["core"],
    "train": ["models", "tasks"],
    "analysis": ["models"],
    "bench": ["attention", "models"],
    "report": ["core"],
    "cli": ["train", "analysis", "bench", "report"],
}
ROOT = pathlib.Path(__file__).resolve().parent.parent
PUBLIC = ROOT / "include"
TREES = [ROOT / "src", PUBLIC / "fmmformer"]
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)


def allowed(folder):
    return {folder}.union(*(allowed(needed) for needed in NEEDS[folder]))


def folder_of(path):
    """The folder of a file in one of our trees; None for any other file."""
    for tree in TREES:
        if path.is_relative_to(tree) and len(path.relative_to(tree).parts) > 1:
            return path.relative_to(tree).parts[0]
    return None


def resolve(name, source):
    """The project's file that an #include names; None for a header of somebody else."""
    for base in (source.parent, ROOT / "src", PUBLIC):
        if (base / name).is_file():
            return (base / name).resolve()
    return None


def problems_of(source):
    folder = folder_of(source)
    where = source.relative_to(ROOT)
    if folder not in NEEDS:
        return [f"{where}: folder '{folder}' is in no layer; add it to NEEDS in {__file__}"]
    found = []
    for name in INCLUDE.findall(source.read_text(encoding="utf-8")):
        header = resolve(name, source)
        if header is None:
            continue
        if folder_of(header) not in allowed(folder):
            found.append(f"{where}: includes {name}; {folder}/ may include only "
                         f"{', '.join(sorted(allowed(folder)))}")
        if source.is_relative_to(PUBLIC) and not header.is_relative_to(PUBLIC):
            found.append(f"{where}: includes {name}; a public header may include only public ones")
    return found


def main():
    sources = [path for tree in TREES for path in sorted(tree.rglob("*"))
               if path.suffix in {".h", ".inc", ".cpp", ".cuh", ".cu"}]
    problems = [problem for source in sources for problem in problems_of(source)]
    print("\n".join(problems) or f"layers: ok ({len(sources)} files)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
