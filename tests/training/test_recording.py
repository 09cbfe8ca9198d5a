"""The writer: what arrives in the file, and what its clock counts."""

import os
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from training import records, spool
from training.recording import Recorder, batch_header
from training.records import GROUPS, METRICS, REWARD_SPANS, ROLLOUTS, RolloutBatch


def make_batch() -> RolloutBatch:
    header = batch_header(str(uuid.uuid4()), 1, 0, split="train", phase_seconds={})
    return RolloutBatch(header, *(schema.empty_table() for schema in (ROLLOUTS, GROUPS, METRICS, REWARD_SPANS)))


def read_only_batch(folder: Path) -> RolloutBatch:
    (path,) = spool.waiting(folder)
    return RolloutBatch.from_bytes(path.read_bytes(), where=path.name)


def test_the_metrics_of_a_step_are_those_handed_over_with_its_batch(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.put(make_batch(), {"loss": -0.0, "reward_mean": 0.25})
    recorder.close()
    assert read_only_batch(tmp_path).metrics.to_pydict() == {"name": ["loss", "reward_mean"], "value": [-0.0, 0.25]}


def test_the_writers_time_counts_its_wait_for_the_disk_and_its_processor_time_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: time.sleep(0.2))
    recorder = Recorder(tmp_path)
    recorder.put(make_batch(), {})
    recorder.close()
    seconds = recorder.take_seconds()
    assert seconds.write >= 0.2  # the file
    assert seconds.held >= 0.4  # the file and its folder, which closing waits for
    assert seconds.write_cpu < 0.2
    assert seconds.taken == seconds.held + seconds.write_cpu


def test_a_whole_batch_that_lost_its_name_in_a_crash_gets_it_and_half_a_batch_goes(tmp_path: Path) -> None:
    path = spool.put(tmp_path, make_batch())
    data = path.read_bytes()
    path.rename(f"{path}.part")
    (tmp_path / "0001-00000007-1-x.batch.part").write_bytes(data[:-1])
    Recorder(tmp_path).close()
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == data


def test_a_name_is_made_durable_once_by_a_flush_and_its_time_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = []

    def slow(folder: Path) -> None:
        folders.append(folder)
        time.sleep(0.2)

    monkeypatch.setattr(spool, "fsync_folder", slow)
    recorder = Recorder(tmp_path)
    recorder.put(make_batch(), {})
    recorder.wait()
    assert not folders
    recorder.flush()
    assert recorder.take_seconds().held >= 0.2
    recorder.close()
    assert folders == [tmp_path]
    assert recorder.take_seconds() == (0, 0, 0)


def test_the_time_of_every_batch_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: time.sleep(0.2))
    recorder = Recorder(tmp_path)
    for _ in range(2):
        recorder.put(make_batch(), {})
    seconds = recorder.take_seconds()
    assert seconds.write >= 0.4
    assert seconds.held >= 0.3  # nothing was done meanwhile: the loop waited for the first, then for the second
    assert recorder.take_seconds() == (0, 0, 0)
    recorder.close()


def test_a_batch_of_a_version_that_compressed_otherwise_is_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch()
    batch = RolloutBatch(batch.header, batch.rollouts, batch.groups, pa.table({"name": ["loss"] * 99, "value": [1.5] * 99}), batch.reward_spans)  # fmt: skip
    new = batch.to_bytes()
    monkeypatch.setattr(records, "COMPRESSION", pa.ipc.IpcWriteOptions(compression="zstd"))
    old = batch.to_bytes()
    assert old != new
    assert RolloutBatch.from_bytes(old, where="old") == RolloutBatch.from_bytes(new, where="new")
