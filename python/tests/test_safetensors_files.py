# SPDX-License-Identifier: Apache-2.0
"""Our C++ reader and writer of safetensors files against Python's own library."""

import pathlib
import subprocess

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

COPY = pathlib.Path(__file__).resolve().parents[2] / "build" / "tests" / "safetensors_copy"
pytestmark = pytest.mark.skipif(not COPY.exists(), reason=f"{COPY} is not built; run `make`")


def copied(source, target):
    """What our reader and writer make of a file, as (exit code, what it said)."""
    done = subprocess.run([COPY, source, target], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def sample():
    generator = torch.Generator().manual_seed(1)
    floats = torch.randn(3, 5, generator=generator)
    tensors = {f"a {dtype}": floats.to(dtype)
               for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16,
                             torch.int64, torch.int32, torch.uint8, torch.bool)}
    return tensors | {"scalar": torch.tensor(1.5), "empty": torch.zeros(0, 7),
                      "näme/with.\"signs\"": torch.ones(1, 1, 1)}


def test_python_reads_what_we_write_and_we_read_what_python_writes(tmp_path):
    save_file(sample(), tmp_path / "a", metadata={"kind": "sample", "text": "line\nü"})
    assert copied(tmp_path / "a", tmp_path / "b") == (0, "")
    loaded = load_file(tmp_path / "b")
    assert loaded.keys() == sample().keys()
    for name, tensor in sample().items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape
        assert torch.equal(loaded[name], tensor)
    with safe_open(tmp_path / "b", "pt") as file:
        assert file.metadata().items() >= {"kind": "sample", "text": "line\nü"}.items()


def test_a_file_without_tensors_goes_both_ways(tmp_path):
    save_file({}, tmp_path / "a")
    assert copied(tmp_path / "a", tmp_path / "b") == (0, "")
    assert load_file(tmp_path / "b") == {}


def test_a_damaged_file_is_named_and_nothing_is_written(tmp_path):
    save_file(sample(), tmp_path / "a")
    whole = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(whole[:-1])
    code, said = copied(tmp_path / "a", tmp_path / "b")
    assert code == 1 and str(tmp_path / "a") in said and "cut short" in said
    assert not (tmp_path / "b").exists()
