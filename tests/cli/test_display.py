"""What is shown while a run goes on."""

from __future__ import annotations

import pytest

from autotune.cli.display import describe_failure, describe_machine, describe_workload
from tests.builders import (
    make_config,
    make_cost,
    make_gpu_workload,
    make_limits,
    make_machine,
    make_result,
    make_workload,
)


def test_the_machine_is_described_by_what_may_be_used_and_who_decides() -> None:
    machine = make_machine(affinity_cpus=16, quota_cpus=2.5)
    text = describe_machine(machine, make_limits(nofile=20_000))
    assert text == "2.5 of 16 CPUs (cgroup)   RAM cap 8.0 GiB   /dev/shm cap 4.0 GiB   20,000 files"


@pytest.mark.parametrize(("step_seconds", "words"), [(0.001, "loader-bound"), (1.0, "step-bound")])
def test_the_workload_is_described_by_whether_loader_or_step_takes_longer(step_seconds: float, words: str) -> None:
    workload = make_workload(load_cost=make_cost(1e-3), step_cost=make_cost(0.0, step_seconds), cpu_share=0.25)
    text = describe_workload(workload, ceiling=32 / step_seconds)
    assert text.startswith("batch of 32: 128 KiB   1.0 ms/sample (CPU 25 %)")
    assert text.endswith(words)


def test_a_failed_trial_is_one_sentence_with_its_number_and_its_settings() -> None:
    result = make_result(make_config(12, 2, 256), kind="shm_exhausted", message="filled /dev/shm")
    assert describe_failure(7, result) == "Trial 7 (num_workers=12, batch_size=256) filled /dev/shm."


def test_a_failed_trial_over_own_batches_does_not_speak_of_a_batch_size() -> None:
    result = make_result(make_config(2, 2, None), kind="crashed", message="was killed by SIGBUS")
    assert describe_failure(1, result) == "Trial 1 (num_workers=2) was killed by SIGBUS."


def test_the_probe_of_a_gpu_names_it_and_the_way_to_it() -> None:
    line = describe_workload(make_gpu_workload(), ceiling=1000.0)
    assert "NVIDIA H100 80GB HBM3   copies 4.0 GB/s, 12.0 GB/s pinned, 100 % of one hidden by computing" in line
