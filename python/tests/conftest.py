# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import fmmformer  # noqa: F401  loads the operators


@pytest.fixture(autouse=True, scope="session")
def _compiled_anew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What torch.compile keeps between programs calls the operators as an earlier version of the library had them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where tensors are made: cpu (default) or cuda")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_default_device(config.getoption("--device"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a GPU there is no fp64, and therefore no gradcheck."""
    if config.getoption("--device") == "cpu":
        return
    for item in items:
        parameters = getattr(item, "callspec", None)
        if "gradcheck" in item.name or (parameters and torch.float64 in parameters.params.values()):
            item.add_marker(pytest.mark.skip(reason="fp64 runs on the CPU alone"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Tests that use fp64 without saying so in a parameter are for the CPU too."""
    try:
        return (yield)
    except ValueError as error:
        if "Double on a GPU" not in str(error):
            raise
        pytest.skip("fp64 runs on the CPU alone")


def pytest_report_header(config: pytest.Config) -> str:
    device = config.getoption("--device")
    kernels = f"CPU kernels for {torch.ops.fmmformer._active_instruction_set()}"
    if device != "cpu":
        kernels = f"CUDA kernels on {torch.cuda.get_device_name()}"
    return f"fmmformer: {kernels}, torch {torch.__version__}"


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
