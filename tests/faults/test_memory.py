"""What becomes of trials that run out of memory, and of those that would in a longer run."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest

from autotune.progress import ProgressListener
from autotune.protocol.messages import ProgressReport
from tests.faults.capabilities import open_cgroup
from tests.faults.stage import MIB, Play, Scene, list_trial_processes, probe, run, run_elsewhere


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.fault("cgroup OOM", needs="cgroup")
def test_the_kernels_oom_killer_is_recognised_by_its_own_count(workers: int) -> None:
    scene = Scene(
        factory="faults.hostile:make_sabotaged",
        arguments={"deed": "eat memory", "place": "both"},
        plays=(Play(workers=workers),),
    )
    with open_cgroup(700 * MIB) as wrap:
        review = run_elsewhere(scene, lambda command: [*wrap, *command])
    (result,) = review.results
    assert result.kind == "out_of_memory", result.message
    assert "out-of-memory killer" in result.message
    assert review.left == ()


@pytest.mark.fault("RLIMIT_AS", needs="plain")
def test_memory_that_may_not_be_mapped_is_named_with_the_amount() -> None:
    result = run("faults.hostile:make_short_of_addresses")
    assert result.kind == "out_of_memory", result.message
    assert "it asked for 512 MiB more" in result.message
    assert "--batch-size" in result.message


@pytest.mark.fault("RLIMIT_AS", needs="plain")
def test_a_trial_is_given_no_limit_of_addresses() -> None:
    seen: set[tuple[int, int]] = set()

    class Look(ProgressListener):
        def show_progress(self, progress: ProgressReport) -> None:
            seen.update(process.rlimit(psutil.RLIMIT_AS) for process in list_trial_processes())

    with Scene(factory="misbehaving:make_honest").open_runner(Look()) as runner:
        runner.run(Play().to_request())
    assert seen == {psutil.Process().rlimit(psutil.RLIMIT_AS)}


@pytest.mark.fault("CoW growth", needs="plain")
def test_a_long_list_that_workers_will_copy_is_foreseen_with_numbers_and_the_way_out() -> None:
    notes = "\n".join(probe("faults.hostile:make_many_names", arguments={"in_a_list": True}).notes)
    found = re.search(r"copy up to ([\d.]+) MiB", notes)
    assert found is not None, notes
    assert 150 < float(found[1]) < 600
    assert "a list of 2,500,000 objects of type str: keep it in autotune.shared(dataset._names)" in notes


@pytest.mark.fault("CoW growth", needs="plain")
def test_a_large_tensor_is_not_taken_for_a_list() -> None:
    assert probe("faults.hostile:make_many_names", arguments={"in_a_list": False}).notes == ()


def test_this_machine_tells_what_a_process_shares() -> None:
    assert "Pss_Anon" in Path("/proc/self/smaps_rollup").read_text()
