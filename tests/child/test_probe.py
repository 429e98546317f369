from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from autotune.child.probe import load_batches, profile_step, profile_workload
from autotune.child.step import Step
from autotune.child.workload import LoadedWorkload
from autotune.errors import WorkloadError
from autotune.profiles.load import compare
from autotune.protocol.messages import ProbeCommand, ProbeReport
from autotune.protocol.workload_profile import LinearCost, WorkloadProfile
from autotune.request import Workload
from autotune.system.procfs import memory_upper_bound
from tests.builders import make_config, make_workload

BURNED_SECONDS = 0.05
BURN = f"import time\nwhile time.process_time() < {BURNED_SECONDS}: pass"


def probe(dataset: Dataset[Any], size: int = 4, collate_fn: Any = None) -> ProbeReport:
    workload = LoadedWorkload(parts=Workload(dataset=dataset, collate_fn=collate_fn))
    command = ProbeCommand(batch_sizes=(size,), usable_cpus=1.0, memory_bytes=2**33, max_workers=64)
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
    assert profile.cpu_share * profile.load_cost.at(1) > 0.9 * BURNED_SECONDS


class Computing(Numbers):
    """Computes in the thread that loads, and four times as much in another one if `pool` exists."""

    def __init__(self, pool: ThreadPoolExecutor | None) -> None:
        self._pool = pool

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._pool is not None:
            self._pool.submit(sum, range(200_000)).result()
        return torch.tensor(sum(range(50_000)))


def test_cpu_time_of_threads_that_libraries_start_is_compared_with_that_of_the_thread_that_loads() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert probe(Computing(pool)).profile.worker_threads_cpu >= 0.5
    assert probe(Computing(None)).profile.worker_threads_cpu < 0.25


def test_the_libraries_of_the_workload_are_reported() -> None:
    assert "torch.utils" in probe(Numbers()).libraries


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


def test_a_stream_is_read_for_long_enough_to_meet_its_next_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.child.probe.LOAD_SECONDS", 2.0)  # of a busy machine
    workload = LoadedWorkload(parts=Workload(dataset=SlowShards()))
    times = load_batches(workload, 10, lambda phase, batches=0: None)[0].seconds
    assert sum(one.wall >= 0.02 for one in times[1:]) > 3


class Ragged(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.zeros(0)] * 64)


def test_samples_that_begin_with_an_empty_tensor_are_profiled() -> None:
    workload = LoadedWorkload(parts=Workload(dataset=Ragged(), batched=False))
    command = ProbeCommand(usable_cpus=1.0, memory_bytes=2**33, max_workers=64)
    report = profile_workload(workload, lambda batch: None, torch.device("cpu"), command, lambda phase, batches=0: None)
    assert report.profile.probe_batch_size == 1


class Labelled(Dataset[dict[str, Any]]):
    """Returns an image of 8 bytes, and a label of 8 bytes."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": torch.zeros(8, dtype=torch.uint8), "label": index}


def profile_with(
    step: Step, baseline: int | None = None, sizes: tuple[int, ...] = (), memory: int = 2**33
) -> WorkloadProfile:
    config = None if baseline is None else make_config(batch_size=baseline)
    workload = LoadedWorkload(parts=Workload(dataset=Labelled()), baseline=config)
    command = ProbeCommand(batch_sizes=sizes, usable_cpus=1.0, memory_bytes=memory, max_workers=64)
    return profile_workload(workload, step, torch.device("cpu"), command, lambda phase, batches=0: None).profile


def test_each_batch_goes_to_the_step_once_and_is_measured_before() -> None:
    def step(batch: Any) -> None:
        batch["image"] = batch["image"].double()
        batch["logits"] = batch.pop("label") + 1

    found = profile_with(step)
    assert (found.sample_bytes, found.batch_tensors) == (16, 2)


@pytest.mark.parametrize(
    ("baseline", "requested", "expected"),
    [(4, (), {4}), (None, (128,), {128}), (4, (2, 4), {2, 4}), (None, (), {8, 32, 512})],
)
def test_the_step_runs_on_the_batch_sizes_that_the_search_may_try(
    baseline: int | None, requested: tuple[int, ...], expected: set[int]
) -> None:
    seen: set[int] = set()
    found = profile_with(lambda batch: seen.add(len(batch["image"])), baseline, requested)
    assert seen == expected
    assert found.load_cost.at(found.probe_batch_size) > 0


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: out of memory"),
    ],
    ids=["tensors", "library", "page-locked"],
)
def test_a_guessed_batch_size_that_the_device_cannot_hold_is_left_out(error: RuntimeError) -> None:
    def step(batch: Any) -> None:
        if len(batch["image"]) > 32:
            raise error

    assert profile_with(step).largest_probed == 32


def test_a_guessed_batch_size_that_exceeds_the_budget_of_memory_is_left_out() -> None:
    assert profile_with(lambda batch: None, memory=memory_upper_bound(["self"])).largest_probed == 32


def test_another_error_of_a_guessed_batch_size_is_raised() -> None:
    def step(batch: Any) -> None:
        if len(batch["image"]) > 32:
            raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        profile_with(step)


@pytest.mark.parametrize("reads_a_part", [False, True])
def test_a_step_may_need_a_part_of_its_batch_on_the_cpu(reads_a_part: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: None)
    moved = []

    def step(batch: Any) -> None:
        moved.append(batch["data"].is_meta)
        if reads_a_part:
            batch["lengths"].tolist()

    batches = ({"data": torch.zeros(2), "lengths": torch.ones(2)} for _ in range(9))
    found = profile_step(step, batches, torch.device("meta"), lambda phase, batches=0: None)
    assert found.takes_moved is not reads_a_part
    assert moved == ([False, True] + [False] * 7 if reads_a_part else [False] + [True] * 8)


def test_the_first_steps_on_a_device_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: None)
    monkeypatch.setattr("autotune.child.probe.STEP_SECONDS", 0.0)
    steps: list[float] = [0.2] * 4 + [0.0] * 96
    batches = ([torch.zeros(2)] for _ in range(100))
    found = profile_step(lambda batch: time.sleep(steps.pop(0)), batches, torch.device("meta"), lambda *_: None)
    assert found.seconds.wall < 0.1
    assert len(steps) == 100 - 6


class Texts(Dataset[torch.Tensor]):
    """Texts of very different lengths."""

    def __init__(self) -> None:
        draw = random.Random(0)
        self._lengths = [int(draw.lognormvariate(4.0, 0.8)) + 1 for _ in range(4096)]

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(self._lengths[index], dtype=torch.uint8)


def test_texts_padded_to_the_longest_of_a_batch_are_identified_as_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.child.probe.LOAD_SECONDS", 60.0)  # as many batches on a busy machine
    parts = Workload(dataset=Texts(), collate_fn=lambda texts: pad_sequence(texts, batch_first=True))
    costs = (load_batches(LoadedWorkload(parts=parts), 16, lambda phase, batches=0: None)[0] for _ in range(8))
    sizes = (one.sample_bytes for one in costs)
    again = [make_workload(sample_bytes=mean, sample_bytes_error=error) for mean, error in sizes]
    assert len({one.sample_bytes for one in again}) > 1
    assert all(0 < one.sample_bytes_error < one.sample_bytes / 2 for one in again)
    assert [compare((one, other)) for one in again for other in again] == [[]] * 64
    other = again[0].model_copy(update={"sample_bytes": 3 * again[0].sample_bytes})
    assert [one.text.split(" ")[0] for one in compare((again[0], other))] == ["sample"]


class ShortQueries(Numbers):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [torch.tensor(index) for index in indices[1:]]


def test_a_dataset_that_answers_queries_with_too_few_samples_is_refused() -> None:
    with pytest.raises(WorkloadError, match="returned 3 samples for 4 indices"):
        probe(ShortQueries())


class ReadyBatches(Numbers):
    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(indices), torch.tensor(indices)


def test_a_dataset_may_answer_queries_with_a_batch_that_its_collate_function_takes() -> None:
    assert probe(ReadyBatches(), collate_fn=lambda batch: batch).profile.has_getitems


class BatchObjects(Numbers):
    def __getitems__(self, indices: list[int]) -> SimpleNamespace:
        return SimpleNamespace(rows=torch.tensor(indices))


def test_a_batch_of_queries_may_be_an_object_without_a_length() -> None:
    assert probe(BatchObjects(), collate_fn=lambda batch: batch).profile.has_getitems


SIZES = st.lists(st.integers(1, 4096), min_size=1, max_size=3, unique=True).map(lambda sizes: sorted(sizes)[::-1])


@given(sizes=SIZES, fixed=st.floats(0, 10), slope=st.floats(1e-6, 1))
def test_a_cost_that_is_linear_is_found_from_any_sizes(sizes: list[int], fixed: float, slope: float) -> None:
    found = LinearCost.fit([(size, fixed + slope * size) for size in sizes])
    for size in sizes:
        assert found.at(size) == pytest.approx(fixed + slope * size, rel=1e-4)


@given(points=SIZES.flatmap(lambda sizes: st.tuples(*(st.tuples(st.just(size), st.floats(0, 100)) for size in sizes))))
def test_no_part_of_a_cost_is_ever_negative(points: tuple[tuple[int, float], ...]) -> None:
    found = LinearCost.fit(list(points))
    assert found.fixed >= 0
    assert found.per_item >= 0


def test_the_usual_size_counts_as_much_as_the_smallest_which_was_disturbed() -> None:
    found = LinearCost.fit([(512, 5.12), (32, 0.32), (8, 0.16)])
    assert found.at(32) == pytest.approx(0.32, rel=0.2)


def test_device_memory_that_grows_faster_than_the_batch_is_fitted_by_its_samples() -> None:
    fitted = LinearCost.fit([(8, 0.55e9), (32, 2.4e9), (64, 5.2e9)], is_upper_bound=True)
    assert fitted.fixed < 0.6e9
    assert fitted.at(32) < 3e9


@given(found=st.tuples(*(st.integers(0, 2**36) for _ in range(3))))
def test_device_memory_is_never_fitted_below_what_was_seen(found: tuple[int, ...]) -> None:
    points = list(zip((512, 32, 8), found, strict=True))
    fitted = LinearCost.fit([(float(size), seen) for size, seen in points], is_upper_bound=True)
    assert all(fitted.at(size) >= seen - 1 for size, seen in points)
