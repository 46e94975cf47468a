# SPDX-License-Identifier: Apache-2.0
"""What a user imports, and how the operator library is found."""

from __future__ import annotations

import inspect
import re
import typing
from pathlib import Path

import pytest

import fmmformer
from fmmformer import _library

PACKAGE = Path(fmmformer.__file__).parent


def test_everything_that_is_exported_exists_and_is_explained() -> None:
    for name in fmmformer.__all__:
        thing = getattr(fmmformer, name)
        assert name == "__version__" or inspect.getdoc(thing), name


def test_every_function_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
    for name in fmmformer.__all__:
        thing = getattr(fmmformer, name)
        if inspect.isfunction(thing):
            hints = typing.get_type_hints(thing)
            assert set(inspect.signature(thing).parameters) | {"return"} == set(hints), name


def test_options_are_listed_as_the_operator_takes_them() -> None:
    keywords = [
        name
        for name, parameter in inspect.signature(fmmformer.fmm_attention).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    assert list(fmmformer.functional.FmmOptions.__annotations__) == keywords


def test_the_version_is_that_of_the_build() -> None:
    build_file = PACKAGE.parents[1] / "CMakeLists.txt"
    if not build_file.exists():
        pytest.skip("installed without its source tree")
    (version,) = re.findall(r"project\(fmmformer VERSION ([0-9.]+)", build_file.read_text())
    assert fmmformer.__version__ == version


def test_a_library_named_in_the_environment_is_the_only_one_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = tmp_path / "elsewhere.so"
    monkeypatch.setenv(_library.ENVIRONMENT_VARIABLE, str(missing))
    assert _library.places() == [missing]
    with pytest.raises(ImportError) as error:
        _library.find()
    for fragment in (str(missing), "make", "pip install", _library.ENVIRONMENT_VARIABLE):
        assert fragment in str(error.value)
    missing.touch()
    assert _library.find() == missing


def test_without_the_environment_the_package_is_looked_at_before_the_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(_library.ENVIRONMENT_VARIABLE, raising=False)
    inside, built = _library.places()
    assert inside.parent == PACKAGE.resolve() and built.parent.name == "build"


def test_a_library_that_does_not_load_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_text("no library")
    monkeypatch.setenv(_library.ENVIRONMENT_VARIABLE, str(broken))
    with pytest.raises(ImportError, match="(?s)broken.so.*does not load beside torch.*build it again"):
        _library.load()
