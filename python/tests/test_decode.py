# SPDX-License-Identifier: Apache-2.0
"""Prefill, step and the state between them."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from helpers import (
    ALLOWED_RMS,
    CASES,
    TYPES,
    Case,
    assert_close,
    device_type,
    random_inputs,
    random_weights,
    same_bits,
    window_of,
)
from torch import Tensor

from fmmformer import (
    FmmState,
    fmm_attention,
    fmm_attention_prefill,
    fmm_attention_reference,
    fmm_attention_step,
)

OPTIONS = dict(bandwidth=5, causal=True)


def decoded(q: Tensor, k: Tensor, v: Tensor, prompt: int, **options) -> Tensor:
    """The whole sequence: a prompt, then token by token."""
    out, state = fmm_attention_prefill(q[:, :prompt], k[:, :prompt], v[:, :prompt], **options)
    steps = [
        fmm_attention_step(q[:, t], k[:, t], v[:, t], state, **options)[:, None] for t in range(prompt, q.shape[1])
    ]
    return torch.cat([out, *steps], dim=1)


def after_prompt(dtype: torch.dtype = torch.float32, length: int = 11) -> FmmState:
    return fmm_attention_prefill(*random_inputs(length=length, dtype=dtype), **OPTIONS)[1]


# A step has no length to divide by.
CAUSAL_CASES = [case for case in CASES if case.options.get("normaliser") != "inv_sqrt_length"]


@pytest.mark.parametrize("case", CAUSAL_CASES, ids=str)
def test_prefill_and_steps_equal_the_reference_for_every_option(case: Case) -> None:
    q, k, v = random_inputs(length=37, shift=case.shift)
    options = {**case.options, "causal": True, **random_weights(case)}
    expected = fmm_attention_reference(q, k, v, **options)
    for prompt in (1, 20, 36, 37):
        assert_close(decoded(q, k, v, prompt, **options), expected, 3e-12, f"prompt of {prompt}")


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_prefill_and_steps_equal_the_reference_in_every_type(dtype: torch.dtype) -> None:
    q, k, v = random_inputs(length=150, dtype=dtype)
    expected = fmm_attention_reference(q, k, v, **OPTIONS)
    out = decoded(q, k, v, 70, **OPTIONS)
    assert out.dtype == dtype
    assert_close(out, expected, ALLOWED_RMS[dtype][0])


def test_prefill_returns_the_bits_of_the_operator() -> None:
    q, k, v = random_inputs(length=150, dtype=torch.float32)
    out, _ = fmm_attention_prefill(q, k, v, **OPTIONS)
    assert same_bits(out, fmm_attention(q, k, v, **OPTIONS))


def test_prefill_with_inverse_square_root_of_length_equals_the_operator() -> None:
    q, k, v = random_inputs(length=40, dtype=torch.float32)
    options = dict(normaliser="inv_sqrt_length", **OPTIONS)
    out, _ = fmm_attention_prefill(q, k, v, **options)
    assert same_bits(out, fmm_attention(q, k, v, **options))


def test_a_long_decode_keeps_its_accuracy() -> None:
    q, k, v = random_inputs(batch=1, length=2000, dtype=torch.float32)
    expected = fmm_attention_reference(q, k, v, **OPTIONS)
    assert_close(decoded(q, k, v, 1, **OPTIONS), expected, ALLOWED_RMS[torch.float32][0])


def test_prefill_takes_the_other_layout_and_steps_have_none() -> None:
    q, k, v = random_inputs(length=20, dtype=torch.float32)
    heads_first = (t[:, :19].transpose(1, 2) for t in (q, k, v))
    out, state = fmm_attention_prefill(*heads_first, layout="bhnd", **OPTIONS)
    assert out.shape == (2, 2, 19, 5)
    step = fmm_attention_step(q[:, 19], k[:, 19], v[:, 19], state, layout="bhnd", **OPTIONS)
    expected = fmm_attention_reference(q, k, v, **OPTIONS)
    assert_close(torch.cat([out.transpose(1, 2), step[:, None]], 1), expected, 1e-5)


def test_steps_take_strided_views() -> None:
    q, k, v = random_inputs(length=20, head_dim=5, dtype=torch.float32)
    _, state = fmm_attention_prefill(q[:, :19], k[:, :19], v[:, :19], **OPTIONS)
    other = state.clone()
    packed = torch.stack([t[:, 19] for t in (q, k, v)], dim=2)  # [B, H, 3, D]
    step = fmm_attention_step(*packed.unbind(2), state, **OPTIONS)
    assert same_bits(step, fmm_attention_step(q[:, 19], k[:, 19], v[:, 19], other, **OPTIONS))


@pytest.mark.parametrize("case", CAUSAL_CASES, ids=str)
def test_the_state_has_constant_size(case: Case) -> None:
    options = {**case.options, "causal": True}
    window, maps = window_of(case.options), len(case.options.get("feature_maps", ("elu", "elu_flip")))
    left = window[0] if window else 0
    for length in (1, 3, 40):
        q, k, v = random_inputs(length=length, dtype=torch.bfloat16)
        state = fmm_attention_prefill(q, k, v, **options)[1]
        assert state.keys.shape == (2, left, 2, 4) and state.keys.dtype == torch.bfloat16
        assert state.values.shape == (2, left, 2, 5) and state.values.dtype == torch.bfloat16
        assert state.live.shape == (2, left) and state.live.dtype == torch.bool
        assert state.far_sums.shape == (2, 2, maps, 4, 5) and state.far_sums.dtype == torch.float32
        assert state.far_key_sums.shape == (2, 2, maps, 4) and state.far_key_sums.dtype == torch.float32
        assert state.position.tolist() == [length]


def test_a_batch_of_none_decodes_to_nothing() -> None:
    q, k, v = random_inputs(batch=0, length=6, dtype=torch.float32)
    out, state = fmm_attention_prefill(q, k, v, **OPTIONS)
    assert out.shape == (0, 6, 2, 5)
    assert fmm_attention_step(q[:, 0], k[:, 0], v[:, 0], state, **OPTIONS).shape == (0, 2, 5)


def test_step_advances_the_state_in_place_and_by_one() -> None:
    q, k, v = random_inputs(length=4, dtype=torch.float32)
    _, state = fmm_attention_prefill(q, k, v, **OPTIONS)
    tensors = state.tensors()
    fmm_attention_step(q[:, 0], k[:, 0], v[:, 0], state, **OPTIONS)
    assert all(a is b for a, b in zip(state.tensors(), tensors))
    assert state.position.tolist() == [5]
    assert same_bits(state.keys[:, 4 % 4], k[:, 0])  # four slots: the fifth token takes the first one's


def test_a_clone_goes_on_independently() -> None:
    q, k, v = random_inputs(length=12, dtype=torch.float32)
    _, state = fmm_attention_prefill(q, k, v, **OPTIONS)
    clone = state.clone()
    before = [tensor.clone() for tensor in clone.tensors()]
    fmm_attention_step(q[:, 0], k[:, 0], v[:, 0], state, **OPTIONS)
    assert all(same_bits(a, b) for a, b in zip(clone.tensors(), before))
    assert state.position.tolist() == [13] and clone.position.tolist() == [12]


def test_the_state_moves_between_devices() -> None:
    state = after_prompt()
    assert all(tensor.device.type == "meta" for tensor in state.to("meta").tensors())
    assert all(same_bits(a, b) for a, b in zip(state.to("cpu").tensors(), state.tensors()))


def test_decoding_needs_no_gradients() -> None:
    q, k, v = (tensor.requires_grad_() for tensor in random_inputs(length=12, dtype=torch.float32))
    out, state = fmm_attention_prefill(q, k, v, **OPTIONS)
    step = fmm_attention_step(q[:, 0], k[:, 0], v[:, 0], state, **OPTIONS)
    assert not any(tensor.requires_grad for tensor in [out, step, *state.tensors()])


def test_dropout_has_no_effect_on_decoding() -> None:
    q, k, v = random_inputs(length=12, dtype=torch.float32)
    plain = decoded(q, k, v, 6, **OPTIONS)
    assert same_bits(decoded(q, k, v, 6, near_dropout=0.5, **OPTIONS), plain)


# --- saved states ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_saved_state_comes_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    state = after_prompt(dtype)
    state.save(tmp_path / "state.safetensors")
    loaded = FmmState.load(str(tmp_path / "state.safetensors"))
    assert all(same_bits(a, b) for a, b in zip(loaded.tensors(), state.tensors()))
    assert loaded.feature_maps == ("elu", "elu_flip") and loaded.unit_features is False


def test_a_loaded_state_still_knows_its_feature_maps(tmp_path: Path) -> None:
    q, k, v = random_inputs(length=12, dtype=torch.float32)
    made = dict(causal=True, feature_maps=("tanh1", "elu"), unit_features=True)
    fmm_attention_prefill(q, k, v, **made)[1].save(tmp_path / "state")
    loaded = FmmState.load(tmp_path / "state").to(device_type())
    with pytest.raises(ValueError, match=r"\(tanh1, elu\) with unit_features.*\(elu, elu_flip\)"):
        fmm_attention_step(q[:, 0], k[:, 0], v[:, 0], loaded, causal=True)
    fmm_attention_step(q[:, 0], k[:, 0], v[:, 0], loaded, **made)


def test_a_file_of_an_older_version_is_told_apart_from_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    after_prompt().save(path)
    old = path.read_bytes().replace(b'"version":"2"', b'"version":"1"')
    assert old != path.read_bytes()
    path.write_bytes(old)
    message = refused(path)
    assert "version '1'" in message and "fmm_attention_prefill" in message


@pytest.mark.parametrize("options", [dict(bandwidth=1), dict(), dict(bandwidth=4, feature_maps=())], ids=str)
def test_a_state_without_slots_or_sums_comes_back_too(tmp_path: Path, options: dict) -> None:
    _, state = fmm_attention_prefill(*random_inputs(dtype=torch.float32), causal=True, **options)
    state.save(tmp_path / "state")
    loaded = FmmState.load(tmp_path / "state")
    assert all(same_bits(a, b) for a, b in zip(loaded.tensors(), state.tensors()))


def test_a_loaded_state_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    q, k, v = random_inputs(length=30, dtype=torch.float32)
    _, state = fmm_attention_prefill(q[:, :20], k[:, :20], v[:, :20], **OPTIONS)
    state.save(tmp_path / "state")
    loaded = FmmState.load(tmp_path / "state").to(device_type())
    for t in range(20, 30):
        a, b = (fmm_attention_step(q[:, t], k[:, t], v[:, t], s, **OPTIONS) for s in (state, loaded))
        assert same_bits(a, b)


def test_a_saved_state_is_a_safetensors_file(tmp_path: Path) -> None:
    state = after_prompt(torch.bfloat16)
    state.save(tmp_path / "state.safetensors")
    stored = safetensors.torch.load_file(tmp_path / "state.safetensors")
    for name in ("keys", "values", "live", "far_sums", "far_key_sums", "position"):
        assert same_bits(stored[name], getattr(state, name)), name


def test_saving_replaces_an_older_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    path.write_bytes(b"old")
    after_prompt().save(path)
    FmmState.load(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.safetensors"]


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, bytes]:
    path = tmp_path / "state.safetensors"
    after_prompt().save(path)
    return path, path.read_bytes()


def refused(path: Path) -> str:
    """The message with which the file is refused; it names the file."""
    with pytest.raises(ValueError) as error:
        FmmState.load(path)
    assert str(path) in str(error.value)
    return str(error.value)


def test_a_file_that_is_cut_short_is_refused_wherever_it_is_cut(saved: tuple[Path, bytes]) -> None:
    path, whole = saved
    for size in [0, 1, 7, 8, 9, 50, 200, len(whole) // 2, len(whole) - 8, len(whole) - 1]:
        path.write_bytes(whole[:size])
        refused(path)


def test_a_file_with_anything_appended_is_refused(saved: tuple[Path, bytes]) -> None:
    path, whole = saved
    path.write_bytes(whole + b"\0")
    refused(path)


def test_a_flipped_byte_anywhere_in_the_file_is_refused(saved: tuple[Path, bytes]) -> None:
    path, whole = saved
    assert len(whole) > 1000
    for place in [*range(0, 400, 3), *range(400, len(whole), 97), len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[place] ^= 0x20
        path.write_bytes(damaged)
        refused(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_text("not a state at all, but longer than a header would be")
    refused(path)
    safetensors.torch.save_file({"weight": torch.zeros(3)}, path)
    refused(path)
    tensors = dict(zip(FmmState.__dataclass_fields__, after_prompt().tensors()))
    tensors["far_sums"] = tensors["far_sums"][:, :, :, :2].contiguous()
    safetensors.torch.save_file(tensors, path)
    refused(path)


def test_missing_files_and_folders_are_errors_that_name_them(tmp_path: Path) -> None:
    refused(tmp_path / "missing")
    refused(tmp_path)
    with pytest.raises(ValueError, match="FmmState.save: .*no_such_folder.*create it first"):
        after_prompt().save(tmp_path / "no_such_folder" / "state")
