"""Datasets, factories and workers that fail, hang or lie in real processes: each is diagnosed, and nothing is left."""

from __future__ import annotations

import re
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from autotune.config import MAX_TEXT_LENGTH
from autotune.protocol.messages import TrialRequest
from autotune.system.procfs import LOG_FILE
from tests.conftest import list_trial_processes
from tests.faults.conftest import ROWS
from tests.faults.hostile import LIES
from tests.faults.stage import LIMITS, MIB, ROOT, Scene, hostile, is_running, make_command, make_trial, run

STALL_SECONDS = 4.0
TESTS = ROOT / "tests"
ALONE, SPAWN = make_trial(0), make_trial(1, method="spawn")  # each spawned worker imports torch
FAILED = "workload_failed"
RAISES = "Factory raises / missing import / SyntaxError / RecursionError / `sys.exit(0)`"
NO_MEMORY = hostile("tests.misbehaving:make_honest", step="make_step_without_memory")

hanging = partial(hostile, stall_seconds=STALL_SECONDS)


def sabotage(deed: str, *trials: TrialRequest, **arguments: Any) -> Scene:
    """Make a scene of a dataset that does one deed in a worker, in the third of eight batches."""
    return hostile("make_sabotaged", *trials, deed=deed, **arguments)


def sabotage_main(deed: str) -> Scene:
    return sabotage(deed, ALONE, place="main")


def list_cases(rows: dict[str, list[Any]]) -> list[Any]:
    """Return a parameter set for each case of each row of the table of faults."""
    marks = {row: pytest.mark.fault(row) for row in rows}
    return [pytest.param(*one, marks=marks[row], id=row) for row, cases in rows.items() for one in cases]


FAILING = {  # the parts of the message, as in a doctest
    "Worker SIGKILL (OOM-like)": [
        ("crashed", sabotage("kill"), "killed by signal: Killed ... fewer --max-workers or a smaller --batch-size")
    ],
    "Worker SEGV / ABRT": [
        ("crashed", sabotage("segfault"), "lost a worker process: DataLoader ... Segmentation fault. Native code"),
        ("crashed", sabotage("abort"), "lost a worker process: DataLoader ... Aborted. Native code"),
        ("crashed", sabotage_main("segfault"), "was killed by SIGSEGV"),
        ("crashed", sabotage_main("abort"), "was killed by SIGABRT"),
    ],
    "Worker `os._exit(3)` / `sys.exit(7)`": [
        ("crashed", sabotage("os._exit(3)"), "with exit code 3 ... Code of the dataset ended it"),
        ("crashed", sabotage("sys.exit(7)"), "with exit code 7 ... Code of the dataset ended it"),
    ],
    "Worker exits 0, or KeyboardInterrupt in getitem": [
        *(  # torch itself looks at its workers after 5 s
            ("crashed", sabotage(deed, timeout=3.0), "exited unexpectedly ... or a KeyboardInterrupt")
            for deed in ("os._exit(0)", "sys.exit()", "interrupt")
        ),
        (FAILED, sabotage_main("sys.exit()"), "raised SystemExit"),
        (FAILED, sabotage_main("interrupt"), "raised KeyboardInterrupt"),
    ],
    "Exception in getitem": [(FAILED, sabotage("key error"), "raised KeyError: 'label'")],
    "Odd exception constructor": [
        (FAILED, sabotage("two arguments"), "TwoArgumentsError: (7, 'the index file is damaged')"),
        (FAILED, sabotage_main("mute"), "MuteError"),
    ],
    "Exception class not importable": [
        (
            FAILED,
            sabotage("local error", *config),
            "raised tests.faults.hostile._raise_local.<locals>.LocalError: its class cannot be imported ... #142884",
        )
        for config in ((), (SPAWN,))
    ],
    "Batch unpicklable": [
        (
            FAILED,
            hostile("tests.misbehaving:make_unpicklable"),
            "raised TypeError: cannot pickle 'generator' ... #142884",
        )
    ],
    "Hung getitem": [
        ("stalled", sabotage("hang", timeout=1.0), "DataLoader timed out after 1"),
        (
            "stalled",
            sabotage("hang", ALONE, stall_seconds=4.0, place="both"),
            "training process hangs in `hang` at misbehaving.py",
        ),
    ],
    "Fork + held lock": [
        ("stalled", hanging("make_locked"), "`_take_lock` at hostile.py ... `with _LOCK:` ... a lock or a thread")
    ],
    "Fork after OpenMP": [("stalled", hanging("make_parallel", parallel_before=True), "threads of OpenMP")],
    "Loader inside daemonic process": [
        (FAILED, sabotage("start a process"), "daemonic processes ... A worker must not start processes")
    ],
    "Unpicklable dataset, spawn": [
        (FAILED, hostile("make", SPAWN, name="lambda"), "pickle ... --set multiprocessing_context=fork")
    ],
    "Factory loaded via `spec_from_file_location`": [
        (FAILED, hostile("make_from_path", SPAWN, registered=False), "imported by their names"),
        ("crashed", hostile("make_from_path", SPAWN, registered=True), "could not be started"),
    ],
    "StopIteration in map dataset": [
        (FAILED, sabotage("stop", play, place="both"), "ended an epoch after 2 of ... A StopIteration")
        for play in (make_trial(), ALONE)
    ],
    "Iterable that is not sharded": [
        (
            FAILED,
            hostile(factory, make_trial(3), is_probed=True),
            "each of its workers returns all the data ... get_worker_info()",
        )
        for factory in ("tests.misbehaving:make_unsharded", "make_shuffled_unsharded")
    ],
    "Epoch that ends early": [
        (FAILED, hostile("make_sharded_twice", is_probed=True), "32 samples of a dataset of 64 ... leave some out"),
        (FAILED, hostile("make_only_once", ALONE), "ended an epoch after 0 batches ... in every __iter__"),
    ],
    "Batch needs grad": [(FAILED, hostile("make", name="grad"), "automatic differentiation ... sample.detach()")],
    "Ragged / None / object": [(FAILED, hostile("make", name="ragged"), "collate_fn=...")],
    "Empty / 0 batches / infinite iterable": [
        (FAILED, hostile("make", name="nothing"), "delivered no batch at all"),
        (FAILED, hostile("make", ALONE, name="dropped"), "delivered no batch at all"),
    ],
    "CUDA OOM / pinned failure": [
        ("out_of_memory", sabotage("allocator"), "ran out of device memory: it asked for 2.00 GiB more"),
        ("out_of_memory", sabotage_main("driver"), "ran out of device memory. Use a smaller --batch-size"),
        ("out_of_memory", sabotage_main("pinning without memory"), "ran out of page-locked memory"),
        ("out_of_memory", NO_MEMORY, "ran out of device memory"),
        (FAILED, sabotage_main("sticky"), "an illegal memory access"),  # no device is in use
        (FAILED, sabotage_main("lost"), "uncorrectable ECC error"),
        (FAILED, sabotage_main("pinning"), "CUDA error: invalid argument ... --set pin_memory=false"),
    ],
    "SIGTERM trial main only": [
        ("crashed", sabotage("terminate main"), "was killed by SIGTERM: another process ended it")
    ],
    "RLIMIT_AS": [("out_of_memory", hostile("make_short_of_addresses"), "it asked for 512 MiB more ... --batch-size")],
    "Hostile files": [("crashed", hostile("make_liar", ALONE, stall_seconds=30.0, lie=lie), "") for lie in LIES],
}


@pytest.mark.parametrize(("kind", "scene", "text"), list_cases(FAILING))
def test_a_hostile_dataset_fails_its_trial_with_a_diagnosis(kind: str, scene: Scene, text: str) -> None:
    (result,) = scene.play()
    assert result.status == kind, result.message
    assert [part for part in text.split(" ... ") if part not in result.message] == [], result.message
    assert len(result.message) < 2 * MAX_TEXT_LENGTH


COMPLETING: dict[str, list[Any]] = {
    "Fork + held lock": [(hostile("make_locked", SPAWN),)],
    "Fork after OpenMP": [
        (hostile("make_parallel", SPAWN, parallel_before=True),),
        (hanging("make_parallel", ALONE, make_trial()),),
        (hostile("make_parallel", stall_seconds=6.0, is_probed=True),),  # on one thread
    ],
    "Unpicklable dataset, spawn": [(hostile("make", ALONE, make_trial(method="fork"), name="lambda"),)],
    "Factory loaded via `spec_from_file_location`": [(hostile("misbehaving:make_honest", SPAWN, working_dir=TESTS),)],
    "Batch needs grad": [(hostile("make", ALONE, name="grad"),)],
    "Non-daemon thread, `atexit` sleep, ignored SIGTERM": [
        (hostile("make_unwilling_to_end", play),) for play in (ALONE, make_trial())
    ],
    "Factory forks a child": [
        (hostile("tests.misbehaving:make_forked"),),
        *((hostile("make_helped", ALONE, method=method),) for method in ("fork", "spawn")),
    ],
}


@pytest.mark.parametrize("scene", list_cases(COMPLETING))
def test_a_dataset_that_misbehaves_only_elsewhere_completes_its_trials(scene: Scene) -> None:
    assert {result.status for result in scene.play()} == {"completed"}


REFUSED: dict[str, list[Any]] = {
    "`__getitems__` of the wrong length": [
        (hostile("make", name="short queries, collated"), "4 samples for 8 indices")
    ],
    "Epoch that ends early": [(hostile("make_only_once"), "start again in every __iter__")],
    "Ragged / None / object": [
        (hostile("make", name=name), f"{text} ... collate_fn=... ... collate.py")
        for name, text in (("ragged", "equal size"), ("none", "NoneType"), ("object", "'object'"))
    ],
    "Empty / 0 batches / infinite iterable": [
        (hostile("tests.misbehaving:make_empty"), "of length 0: there is nothing to load"),
        (hostile("make", name="nothing"), "delivered no batch at all"),
    ],
    "Factory `os._exit(0)` / closes all fds": [
        (hostile("tests.misbehaving:make_hard_exit"), "its process exited with code 0 without a result"),
        (hostile("make_closed"), "its process"),
    ],
    "Factory forks a child": [
        (hostile("make_fork_that_stays", stall_seconds=30.0), "exited with code 0 without a result")
    ],
    RAISES: [(hostile("tests.faults.no_such_module:make"), "No module named 'tests.faults.no_such_module'")],
    "Factory kills group / parent": [(hostile("make_group_killer"), "was killed by SIGKILL")],
    "Exception in getitem": [(sabotage("key error", place="both", index=3), "'label' ... misbehaving.py")],
    "CUDA OOM / pinned failure": [(NO_MEMORY, "make_step_without_memory) failed on a batch ... a smaller --batch")],
}


@pytest.mark.parametrize(("scene", "text"), list_cases(REFUSED))
def test_a_workload_that_cannot_be_profiled_is_refused_with_the_reason(scene: Scene, text: str) -> None:
    shown = scene.refuse()
    assert [part for part in text.split(" ... ") if part not in shown] == [], shown


# Workers


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.fault("Hung getitem")
def test_the_worker_that_blocks_the_others_is_named_with_its_line(method: Any) -> None:
    stall_seconds = STALL_SECONDS if method == "fork" else 2 * STALL_SECONDS
    (result,) = sabotage("hang", make_trial(method=method, seconds=3.0), stall_seconds=stall_seconds).play()
    assert result.status == "stalled"
    assert "(limit " in result.message
    line = r"worker \d of 2 hangs in `hang` at misbehaving\.py:\d+: `time\.sleep\(3600\)`"
    assert re.search(line, result.message), result.message
    assert "the training process" in result.details


@pytest.mark.fault("Exception in getitem")
def test_an_exception_has_the_same_cause_and_line_in_a_worker_and_in_the_training_process() -> None:
    results = sabotage("key error", make_trial(), ALONE, place="both").play()
    assert re.fullmatch(r"KeyError at misbehaving\.py:\d+", results[0].cause)
    assert results[0].cause == results[1].cause
    assert all("misbehaving.py" in result.details for result in results)


@pytest.mark.fault("Worker SEGV / ABRT")
def test_the_output_of_a_crashing_worker_is_kept() -> None:
    (result,) = sabotage("segfault").play()
    assert "Unexpected segmentation fault encountered in worker" in result.details
    assert "\0" not in result.details


@pytest.mark.fault("Worker SIGKILL (OOM-like)")
def test_workers_that_die_in_the_probe_do_not_prevent_its_result() -> None:
    assert hostile("tests.misbehaving:make_kills_its_worker").probe().samples == 64


@pytest.mark.parametrize(
    ("library", "advice"),
    [
        ("tokenizers", "TOKENIZERS_PARALLELISM=false"),
        ("polars", "Polars' threads do not survive a fork"),
    ],
)
@pytest.mark.fault("Fork after a library's threads")
def test_a_library_that_does_not_survive_a_fork_is_named_with_the_fix(
    library: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(library)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")  # else tokenizers use one thread after a fork
    (result,) = hostile(f"make_{library}", stall_seconds=STALL_SECONDS).play()
    assert result.status == "stalled", result.message
    assert advice in result.message
    assert "hangs in" in result.message


@pytest.mark.fault("Fork after a library's threads")
def test_a_library_that_only_workers_would_use_is_not_used_before_they_are_forked() -> None:
    pytest.importorskip("polars")
    results = hostile("make_polars", make_trial(2), ALONE, make_trial(2), is_probed=True, before=False).play()
    assert [result.status for result in results] == ["completed"] * 3


# Data


KEY_ERROR = ("--arg", 'deed="key error"', "--arg", 'place="both"', "--arg", "samples=4000", "--arg", "index=300")
ENDED: dict[str, list[Any]] = {
    "Exception in getitem": [
        ("tests.faults.hostile:make_sabotaged", KEY_ERROR, "in the training process failed: KeyError: 'label'"),
    ],
    "StopIteration in map dataset": [("tests.misbehaving:make_ends_early", (), "StopIteration")],
}


@pytest.mark.parametrize(("factory", "arguments", "text"), list_cases(ENDED))
def test_a_dataset_that_fails_without_workers_ends_the_run(factory: str, arguments: list[str], text: str) -> None:
    finished = run(make_command(*arguments, "--trials", "3", "--quiet", dataset=factory))
    assert finished.returncode == 2, finished.stderr
    assert text in finished.stderr
    assert finished.stdout == ""


@pytest.mark.fault("Iterable that is not sharded")
def test_a_run_over_unsharded_data_stays_below_two_workers_and_says_why() -> None:
    options = ("--max-workers", "4", "--trials", "1")
    finished = run(make_command(*options, dataset="tests.faults.hostile:make_shuffled_unsharded"))
    assert finished.returncode == 0, finished.stderr
    assert "Each worker returns all the data, so that dltune tries at most one" in " ".join(finished.stdout.split())


@pytest.mark.fault("Empty / 0 batches / infinite iterable")
def test_a_dataset_without_an_end_is_measured_for_the_time_of_a_trial() -> None:
    with hostile("make", name="endless").open_runner() as runner:
        profile = runner.probe((8, 8), LIMITS)
        result = runner.run(make_trial(seconds=0.5))
    assert (profile.samples, profile.workers_duplicate_data) == (None, False)
    assert result.status == "completed", result.message
    assert result.measurement is not None
    assert result.measurement.epoch_batches is None


# Factories


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("def make():\n    raise ValueError('no such bucket')\n", "ValueError: no such bucket"),
        ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("def make(:\n    pass\n", "SyntaxError"),
        ("def make():\n    return make()\n", "RecursionError: maximum recursion depth exceeded"),
        ("import sys\nsys.exit(0)\n", '__name__ == "__main__"'),
        ("import argparse\n\ndef make():\n    argparse.ArgumentParser().parse_args(['--root'])\n", "--root"),
        ("def make():\n    class Strange(BaseException):\n        pass\n    raise Strange('odd')\n", "Strange: odd"),
    ],
)
@pytest.mark.fault(RAISES)
def test_a_module_that_fails_is_quoted_with_the_users_line(code: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "user_module.py").write_text(code)
    shown = hostile("user_module:make", working_dir=tmp_path).refuse()
    assert text in shown
    assert "user_module.py" in shown
    assert "autotune/child" not in shown


@pytest.mark.fault("Factory prints junk, fake JSON, 100 MB")
def test_a_flood_of_output_neither_fills_the_disk_nor_changes_the_result() -> None:
    with hostile("make_flood").open_runner() as runner:
        result = runner.run(make_trial())
        sizes = [log.stat().st_size for log in Path(tempfile.gettempdir()).glob(f"dltune-*/{LOG_FILE}")]
    assert result.status == "completed", result.message
    assert sizes
    assert max(sizes) < 8 * MIB


@pytest.mark.parametrize(("crashing", "kind"), [(False, "completed"), (True, "crashed")])
@pytest.mark.fault("Factory forks a child")
def test_a_process_that_hides_by_clearing_its_environment_ends_with_the_trial(
    crashing: bool, kind: str, tmp_path: Path
) -> None:
    seconds = f"36{tmp_path.stat().st_ino}"  # unique: in a namespace, the number of the process has another meaning
    (result,) = hostile("make_hidden", ALONE, crashing=crashing, seconds=seconds).play()
    assert result.status == kind
    assert not is_running("sleep", seconds)


@pytest.mark.fault("Factory kills group / parent")
def test_a_factory_that_terminates_its_parent_ends_the_trial_at_most(workdir: Path) -> None:
    finished = run(make_command(dataset="tests.faults.hostile:make_parent_killer"))
    assert finished.returncode == 2, finished.stderr
    assert "RuntimeError: the parent lives" in finished.stderr or "was killed by SIGTERM" in finished.stderr
    assert list_trial_processes() == []
    assert not (workdir / "dltune.json").exists()


def test_every_fault_has_a_test() -> None:
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    assert [row for row in ROWS if not any(f'"{row}"' in text for text in texts)] == []
