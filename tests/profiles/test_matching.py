from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.profiles.identity import WorkloadIdentity
from autotune.profiles.matching import (
    compare_age,
    compare_hardware,
    compare_software,
    compare_workloads,
    rank_fit,
)
from tests.builders import GIB, MIB, make_hardware, make_profile, make_software

HERE = make_hardware(memory_limit_bytes=16 * GIB, shm_limit_bytes=8 * GIB)
GPU = {"gpu": "NVIDIA H100 80GB HBM3", "gpu_count": 1}


def make_identity(**changes: Any) -> WorkloadIdentity:
    usual: dict[str, Any] = {"dataset": "a:b", "samples": 1000, "sample_bytes": 4096, "step": "built-in"}
    return WorkloadIdentity(**usual | changes)


def test_a_machine_does_not_differ_from_itself() -> None:
    assert compare_hardware(HERE, HERE) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"usable_cpus": HERE.usable_cpus / 2}, "CPUs 2 instead of 4"),
        ({"memory_limit_bytes": 8 * GIB}, "memory 8.0 GiB instead of 16.0 GiB"),
        ({"shm_limit_bytes": 64 * MIB}, "/dev/shm 64.0 MiB instead of 8.0 GiB"),
        ({"nofile_limit": 256}, "open files 256 instead of 1,024"),
    ],
)
def test_less_than_there_was_decides_and_is_said_with_both_numbers(changes: dict[str, Any], words: str) -> None:
    (difference,) = compare_hardware(HERE, HERE.model_copy(update=changes))
    assert difference.describe() == words
    assert difference.requires_retune
    assert difference.is_shortfall


def test_more_than_there_was_decides_without_being_less() -> None:
    (difference,) = compare_hardware(HERE, HERE.model_copy(update={"usable_cpus": 64.0}))
    assert difference.requires_retune
    assert not difference.is_shortfall


def test_another_accelerator_is_named_and_counts_as_less() -> None:
    (difference,) = compare_hardware(HERE.model_copy(update=GPU), HERE)
    assert difference.describe() == "GPU no GPU instead of NVIDIA H100 80GB HBM3"
    assert difference.is_shortfall


def test_the_name_of_the_processor_only_advises() -> None:
    (difference,) = compare_hardware(HERE, HERE.model_copy(update={"cpu": "Newer CPU"}))
    assert not difference.requires_retune


def test_a_kernel_that_keeps_a_little_more_memory_for_itself_is_no_other_machine() -> None:
    assert compare_hardware(HERE, HERE.model_copy(update={"memory_limit_bytes": 16 * GIB - 100 * MIB})) == ()


def test_versions_advise_and_the_start_method_decides() -> None:
    there = make_software()
    here = there.model_copy(update={"torch": "2.14.0", "start_method": "forkserver"})
    by_name = {difference.what: difference for difference in compare_software(there, here)}
    assert not by_name["torch"].requires_retune
    assert by_name["start method"].requires_retune
    assert by_name["torch"].describe() == "torch 2.14.0 instead of 2.13.0"


def test_variables_that_limit_threads_advise() -> None:
    here = make_software().model_copy(update={"thread_variables": {"OMP_NUM_THREADS": "1"}})
    (difference,) = compare_software(make_software(), here)
    assert not difference.requires_retune
    assert difference.describe() == "threads of libraries OMP_NUM_THREADS=1 instead of none"


def test_larger_samples_make_another_workload() -> None:
    (difference,) = compare_workloads(make_identity(), make_identity(sample_bytes=8192))
    assert difference.describe() == "bytes of a sample 8.0 KiB instead of 4.0 KiB"


@pytest.mark.parametrize("changes", [{"sample_bytes": 4200}, {"samples": 1200}, {"samples": None}])
def test_what_differs_a_little_or_cannot_be_told_is_the_same_workload(changes: dict[str, Any]) -> None:
    assert compare_workloads(make_identity(), make_identity(**changes)) == ()


def test_another_dataset_and_a_much_longer_one_are_named() -> None:
    found = compare_workloads(make_identity(), make_identity(dataset="c:d", samples=9000))
    assert [difference.what for difference in found] == ["dataset", "samples"]


def test_another_split_of_the_same_factory_is_another_workload() -> None:
    (difference,) = compare_workloads(make_identity(split="train"), make_identity(split="val"))
    assert difference.describe() == "split val instead of train"
    assert difference.requires_retune


def test_a_profile_ages() -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    (old,) = compare_age(now - timedelta(days=40), now, 30 * 86400.0)
    assert old.describe() == "age 40 days instead of at most 30 days"
    assert compare_age(now - timedelta(days=20), now, 30 * 86400.0) == ()
    assert compare_age(now - timedelta(days=4000), now, None) == ()


@pytest.mark.parametrize("most_seconds", [1e300, 99999999999 * 86400.0])
def test_no_age_is_too_large_to_be_allowed(most_seconds: float) -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    assert compare_age(now - timedelta(days=4000), now, most_seconds) == ()


@given(
    cpus=st.floats(0.1, 512, allow_nan=False),
    memory=st.integers(MIB, 2**50),
    shm=st.integers(0, 2**45),
    files=st.integers(64, 2**20),
)
def test_the_rank_tells_alike_from_more_from_less_from_another_accelerator(
    cpus: float, memory: int, shm: int, files: int
) -> None:
    changes = {"usable_cpus": cpus, "memory_limit_bytes": memory, "shm_limit_bytes": shm, "nofile_limit": files}
    there = make_hardware(**changes)
    profile = make_profile(hardware=there)
    assert rank_fit(profile, there) == 0
    assert rank_fit(profile, there.model_copy(update={"nofile_limit": files + 1})) == 1
    assert rank_fit(profile, there.model_copy(update={"nofile_limit": files - 1})) == 2
    assert rank_fit(profile, there.model_copy(update=GPU)) == 3
