"""What becomes of trials that run out of what workers share: /dev/shm and its names, descriptors, sockets."""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.faults.capabilities import wrap_in_mount
from tests.faults.stage import LIMITS, MIB, Scene, await_condition, hostile, make_command, make_trial, run

in_small_shm = partial(hostile, budgets=LIMITS.model_copy(update={"shm_bytes": 8 * MIB}))


@pytest.mark.parametrize(
    ("scene", "options", "texts"),
    [
        pytest.param(*case, marks=pytest.mark.fault(fault, needs="mount"), id=fault)
        for fault, *case in (
            ("shm full, default collate", in_small_shm("make_large"), "size=8m", ["/dev/shm", " MiB", "--shm-size"]),
            (
                "shm inodes exhausted",
                in_small_shm("make", name="many tensors"),
                "size=8m,nr_inodes=20",
                ["names in /dev/shm", "nr_inodes="],
            ),
            (
                "/dev/shm read-only",
                in_small_shm("tests.misbehaving:make_honest"),
                "ro,size=8m",
                ["/dev/shm: it is mounted read-only", "--max-workers 0"],
            ),
        )
    ],
)
def test_a_shm_that_is_exhausted_is_named_with_its_reason_and_the_way_out(
    scene: Scene, options: str, texts: list[str]
) -> None:
    (result,) = scene.play_elsewhere(partial(wrap_in_mount, options))
    assert result.status == "shm_exhausted", result.message
    assert [text for text in texts if text not in result.message] == [], result.message


@pytest.mark.fault("shm full, custom collate", needs="mount")
def test_a_shm_that_fills_while_a_batch_is_sent_does_not_hang_the_run() -> None:
    (result,) = in_small_shm("make", name="large, collated", stall_seconds=4.0).play_elsewhere(
        partial(wrap_in_mount, "size=8m")
    )
    assert result.status in ("stalled", "shm_exhausted"), result.message
    assert "shared memory" in result.message or "/dev/shm" in result.message


@pytest.mark.fault("/dev/shm read-only", needs="mount")
def test_a_run_with_a_read_only_shm_keeps_workers_off_and_says_why(workdir: Path) -> None:
    finished = run(wrap_in_mount("ro,size=8m", make_command("--trials", "3", "-v", "--json")))
    assert finished.returncode == 0, finished.stderr
    assert "num_workers stays at 0: workers need /dev/shm, which is not writable" in " ".join(finished.stderr.split())
    assert json.loads(finished.stdout)["config"]["dataloader"]["num_workers"] == 0


@pytest.mark.fault("Real SIGBUS", needs="mount")
def test_a_worker_that_writes_beyond_shm_is_named_with_both_causes_of_a_bus_error() -> None:
    scene = in_small_shm("make_sabotaged", deed="overwrite shm")
    (result,) = scene.play_elsewhere(partial(wrap_in_mount, "size=8m"))
    assert result.status in ("shm_exhausted", "crashed"), result.message
    assert "bus error" in result.message or "lost a worker process" in result.message


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.fault("Real SIGBUS")
def test_a_mapped_file_that_becomes_shorter_ends_the_trial_with_the_signal(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mapped").touch()
    monkeypatch.setenv("MAPPED_FILE", str(tmp_path / "mapped"))
    (result,) = hostile("make_sabotaged", make_trial(workers), deed="truncate", place="both").play()
    assert result.status in ("shm_exhausted", "crashed"), result.message
    assert "SIGBUS" in result.message or "lost a worker process" in result.message
    assert workers or "memory-mapped file became shorter" in result.message


def wrap_in_file_limit(command: list[str]) -> list[str]:
    return ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", *command]


@pytest.mark.fault("fd exhaustion")
def test_open_files_that_run_out_are_named_with_the_limit_and_the_other_strategy_which_completes() -> None:
    trials = make_trial(), make_trial(strategy="file_system", seconds=0.3)
    scene = hostile("tests.misbehaving:make_honest", *trials, step="make_hoarding_step", samples=4000)
    result, other = scene.play_elsewhere(wrap_in_file_limit)
    assert result.status == "too_many_files", result.message
    assert "ran out of open files (limit 64)" in result.message
    assert "--set sharing_strategy=file_system" in result.message
    assert other.status == "completed", other.message


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
@pytest.mark.fault("TMPDIR ≥ 80 chars")
def test_a_tmpdir_too_long_for_sockets_is_not_handed_to_the_trial(
    strategy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 90)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (result,) = hostile("tests.misbehaving:make_honest", make_trial(strategy=strategy), stall_seconds=5.0).play()
    assert tempfile.gettempdir() == str(folder)
    assert result.status == "completed", result.message


@pytest.mark.fault("Leaks, file_system", needs="mount")
def test_what_a_hung_trial_held_of_shm_is_free_before_the_next() -> None:
    trials = [make_trial(batch_size=1, strategy="file_system", seconds=10.0)] * 2
    scene = in_small_shm("make_large", *trials, stall_seconds=3.0, hang_at=40)
    results = scene.play_elsewhere(partial(wrap_in_mount, "size=8m"))
    assert [result.status for result in results] == ["stalled"] * 2, [result.message for result in results]


@pytest.mark.parametrize("deed", ["kill", "hang"])
@pytest.mark.fault("Leaks, file_system")
def test_no_name_is_left_in_shm_when_a_trial_with_file_system_has_failed(deed: str) -> None:
    before = set(Path("/dev/shm").glob("torch_*"))
    (result,) = hostile("make_sabotaged", make_trial(strategy="file_system"), stall_seconds=3.0, deed=deed).play()
    left = set(Path("/dev/shm").glob("torch_*")) - before  # those of a test in another process go when it ends
    assert result.status in ("crashed", "stalled")
    await_condition(lambda: not any(path.exists() for path in left), f"the end of {len(left)} names")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.fault("Leaks, spawn/forkserver")
def test_no_semaphore_is_left_when_a_trial_with_spawned_workers_has_hung(method: Any) -> None:
    before = set(Path("/dev/shm").glob("sem.*"))
    trial = make_trial(1, method=method)  # each spawned worker imports torch
    (result,) = hostile("tests.misbehaving:make_hangs_in_workers", trial, stall_seconds=4.0).play()
    left = set(Path("/dev/shm").glob("sem.*")) - before  # those of a test in another process go when it ends
    assert result.status == "stalled", result.message
    await_condition(lambda: not any(path.exists() for path in left), f"the end of {len(left)} semaphores")


@pytest.mark.fault("Leaks, spawn/forkserver")
def test_no_semaphore_is_left_by_a_process_that_is_killed_while_it_makes_one() -> None:
    (result,) = hostile("make_lock_that_is_left", make_trial(), stall_seconds=0.3).play()
    assert result.status == "stalled", result.message
    assert not Path("/dev/shm/sem.mp-dltune00").exists()


@pytest.mark.parametrize("batch_size", [8, 64])
@pytest.mark.fault("Container: 64 MB of shm, no capabilities, no home", needs="mount")
def test_a_run_in_a_container_without_a_home_or_capabilities_has_a_result(batch_size: int, tmp_path: Path) -> None:
    options = "--batch-size", str(batch_size), "--trials", "3", "--json"
    command = make_command(*options, dataset="tests.faults.hostile:make_large")
    script = (
        f"unset HOME USER LOGNAME; exec setpriv --bounding-set -all --inh-caps -all --no-new-privs {' '.join(command)}"
    )
    finished = run(wrap_in_mount("size=64m", ["sh", "-c", script]), cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)
    assert found["hardware"]["shm_limit_bytes"] == 64 * MIB
    words = "No number of workers is within the limits (/dev/shm: "
    assert any(words in one for one in found["result"]["warnings"]) == (batch_size == 64)
