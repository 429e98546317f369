"""Limits of added workers."""

from __future__ import annotations

import gc
import math
import multiprocessing
import time

import pytest
import torch

from autotune.online.group import wait_for_ending_workers
from autotune.online.limits import WorkerLimits
from autotune.profiles.schema import MAX_SEARCHED_WORKERS
from tests.builders import make_machine


@pytest.fixture(autouse=True)
def without_workers() -> None:
    """No worker of another test is counted."""
    gc.collect()  # an error of a worker keeps its iterator in a reference cycle, also without dltune
    wait_for_ending_workers()


def test_workers_that_import_everything_again_are_few() -> None:
    limits = WorkerLimits(start_method="spawn")
    assert limits.most_workers(2, 0) == 2 * math.ceil(limits.cpus)


def test_a_worker_that_is_not_forked_is_taken_to_have_a_copy_of_the_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.online.limits.read_smaps", lambda _: {"Anonymous": 2**30})
    assert WorkerLimits(max_memory="2100MiB", max_workers=8, start_method="spawn").most_workers(2, 0) == 2
    assert WorkerLimits(max_memory="2100MiB", max_workers=8).most_workers(2, 0) == 8


def test_without_a_reason_the_most_workers_are_those_that_dltune_searches() -> None:
    assert WorkerLimits().most_workers(2, 0) == MAX_SEARCHED_WORKERS


def test_the_users_maximum_counts() -> None:
    assert WorkerLimits(max_workers=3).most_workers(2, 0) == 3


@pytest.mark.parametrize(("running", "most"), [(0, 4), (2, 6)])
def test_memory_limits_the_workers_that_do_not_run_yet(running: int, most: int) -> None:
    limits = WorkerLimits(max_memory="250MiB")  # 48 MiB for each, and the batches under way
    limits.measure_batch(torch.zeros(2**20))
    assert limits.most_workers(2, running) == most


def test_other_processes_of_the_training_are_no_workers() -> None:
    limits = WorkerLimits(max_memory="250MiB")
    most, process = limits.most_workers(2, 0), multiprocessing.Process(target=time.sleep, args=(60,))
    process.start()
    try:
        assert (limits.measure_workers(), limits.most_workers(2, 0)) == ("", most)
    finally:
        process.kill()
        process.join()


@pytest.mark.parametrize(
    ("own", "quota", "cpus"),
    [(12, None, 12.0), (96, None, 12.0), (24, None, 12.0), (6, None, 6.0), (12, 32.0, 4.0)],
    ids=["bound", "shared", "in twos", "to fewer", "with a quota"],
)
def test_eight_processes_that_a_launcher_binds_to_a_part_of_96_cpus_have_their_share(
    own: int, quota: float | None, cpus: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = make_machine(affinity_cpus=own, quota_cpus=quota)
    monkeypatch.setattr("autotune.online.limits.read_machine", lambda: machine)
    monkeypatch.setattr("autotune.system.machine.count_launcher_cpus", lambda: 96)
    assert WorkerLimits(processes=8).cpus == cpus


def test_several_processes_share_the_host() -> None:
    one, two = WorkerLimits(max_memory="400MiB"), WorkerLimits(max_memory="400MiB", processes=2)
    assert (one.most_workers(2, 0), two.most_workers(2, 0)) == (8, 4)
    assert two.cpus == one.cpus / 2


@pytest.mark.parametrize(("device", "most"), [("cpu", 0), ("meta", MAX_SEARCHED_WORKERS)])
def test_batches_that_fill_shared_memory_allow_no_worker(device: str, most: int) -> None:
    limits = WorkerLimits()
    limits.measure_batch({"image": torch.zeros(1, device=device).expand(2**42)})  # takes no memory here
    assert limits.most_workers(1, 0) == most
