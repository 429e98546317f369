"""What the probe makes of what it sees in this process."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, get_worker_info

from autotune.child.probe import profile_workload
from autotune.child.timing import fit_bytes, fit_cost
from autotune.child.workload import LoadedWorkload
from autotune.protocol.messages import ProbeCommand
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import Workload

BURNED_SECONDS = 0.05
BURN = f"import time\nwhile time.process_time() < {BURNED_SECONDS}: pass"


class ShellsOut(Dataset[torch.Tensor]):
    """Has another program do the work, as one that decodes video by ffmpeg does."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        subprocess.run([sys.executable, "-S", "-c", BURN], check=True)
        return torch.zeros(1)


def test_a_dataset_that_has_other_programs_compute_keeps_cpus_busy() -> None:
    workload = LoadedWorkload(parts=Workload(dataset=ShellsOut()))
    order = ProbeCommand(batch_size=1, largest=1, usable_cpus=1.0, with_workers=False)
    profile = profile_workload(workload, lambda batch: None, torch.device("cpu"), order, lambda phase: None)
    assert isinstance(profile, WorkloadProfile)
    assert profile.cpu_share * profile.load_cost.per_batch(1) > 0.9 * BURNED_SECONDS


class Waits(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(5e-3)
        return torch.zeros(1) if get_worker_info() is None else torch.ones(1)


@pytest.mark.parametrize("is_slow", [False, True])
def test_samples_that_take_seconds_are_read_no_oftener_than_planning_needs(
    is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.child.probe.MAX_LOOK_SECONDS", 0.0 if is_slow else 1.0)
    workload = LoadedWorkload(parts=Workload(dataset=Waits()))
    order = ProbeCommand(batch_size=4, largest=4, usable_cpus=1.0)
    profile = profile_workload(workload, lambda batch: None, torch.device("cpu"), order, lambda phase: None)
    assert isinstance(profile, WorkloadProfile)
    assert (profile.costly_lines == (), profile.differing_samples == 0) == (is_slow, is_slow)


SIZES = st.lists(st.integers(1, 4096), min_size=1, max_size=3, unique=True).map(lambda sizes: sorted(sizes)[::-1])


@given(sizes=SIZES, fixed=st.floats(0, 10), slope=st.floats(1e-6, 1))
def test_a_cost_that_is_linear_is_found_from_any_sizes(sizes: list[int], fixed: float, slope: float) -> None:
    found = fit_cost([(size, fixed + slope * size) for size in sizes])
    for size in sizes:
        assert found.per_batch(size) == pytest.approx(fixed + slope * size, rel=1e-4)


@given(points=SIZES.flatmap(lambda sizes: st.tuples(*(st.tuples(st.just(size), st.floats(0, 100)) for size in sizes))))
def test_no_part_of_a_cost_is_ever_negative(points: tuple[tuple[int, float], ...]) -> None:
    found = fit_cost(list(points))
    assert found.fixed_seconds >= 0
    assert found.per_item_seconds >= 0


def test_the_usual_size_counts_beside_the_smallest_and_the_largest() -> None:
    """The cost of the smallest batch was disturbed; the other two show that there is no fixed part."""
    found = fit_cost([(512, 5.12), (32, 0.32), (8, 0.16)])
    assert found.per_batch(32) == pytest.approx(0.32, rel=0.2)


@given(found=st.tuples(*(st.integers(0, 2**36) for _ in range(3))))
def test_device_memory_is_never_fitted_below_what_was_seen(found: tuple[int, ...]) -> None:
    points = list(zip((512, 32, 8), found, strict=True))
    fitted = fit_bytes([(float(size), seen) for size, seen in points])
    assert all(fitted.per_batch(size) >= seen - 1 for size, seen in points)
