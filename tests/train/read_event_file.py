#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads with TensorBoard itself what event_file_writer wrote: read_event_file.py PROGRAM"""

import pathlib
import subprocess
import sys
import tempfile

try:
    from tensorboard.backend.event_processing import event_accumulator, event_file_loader
except ImportError:
    print("skipped: no tensorboard in this Python; pip install tensorboard")
    sys.exit(77)

with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.argv[1], folder], check=True)
    paths = sorted(pathlib.Path(folder).iterdir())
    assert len(paths) == 2, paths

    events = list(event_file_loader.LegacyEventFileLoader(str(paths[0])).Load())
    assert events[0].file_version == "brain.Event:2", events[0]
    assert len(events) == 1 + 501 + 6, len(events)
    assert abs(events[-1].wall_time - paths[0].stat().st_mtime) < 60, events[-1].wall_time

    accumulator = event_accumulator.EventAccumulator(folder, size_guidance={"scalars": 0})
    accumulator.Reload()
    assert sorted(accumulator.Tags()["scalars"]) == ["dev/accuracy", "large", "train/loss"]

    loss = {event.step: event.value for event in accumulator.Scalars("train/loss")}
    assert sorted(loss) == list(range(401)), "steps 0..300 of the run, 301..400 of its resumption"
    for step, value in loss.items():
        wanted = 1 / (step + 1) if step <= 300 else -step
        assert abs(value - wanted) <= 1e-6 * abs(wanted), (step, value, wanted)

    accuracy = [(event.step, event.value) for event in accumulator.Scalars("dev/accuracy")]
    assert accuracy == [(0, 0), (100, 100), (200, 200), (300, 300)], accuracy
    large = accumulator.Scalars("large")
    assert [event.step for event in large] == [1 << 40], large
print("TensorBoard reads it all")
