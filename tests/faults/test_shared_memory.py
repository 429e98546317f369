"""What becomes of trials that run out of what workers share: /dev/shm and its names, descriptors, sockets."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.faults.capabilities import wrap_in_shm
from tests.faults.stage import LIMITS, MIB, Play, Review, Scene, await_condition, run, run_cli, run_elsewhere

SMALL = LIMITS.model_copy(update={"shm_bytes": 8 * MIB})


def run_in_small_shm(factory: str, options: str = "size=8m", **scene: Any) -> Review:
    """Play a scene where /dev/shm is a tmpfs with these options."""
    made = Scene(factory=factory, **{"budgets": SMALL, **scene})
    return run_elsewhere(made, lambda command: wrap_in_shm(options, command))


@pytest.mark.fault("shm full, default collate", needs="mount")
def test_a_full_shm_is_named_with_its_size_and_how_to_get_more() -> None:
    review = run_in_small_shm("faults.hostile:make_large")
    (result,) = review.results
    assert result.kind == "shm_exhausted", result.message
    assert re.search(r"/dev/shm.* [\d.]+ MiB|[\d.]+ MiB .*/dev/shm", result.message)
    assert "--shm-size" in result.message, result.message
    assert review.left == ()


@pytest.mark.fault("shm full, custom collate", needs="mount")
def test_a_shm_that_fills_while_a_batch_is_sent_does_not_hang_the_run() -> None:
    review = run_in_small_shm("faults.hostile:make_large_collated", stall_seconds=4.0)
    (result,) = review.results
    assert result.kind in ("stalled", "shm_exhausted"), result.message
    assert "shared memory" in result.message or "/dev/shm" in result.message
    assert review.left == ()


@pytest.mark.fault("shm inodes exhausted", needs="mount")
def test_a_shm_without_names_left_is_not_blamed_on_its_size() -> None:
    review = run_in_small_shm(
        "faults.hostile:make_given",
        "size=8m,nr_inodes=20",
        arguments={"samples": "many tensors"},
    )
    (result,) = review.results
    assert result.kind == "shm_exhausted", result.message
    assert "names in /dev/shm" in result.message
    assert "nr_inodes=" in result.message
    assert review.left == ()


@pytest.mark.fault("/dev/shm read-only", needs="mount")
def test_a_run_with_a_read_only_shm_keeps_workers_off_and_says_why(workdir: Path) -> None:
    finished = run_cli(
        "misbehaving:make_honest",
        "--trials",
        "3",
        "-v",
        "--json",
        wrap=lambda command: wrap_in_shm("ro,size=8m", command),
    )
    assert finished.returncode == 0, finished.stderr
    assert "num_workers stays at 0: workers need /dev/shm, which is not writable" in " ".join(finished.stderr.split())
    assert json.loads(finished.stdout)["config"]["dataloader"]["num_workers"] == 0


@pytest.mark.fault("/dev/shm read-only", needs="mount")
def test_a_trial_with_workers_and_a_read_only_shm_is_named_with_the_way_out() -> None:
    (result,) = run_in_small_shm("misbehaving:make_honest", "ro,size=8m").results
    assert result.kind == "shm_exhausted", result.message
    assert "/dev/shm: it is mounted read-only" in result.message
    assert "--max-workers 0" in result.message


@pytest.mark.fault("Real SIGBUS", needs="mount")
def test_a_worker_that_writes_beyond_shm_is_named_with_both_causes_of_a_bus_error() -> None:
    review = run_in_small_shm("faults.hostile:make_sabotaged", arguments={"deed": "overwrite shm"})
    (result,) = review.results
    assert result.kind in ("shm_exhausted", "crashed"), result.message
    assert "bus error" in result.message or "lost a worker process" in result.message
    assert review.left == ()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.fault("Real SIGBUS", needs="plain")
def test_a_mapped_file_that_becomes_shorter_ends_the_trial_with_the_signal(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mapped").touch()
    monkeypatch.setenv("MAPPED_FILE", str(tmp_path / "mapped"))
    arguments = {"deed": "truncate", "place": "both"}
    result = run("faults.hostile:make_sabotaged", arguments=arguments, play=Play(workers=workers))
    assert result.kind in ("shm_exhausted", "crashed"), result.message
    assert "SIGBUS" in result.message or "lost a worker process" in result.message
    if workers == 0:
        assert "memory-mapped file became shorter" in result.message


def wrap_in_file_limit(command: list[str]) -> list[str]:
    return ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", *command]


@pytest.mark.fault("fd exhaustion", needs="plain")
def test_open_files_that_run_out_are_named_with_the_limit_and_the_other_strategy() -> None:
    scene = Scene(factory="faults.hostile:make_many_samples", step="faults.hostile:make_hoarding_step")
    review = run_elsewhere(scene, wrap_in_file_limit)
    (result,) = review.results
    assert result.kind == "too_many_files", result.message
    assert "ran out of open files (limit 64)" in result.message
    assert "--set sharing_strategy=file_system" in result.message
    assert review.left == ()


@pytest.mark.fault("fd exhaustion", needs="plain")
def test_the_other_strategy_gets_by_with_few_open_files() -> None:
    play = Play(strategy="file_system", seconds=0.3)
    scene = Scene(
        factory="faults.hostile:make_many_samples",
        step="faults.hostile:make_hoarding_step",
        plays=(play,),
    )
    (result,) = run_elsewhere(scene, wrap_in_file_limit).results
    assert result.kind == "completed", result.message


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
@pytest.mark.fault("TMPDIR ≥ 80 chars", needs="plain")
def test_a_tmpdir_too_long_for_sockets_is_not_handed_to_the_trial(
    strategy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 90)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    result = run("misbehaving:make_honest", play=Play(strategy=strategy), stall_seconds=5.0)
    assert tempfile.gettempdir() == str(folder)
    assert result.kind == "completed", result.message


@pytest.mark.fault("Leaks, file_system", needs="mount")
def test_what_a_hung_trial_held_of_shm_is_free_before_the_next() -> None:
    review = run_in_small_shm(
        "faults.hostile:make_large",
        arguments={"hang_at": 40},
        stall_seconds=3.0,
        plays=tuple(Play(batch_size=1, strategy="file_system", seconds=10.0) for _ in range(2)),
    )
    assert [result.kind for result in review.results] == ["stalled"] * 2, [r.message for r in review.results]
    assert review.left == ()


@pytest.mark.parametrize("deed", ["kill", "hang"])
@pytest.mark.fault("Leaks, file_system", needs="plain")
def test_no_name_is_left_in_shm_when_a_trial_with_file_system_has_failed(deed: str) -> None:
    play = Play(strategy="file_system")
    arguments = {"deed": deed}
    result = run("faults.hostile:make_sabotaged", arguments=arguments, play=play, stall_seconds=3.0)
    assert result.kind in ("crashed", "stalled")
    assert [path.name for path in Path("/dev/shm").glob("torch_*")] == []


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.fault("Leaks, spawn/forkserver", needs="plain")
def test_no_semaphore_is_left_when_a_trial_with_spawned_workers_has_hung(method: str) -> None:
    before = set(Path("/dev/shm").glob("sem.*"))
    result = run("faults.hostile:make_hanging_workers", play=Play(method=method), stall_seconds=4.0)
    left = set(Path("/dev/shm").glob("sem.*")) - before  # those of a test in another process go when it ends
    assert result.kind == "stalled", result.message
    await_condition(lambda: not any(path.exists() for path in left), f"the end of {len(left)} semaphores")
