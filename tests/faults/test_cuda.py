"""What becomes of trials in which CUDA fails; the failures are told in its words, for want of a GPU."""

from __future__ import annotations

import pytest

from tests.faults.stage import Play, refuse, run

ROW = "CUDA OOM / pinned failure"


@pytest.mark.parametrize(
    ("text", "words", "workers"),
    [("allocator", ": it asked for 2.00 GiB more", 2), ("driver", "", 0)],
)
@pytest.mark.fault(ROW, needs="plain")
def test_a_gpu_without_memory_is_named_with_what_to_reduce(text: str, words: str, workers: int) -> None:
    result = run("faults.hostile:make_cuda_failure", arguments={"text": text}, play=Play(workers=workers))
    assert result.kind == "out_of_memory", result.message
    assert f"ran out of device memory{words}. Use a smaller --batch-size" in result.message


@pytest.mark.fault(ROW, needs="plain")
def test_a_step_without_memory_is_the_configurations_failure_in_a_trial() -> None:
    result = run("misbehaving:make_honest", step="faults.hostile:make_step_without_memory")
    assert result.kind == "out_of_memory", result.message


@pytest.mark.fault(ROW, needs="plain")
def test_a_step_without_memory_in_the_probe_is_told_to_use_smaller_batches() -> None:
    error = refuse("misbehaving:make_honest", step="faults.hostile:make_step_without_memory")
    assert "The training step (tests.faults.hostile:make_step_without_memory) failed on a batch" in str(error)
    assert "Use a smaller --batch-size" in str(error)


@pytest.mark.fault(ROW, needs="plain")
def test_a_host_without_memory_to_pin_is_told_to_pin_less() -> None:
    result = run("faults.hostile:make_cuda_failure", arguments={"text": "pinning without memory"}, play=Play(workers=0))
    assert result.kind == "out_of_memory", result.message
    assert "could get no more page-locked memory" in result.message


@pytest.mark.fault(ROW, needs="plain")
@pytest.mark.parametrize("text", ["sticky", "lost"])
def test_a_dataset_that_speaks_of_a_lost_device_where_none_is_in_use_has_failed_itself(text: str) -> None:
    result = run("faults.hostile:make_cuda_failure", arguments={"text": text}, play=Play(workers=0))
    assert result.kind == "workload_failed", result.message


@pytest.mark.fault(ROW, needs="plain")
def test_a_batch_that_cannot_be_pinned_is_told_to_stay_unpinned() -> None:
    result = run("faults.hostile:make_cuda_failure", arguments={"text": "pinning"}, play=Play(workers=0))
    assert result.kind == "workload_failed", result.message
    assert "CUDA error: invalid argument" in result.message
    assert "--set pin_memory=false" in result.message
