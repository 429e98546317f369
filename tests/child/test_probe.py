from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from autotune.child.probe import load_batches, profile_workload
from autotune.child.workload import LoadedWorkload
from autotune.errors import WorkloadError
from autotune.protocol.messages import ProbeCommand, ProbeReport
from autotune.protocol.workload_profile import LinearBytes, LinearCost
from autotune.request import Workload

BURNED_SECONDS = 0.05
BURN = f"import time\nwhile time.process_time() < {BURNED_SECONDS}: pass"


def probe(dataset: Dataset[Any], size: int = 4) -> ProbeReport:
    workload = LoadedWorkload(parts=Workload(dataset=dataset))
    command = ProbeCommand(batch_size=size, largest=size, usable_cpus=1.0)
    return profile_workload(workload, lambda batch: None, torch.device("cpu"), command, lambda phase, batches=0: None)


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(5e-3)
        assert get_worker_info() is None, "role main starts no workers"
        return torch.tensor(index)


class ShellsOut(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        subprocess.run([sys.executable, "-S", "-c", BURN], check=True)
        return torch.zeros(1)


def test_programs_that_a_dataset_starts_count_as_cpu_time_of_loading() -> None:
    profile = probe(ShellsOut(), size=1).profile
    assert profile.cpu_share * profile.load_cost.per_batch(1) > 0.9 * BURNED_SECONDS


class Computing(Numbers):
    """Computes in the thread that loads, and in another one if `pool` exists."""

    def __init__(self, pool: ThreadPoolExecutor | None) -> None:
        self._pool = pool

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._pool is not None:
            self._pool.submit(sum, range(200_000)).result()
        return torch.tensor(sum(range(200_000)))


def test_cpu_time_of_threads_that_libraries_start_is_compared_with_that_of_the_thread_that_loads() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert probe(Computing(pool)).profile.worker_threads_cpu >= 0.5
    assert probe(Computing(None)).profile.worker_threads_cpu < 0.25


@pytest.mark.parametrize("is_slow", [False, True])
def test_slow_samples_are_read_only_as_often_as_planning_needs(is_slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.child.probe.MAX_CHECKED_SECONDS", 0.0 if is_slow else 1.0)
    found = probe(Numbers())
    assert (found.profile.costly_lines == (), found.digests == {}) == (is_slow, is_slow)


class SlowShards(IterableDataset[torch.Tensor]):
    """Waits for each shard, of two hundred samples that take nothing."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(50):
            time.sleep(0.02)
            yield from torch.arange(200)


def test_a_stream_is_read_for_long_enough_to_meet_its_next_shards() -> None:
    workload = LoadedWorkload(parts=Workload(dataset=SlowShards()))
    _, times, _ = load_batches(workload, 10, lambda phase, batches=0: None)
    assert sum(one.wall >= 0.02 for one in times[1:]) > 3


class ShortQueries(Numbers):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [torch.tensor(index) for index in indices[1:]]


def test_a_dataset_that_answers_queries_with_too_few_samples_is_refused() -> None:
    with pytest.raises(WorkloadError, match="returned 3 samples for 4 indices"):
        probe(ShortQueries())


SIZES = st.lists(st.integers(1, 4096), min_size=1, max_size=3, unique=True).map(lambda sizes: sorted(sizes)[::-1])


@given(sizes=SIZES, fixed=st.floats(0, 10), slope=st.floats(1e-6, 1))
def test_a_cost_that_is_linear_is_found_from_any_sizes(sizes: list[int], fixed: float, slope: float) -> None:
    found = LinearCost.fit([(size, fixed + slope * size) for size in sizes])
    for size in sizes:
        assert found.per_batch(size) == pytest.approx(fixed + slope * size, rel=1e-4)


@given(points=SIZES.flatmap(lambda sizes: st.tuples(*(st.tuples(st.just(size), st.floats(0, 100)) for size in sizes))))
def test_no_part_of_a_cost_is_ever_negative(points: tuple[tuple[int, float], ...]) -> None:
    found = LinearCost.fit(list(points))
    assert found.fixed_seconds >= 0
    assert found.per_item_seconds >= 0


def test_the_usual_size_counts_as_much_as_the_smallest_which_was_disturbed() -> None:
    found = LinearCost.fit([(512, 5.12), (32, 0.32), (8, 0.16)])
    assert found.per_batch(32) == pytest.approx(0.32, rel=0.2)


@given(found=st.tuples(*(st.integers(0, 2**36) for _ in range(3))))
def test_device_memory_is_never_fitted_below_what_was_seen(found: tuple[int, ...]) -> None:
    points = list(zip((512, 32, 8), found, strict=True))
    fitted = LinearBytes.fit([(float(size), seen) for size, seen in points])
    assert all(fitted.per_batch(size) >= seen - 1 for size, seen in points)
