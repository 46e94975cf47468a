# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import fmmformer  # noqa: F401  loads the operators


def pytest_report_header() -> str:
    return f"fmmformer: CPU kernels for {torch.ops.fmmformer._active_instruction_set()}, torch {torch.__version__}"


@pytest.fixture(autouse=True)
def same_random_numbers_in_every_run() -> None:
    torch.manual_seed(20)


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """torch.set_num_threads, undone after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Every tensor that is allocated without a value holds NaN (or the largest integer)."""
    fill_before = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = fill_before
