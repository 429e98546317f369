"""What becomes of a trial whose workers die, raise, exit or hang."""

from __future__ import annotations

import re
from typing import Any

import pytest

from autotune.protocol.measurement import TrialResult
from tests.faults.stage import LIMITS, Play, Scene, probe, read_all, refuse, run, run_cli

STALL_SECONDS = 4.0


def sabotage(deed: str, *, play: Play | None = None, stall_seconds: float = 20.0, **arguments: Any) -> TrialResult:
    """Run a trial of a dataset that does one deed in a worker, the third of eight batches."""
    return run(
        "faults.hostile:make_sabotaged",
        play=play,
        stall_seconds=stall_seconds,
        arguments={"deed": deed, **arguments},
    )


@pytest.mark.fault("Worker SIGKILL (OOM-like)", needs="plain")
def test_a_worker_killed_like_by_the_oom_killer_is_named_with_what_to_reduce() -> None:
    result = sabotage("kill")
    assert result.kind == "crashed"
    assert "killed by signal: Killed" in result.message
    assert "use fewer --max-workers or a smaller --batch-size" in result.message


@pytest.mark.parametrize(("deed", "name"), [("segfault", "Segmentation fault"), ("abort", "Aborted")])
@pytest.mark.fault("Worker SEGV / ABRT", needs="plain")
def test_a_worker_that_crashes_in_native_code_is_named_by_its_signal(deed: str, name: str) -> None:
    result = sabotage(deed)
    assert result.kind == "crashed"
    assert "lost a worker process: DataLoader worker (pid" in result.message
    assert f"killed by signal: {name}. Native code that the dataset calls crashed" in result.message


@pytest.mark.parametrize(("deed", "name"), [("segfault", "SIGSEGV"), ("abort", "SIGABRT")])
@pytest.mark.fault("Worker SEGV / ABRT", needs="plain")
def test_a_training_process_that_crashes_is_named_by_its_signal(deed: str, name: str) -> None:
    result = sabotage(deed, place="main", play=Play(workers=0))
    assert (result.kind, f"was killed by {name}" in result.message) == ("crashed", True), result.message


@pytest.mark.parametrize(("deed", "code"), [("os._exit(3)", 3), ("sys.exit(7)", 7)])
@pytest.mark.fault("Worker `os._exit(3)` / `sys.exit(7)`", needs="plain")
def test_a_worker_that_exits_is_named_with_its_exit_code(deed: str, code: int) -> None:
    result = sabotage(deed)
    assert result.kind == "crashed"
    assert f"exited unexpectedly with exit code {code}" in result.message
    assert "Code of the dataset ended it: sys.exit(), os._exit()" in result.message


@pytest.mark.parametrize("deed", ["os._exit(0)", "sys.exit()", "interrupt"])
@pytest.mark.fault("Worker exits 0, or KeyboardInterrupt in getitem", needs="plain")
def test_a_worker_that_leaves_without_a_complaint_is_a_lost_worker(deed: str) -> None:
    result = sabotage(deed, timeout=1.0)  # torch's own look at its workers comes after 5 s
    assert result.kind == "crashed", result.message
    assert "lost a worker process" in result.message
    assert "exited unexpectedly" in result.message
    assert "sys.exit(), os._exit() or a KeyboardInterrupt" in result.message


@pytest.mark.parametrize("deed", ["sys.exit()", "interrupt"])
@pytest.mark.fault("Worker exits 0, or KeyboardInterrupt in getitem", needs="plain")
def test_a_dataset_that_exits_in_the_training_process_ends_the_trial_and_not_the_tuner(deed: str) -> None:
    result = sabotage(deed, place="main", play=Play(workers=0))
    assert result.kind == "workload_failed"
    assert result.message in ("raised SystemExit", "raised KeyboardInterrupt")


@pytest.mark.fault("Exception in getitem", needs="plain")
def test_an_exception_in_a_worker_is_quoted_with_its_traceback() -> None:
    result = sabotage("key error")
    assert (result.kind, result.message) == ("workload_failed", "raised KeyError: 'label'")
    assert "hostile.py" in result.details


@pytest.mark.fault("Exception in getitem", needs="plain")
def test_an_exception_that_needs_no_workers_ends_the_run_with_one_sentence() -> None:
    arguments = ("--arg", 'deed="key error"', "--arg", 'place="both"', "--arg", "samples=4000")
    finished = run_cli("faults.hostile:make_sabotaged", *arguments, "--arg", "index=300", "--quiet")
    assert finished.returncode == 2, finished.stderr
    assert "The dataset fails even without workers: it raised KeyError: 'label'" in finished.stderr
    assert finished.stdout == ""


@pytest.mark.parametrize(
    ("deed", "words", "workers"),
    [("two arguments", "the index file is damaged", 2), ("mute", "MuteError", 0)],
)
@pytest.mark.fault("Odd exception constructor", needs="plain")
def test_an_exception_that_cannot_be_rebuilt_or_printed_is_still_named(deed: str, words: str, workers: int) -> None:
    result = sabotage(deed, place="both", play=Play(workers=workers))
    assert result.kind == "workload_failed"
    assert words in result.message


@pytest.mark.fault("Exception class not importable", needs="plain")
def test_an_exception_that_cannot_be_sent_ends_in_a_stall_that_quotes_the_reason() -> None:
    result = sabotage("local error", stall_seconds=STALL_SECONDS)
    assert result.kind == "stalled"
    assert "made no progress for 4." in result.message
    assert "(limit 4.0 s)" in result.message
    assert "Can't pickle local object" in result.message


@pytest.mark.fault("Batch unpicklable", needs="plain")
def test_a_batch_that_cannot_be_sent_ends_in_a_stall_that_quotes_the_reason() -> None:
    result = run("misbehaving:make_unpicklable", stall_seconds=STALL_SECONDS)
    assert result.kind == "stalled"
    assert "(limit 4.0 s)" in result.message
    assert "cannot pickle 'generator' object" in result.message


@pytest.mark.fault("Batch unpicklable", needs="plain")
def test_a_stall_over_a_pickle_says_what_to_deliver() -> None:
    result = run("misbehaving:make_unpicklable", stall_seconds=STALL_SECONDS)
    assert "pytorch/pytorch#142884" in result.message


@pytest.mark.fault("Hung getitem", needs="plain")
def test_a_worker_that_never_comes_back_is_ended_at_the_limit() -> None:
    result = sabotage("hang", stall_seconds=STALL_SECONDS)
    assert result.kind == "stalled"
    assert "(limit 4.0 s)" in result.message


@pytest.mark.fault("Hung getitem", needs="plain")
def test_the_worker_that_blocks_the_others_is_named_with_its_line() -> None:
    result = sabotage("hang", stall_seconds=STALL_SECONDS)
    assert re.search(r"worker \d of 2 hangs in `_hang` at hostile\.py:\d+: `time\.sleep\(3600\)`", result.message)
    assert "the training process" in result.details


@pytest.mark.fault("Hung getitem", needs="plain")
def test_a_spawned_worker_that_hangs_is_named_with_its_line() -> None:
    result = sabotage("hang", play=Play(method="spawn"), stall_seconds=2 * STALL_SECONDS)
    assert re.search(r"worker \d of 2 hangs in `_hang` at hostile\.py:\d+: `time\.sleep\(3600\)`", result.message)


@pytest.mark.fault("Hung getitem", needs="plain")
def test_without_workers_the_training_process_is_told_to_stand_there() -> None:
    result = sabotage("hang", place="both", play=Play(workers=0), stall_seconds=STALL_SECONDS)
    assert "the training process hangs in `_hang` at hostile.py" in result.message


@pytest.mark.fault("Hung getitem", needs="plain")
def test_a_worker_that_outlasts_the_loaders_own_timeout_is_a_stall_too() -> None:
    result = sabotage("hang", timeout=1.0)
    assert result.kind == "stalled"
    assert "DataLoader timed out after 1" in result.message


@pytest.mark.fault("Fork + held lock", needs="plain")
def test_a_lock_held_across_the_fork_ends_in_a_stall() -> None:
    result = run("faults.hostile:make_locked", stall_seconds=STALL_SECONDS)
    assert result.kind == "stalled"
    assert "hangs in `__getitem__` at hostile.py" in result.message
    assert "`with _LOCK:`" in result.message
    assert "a lock or a thread that the training process had when it forked" in result.message


@pytest.mark.fault("Fork + held lock", needs="plain")
def test_spawned_workers_know_nothing_of_a_lock_that_the_training_process_holds() -> None:
    assert run("faults.hostile:make_locked", play=Play(method="spawn")).kind == "completed"


@pytest.mark.fault("Fork after OpenMP", needs="plain")
def test_workers_that_compute_on_two_threads_after_the_training_process_did_end_in_a_stall() -> None:
    result = run("faults.hostile:make_parallel", arguments={"parallel_before": True}, stall_seconds=STALL_SECONDS)
    assert result.kind == "stalled"
    assert "Threads of OpenMP" in result.message


@pytest.mark.fault("Fork after OpenMP", needs="plain")
def test_spawned_workers_may_compute_on_two_threads_whatever_came_before() -> None:
    result = run("faults.hostile:make_parallel", arguments={"parallel_before": True}, play=Play(method="spawn"))
    assert result.kind == "completed", result.message


@pytest.mark.fault("Fork after OpenMP", needs="plain")
def test_dltune_itself_computes_nothing_on_two_threads_before_workers_exist() -> None:
    with Scene(factory="faults.hostile:make_parallel", stall_seconds=6.0).open_runner() as runner:
        runner.probe((8, 8), LIMITS)
        result = runner.run(Play().to_request())
    assert result.kind == "completed", result.message


@pytest.mark.fault("Fork after OpenMP", needs="plain")
def test_a_trial_without_workers_does_not_spoil_those_that_follow() -> None:
    scene = Scene(
        factory="faults.hostile:make_parallel",
        plays=(Play(workers=0), Play(workers=2)),
        stall_seconds=STALL_SECONDS,
    )
    assert [result.kind for result in scene.play()] == ["completed", "completed"]


@pytest.mark.fault("Loader inside daemonic process", needs="plain")
def test_a_dataset_that_starts_processes_in_a_worker_is_told_that_it_may_not() -> None:
    result = sabotage("start a process")
    assert result.kind == "workload_failed"
    assert "daemonic processes are not allowed to have children" in result.message
    assert "A worker must not start processes" in result.message


@pytest.mark.fault("Unpicklable dataset, spawn", needs="plain")
def test_a_dataset_that_cannot_be_pickled_fails_with_spawned_workers_and_says_why() -> None:
    result = run("faults.hostile:make_with_lambda", play=Play(method="spawn"))
    assert result.kind == "workload_failed"
    assert "pickle" in result.message
    assert "leave the start method at fork" in result.message


@pytest.mark.fault("Unpicklable dataset, spawn", needs="plain")
def test_a_dataset_that_cannot_be_pickled_works_without_workers_and_with_forked_ones() -> None:
    scene = Scene(factory="faults.hostile:make_with_lambda", plays=(Play(workers=0), Play(method="fork")))
    assert [result.kind for result in scene.play()] == ["completed", "completed"]


DATA_MODULE = """
import torch
from torch.utils.data import Dataset

class Data(Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, index):
        return torch.full((4,), float(index))

def make():
    return Data()
"""


@pytest.mark.fault("Factory loaded via `spec_from_file_location`", needs="plain")
def test_a_users_module_is_imported_by_its_real_name_so_that_spawned_workers_find_it(tmp_path: Any) -> None:
    (tmp_path / "user_factory.py").write_text(DATA_MODULE)
    result = run("user_factory:make", working_dir=str(tmp_path), play=Play(method="spawn"))
    assert result.kind == "completed", result.message


@pytest.mark.parametrize(("registered", "kind"), [(False, "workload_failed"), (True, "crashed")])
@pytest.mark.fault("Factory loaded via `spec_from_file_location`", needs="plain")
def test_a_module_that_spawned_workers_cannot_import_is_named(registered: bool, kind: str, tmp_path: Any) -> None:
    path = tmp_path / "data.py"
    path.write_text(DATA_MODULE)
    arguments = {"path": str(path), "registered": registered}
    result = run("faults.hostile:make_from_path", arguments=arguments, play=Play(method="spawn"))
    assert result.kind == kind, result.message
    expected = "imported by their names" if kind == "workload_failed" else "could not be started"
    assert expected in result.message


@pytest.mark.fault("Worker SEGV / ABRT", needs="plain")
def test_what_a_crashing_worker_printed_is_kept() -> None:
    result = sabotage("segfault")
    assert "Unexpected segmentation fault encountered in worker" in result.details
    assert "\0" not in result.details


@pytest.mark.fault("Worker SIGKILL (OOM-like)", needs="plain")
def test_a_failure_in_the_probe_ends_in_one_sentence_with_the_traceback_before_it() -> None:
    arguments = {"deed": "key error", "place": "both", "index": 3}
    words = read_all(refuse("faults.hostile:make_sabotaged", arguments=arguments))
    assert "KeyError: 'label'" in words
    assert "hostile.py" in words


@pytest.mark.fault("Worker SIGKILL (OOM-like)", needs="plain")
def test_workers_that_die_in_the_probe_do_not_keep_it_from_its_answer() -> None:
    assert probe("misbehaving:make_kills_its_worker").samples == 64
