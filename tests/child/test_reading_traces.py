from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

from autotune.child.reading_traces import ProcessState, find_traces, hangs_after_reading
from autotune.child.workload import LoadedWorkload
from autotune.protocol.messages import Traces
from autotune.request import Workload


def test_reading_that_leaves_nothing_leaves_no_traces(tmp_path: Path) -> None:
    before = ProcessState.read()
    (tmp_path / "file").write_text("read and closed")
    assert find_traces(before) == Traces()


def test_a_thread_that_goes_on_is_a_trace() -> None:
    ended = threading.Event()
    before = ProcessState.read()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    traces = find_traces(before)
    ended.set()
    thread.join()
    assert traces == Traces(threads=True)


def test_a_file_that_stays_open_is_a_trace(tmp_path: Path) -> None:
    before = ProcessState.read()
    with (tmp_path / "file").open("w"):
        traces = find_traces(before)
    assert traces == Traces(files=True)


def test_a_file_that_only_garbage_holds_open_is_none(tmp_path: Path) -> None:
    before = ProcessState.read()
    held = [(tmp_path / "file").open("w")]
    held.append(held)  # type: ignore[arg-type]  # a cycle
    del held
    with pytest.warns(ResourceWarning):
        assert find_traces(before) == Traces()


def test_threads_unknown_to_python_count_too() -> None:
    assert find_traces(ProcessState.read()._replace(all_threads=0)) == Traces(threads=True)


class Locked(Dataset[torch.Tensor]):
    """Waits for a lock, which a thread of the training process may hold when a worker is forked."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        with self.lock:
            return torch.tensor(index)


def test_a_worker_that_waits_for_a_thread_is_seen_to_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.child.reading_traces.MIN_PATIENCE_SECONDS", 0.5)
    dataset = Locked()
    workload = LoadedWorkload(parts=Workload(dataset=dataset))
    assert not hangs_after_reading(workload, 0.0)
    with dataset.lock:
        assert hangs_after_reading(workload, 0.0)
