# SPDX-License-Identifier: Apache-2.0
"""Finds and loads the C++ operator library, which registers torch.ops.fmmformer.*"""

from __future__ import annotations

import os
from pathlib import Path

import torch

LIBRARY_NAME = "libfmmformer_ops.so"
ENVIRONMENT_VARIABLE = "FMMFORMER_LIBRARY"


def places() -> list[Path]:
    """Where the library is looked for, in order.

    FMMFORMER_LIBRARY, when set, is the only place: silently taking another library than the one named would be worse
    than an error. Otherwise the package itself (an installed wheel), then `build` beside it (a source tree).
    """
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if named:
        return [Path(named)]
    package = Path(__file__).resolve().parent
    return [package / LIBRARY_NAME, package.parents[1] / "build" / LIBRARY_NAME]


def find() -> Path:
    """The first of `places()` that exists; ImportError, saying what was looked at and what to do, if none does."""
    looked_at = places()
    for place in looked_at:
        if place.is_file():
            return place
    listed = "\n".join(f"  {place}" for place in looked_at)
    raise ImportError(
        f"fmmformer: the operator library {LIBRARY_NAME} was not found. Looked at:\n{listed}\n"
        f"Build it with `make` in the source tree, install the wheel with `pip install .`, or set "
        f"{ENVIRONMENT_VARIABLE} to the library's full path."
    )


def load() -> Path:
    """Loads the library into this process and returns its path."""
    library = find()
    try:
        torch.ops.load_library(library)
    except OSError as error:
        raise ImportError(
            f"fmmformer: {library} was found but does not load beside torch {torch.__version__}: {error}\n"
            f"It was most likely built against another torch: build it again with `make` in the source tree or "
            f"`pip install .` in this environment."
        ) from error
    return library
