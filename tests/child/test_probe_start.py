from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from autotune.child import probe_start, probe_workers
from autotune.child.probe_start import ImportTimes, choose_start_method, describe_start, time_imports
from autotune.child.workload_loading import LoadedWorkload, wrap_dataset
from autotune.config import ProcessSettings
from autotune.trial.workload_profile import LinearCost
from autotune.workload import Workload

SLOW_START = LinearCost(fixed_seconds=1.0, per_item_seconds=2.0)


def make_workload(method: str | None = None) -> LoadedWorkload:
    dataset = TensorDataset(torch.zeros(8))
    return LoadedWorkload(parts=Workload(dataset=dataset, multiprocessing_context=method))


def take(monkeypatch: pytest.MonkeyPatch, **seconds: float | None) -> None:
    """Let a round of workers take so long by each start method; None fails."""

    def time_round(workload: Any, workers: int, process: ProcessSettings) -> float | None:
        assert process.multiprocessing_context is not None
        return seconds[process.multiprocessing_context]

    monkeypatch.setattr(probe_workers, "time_worker_round", time_round)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["fork", "spawn", "forkserver"])


def test_the_method_is_taken_that_starts_workers_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, fork=0.3, spawn=4.0, forkserver=2.0)
    assert choose_start_method(make_workload("forkserver"), 2.0, may_fork=True).start_method == "fork"


def test_nothing_is_measured_where_workers_are_forked_and_may_be() -> None:
    assert choose_start_method(make_workload(), 2.0, may_fork=True).start_method is None


def test_forking_is_left_out_where_it_is_not_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, fork=0.3, spawn=4.0, forkserver=5.0)
    assert choose_start_method(make_workload(), 2.0, may_fork=False).start_method == "spawn"


def test_a_method_that_does_not_work_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, fork=None, spawn=4.0, forkserver=None)
    assert choose_start_method(make_workload("forkserver"), 2.0, may_fork=True).start_method == "spawn"


def test_where_none_works_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, fork=None, spawn=None, forkserver=None)
    assert choose_start_method(make_workload(), 2.0, may_fork=False).start_method is None


@pytest.mark.parametrize(
    ("preloaded", "told"),
    [(0.05, "a process that found them imported was there and done in 50.0 ms."), (1.5, "each worker does it.")],
    ids=["preloading helps", "preloading does not reach the module"],
)
def test_a_slow_start_is_told_with_what_importing_takes_and_what_preloading_gave(
    monkeypatch: pytest.MonkeyPatch, preloaded: float, told: str
) -> None:
    monkeypatch.setattr(probe_start, "time_imports", lambda script, modules: ImportTimes(1.5, preloaded))
    words = describe_start(make_workload("spawn"), SLOW_START) or ""
    assert words.startswith("Workers start by spawn: 8 of them take 17.0 s, 2.0 s more for each.")
    assert "Importing torch, torch.utils.data.dataset takes a process 1.5 s" in words
    assert words.endswith(told)


@pytest.mark.parametrize(("method", "seconds"), [("fork", 2.0), ("spawn", 0.01)])
def test_workers_that_are_forked_or_start_quickly_are_no_news(method: str, seconds: float) -> None:
    start = LinearCost(fixed_seconds=0.0, per_item_seconds=seconds)
    assert describe_start(make_workload(method), start) is None


def test_imports_are_timed_in_a_fresh_interpreter_and_in_a_process_that_finds_them_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time; time.sleep(1)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    found = time_imports(None, ["slow_to_import"])
    assert found is not None
    assert found.alone >= 1 > (found.preloaded or 9)


def test_what_cannot_be_imported_is_not_timed() -> None:
    assert time_imports(None, ["no_such_module"]) is None


def test_a_ready_loader_that_leaves_the_method_open_starts_as_asked_in_the_baseline_too() -> None:
    loader = DataLoader(TensorDataset(torch.zeros(8)), num_workers=2)
    loaded = wrap_dataset(loader, "test").start_workers_by("spawn")
    assert loaded.baseline is not None
    assert (loaded.start_method, loaded.baseline.process.multiprocessing_context) == ("spawn", "spawn")


def test_a_ready_loader_that_says_how_its_workers_start_is_the_baseline_as_it_is() -> None:
    loader = DataLoader(TensorDataset(torch.zeros(8)), num_workers=2, multiprocessing_context="fork")
    loaded = wrap_dataset(loader, "test").start_workers_by("spawn")
    assert loaded.baseline is not None
    assert (loaded.start_method, loaded.baseline.process.multiprocessing_context) == ("spawn", "fork")
