"""What becomes of trials that run out of memory, and of those that would in a longer run."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest

from autotune.progress import ProgressListener
from autotune.protocol.messages import ProgressReport
from tests.conftest import list_trial_processes
from tests.faults.capabilities import open_cgroup
from tests.faults.stage import MIB, hostile, make_trial


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.fault("cgroup OOM", needs="cgroup")
def test_the_kernels_oom_killer_is_recognised_by_its_own_count(workers: int) -> None:
    scene = hostile("make_sabotaged", make_trial(workers), deed="eat memory", place="both")
    with open_cgroup(700 * MIB) as wrap:
        (result,) = scene.play_elsewhere(lambda command: [*wrap, *command])
    assert result.status == "out_of_memory", result.message
    assert "out-of-memory killer" in result.message


@pytest.mark.fault("RLIMIT_AS")
def test_a_trial_is_given_no_limit_of_addresses() -> None:
    seen: set[tuple[int, int]] = set()

    class Look(ProgressListener):
        def show_progress(self, progress: ProgressReport) -> None:
            seen.update(process.rlimit(psutil.RLIMIT_AS) for process in list_trial_processes())

    scene = hostile("tests.misbehaving:make_honest")
    with scene.open_runner(Look()) as runner:
        runner.run(*scene.trials)
    assert seen == {psutil.Process().rlimit(psutil.RLIMIT_AS)}


@pytest.mark.fault("CoW growth")
def test_a_long_list_that_workers_will_copy_is_foreseen_with_numbers_and_the_way_out() -> None:
    notes = "\n".join(hostile("make_many_names", in_a_list=True).probe().notes)
    found = re.search(r"copy up to ([\d.]+) MiB", notes)
    assert found is not None, notes
    assert 150 < float(found[1]) < 600
    assert "a list of 2,500,000 objects of type str: keep it in autotune.shared(dataset._names)" in notes


@pytest.mark.fault("CoW growth")
def test_a_large_tensor_is_not_taken_for_a_list() -> None:
    assert hostile("make_many_names", in_a_list=False).probe().notes == ()


def test_the_kernel_reports_the_memory_that_a_process_shares() -> None:
    assert "Pss_Anon" in Path("/proc/self/smaps_rollup").read_text()
