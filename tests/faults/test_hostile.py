"""Datasets, factories and workers that fail, hang or lie in real processes: each is diagnosed, and nothing is left."""

from __future__ import annotations

import re
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.config import MAX_TEXT_LENGTH
from autotune.errors import WorkloadError
from tests.faults.hostile import LIES
from tests.faults.stage import LIMITS, MIB, Play, Scene, list_trial_processes, probe, read_all, refuse, run, run_cli

STALL_SECONDS = 4.0
ALONE, SPAWN = Play(workers=0), Play(method="spawn")
RAISES = "Factory raises / missing import / SyntaxError / RecursionError / `sys.exit(0)`"
NO_MEMORY = Scene(factory="misbehaving:make_honest", step="faults.hostile:make_step_without_memory")


def hostile(factory: str, *plays: Play, stall_seconds: float = 20.0, probed: bool = False, **arguments: Any) -> Scene:
    """Describe trials of a factory in `hostile`, or in the module that it names; two workers if no play is given."""
    name = factory if ":" in factory else f"faults.hostile:{factory}"
    return Scene(
        factory=name, arguments=arguments, plays=plays or (Play(),), stall_seconds=stall_seconds, probed=probed
    )


hanging = partial(hostile, stall_seconds=STALL_SECONDS)


def sabotage(deed: str, *plays: Play, **arguments: Any) -> Scene:
    """Describe trials of a dataset that does one deed in a worker, in the third of eight batches."""
    return hostile("make_sabotaged", *plays, deed=deed, **arguments)


def sabotage_main(deed: str) -> Scene:
    return sabotage(deed, ALONE, place="main")


def list_cases(rows: dict[str, list[Any]]) -> list[Any]:
    """Return a parameter set for each case of each row of the table of faults."""
    marks = {row: pytest.mark.fault(row, needs="plain") for row in rows}
    return [pytest.param(*one, marks=marks[row], id=row) for row, cases in rows.items() for one in cases]


FAILING = {  # the parts of the message, as in a doctest
    "Worker SIGKILL (OOM-like)": [
        ("crashed", sabotage("kill"), "killed by signal: Killed ... use fewer --max-workers or a smaller --batch-size"),
    ],
    "Worker SEGV / ABRT": [
        ("crashed", sabotage("segfault"), "lost a worker process: DataLoader ... Segmentation fault. Native code"),
        ("crashed", sabotage("abort"), "lost a worker process: DataLoader ... Aborted. Native code that the dataset"),
        ("crashed", sabotage_main("segfault"), "was killed by SIGSEGV"),
        ("crashed", sabotage_main("abort"), "was killed by SIGABRT"),
    ],
    "Worker `os._exit(3)` / `sys.exit(7)`": [
        ("crashed", sabotage("os._exit(3)"), "exited unexpectedly with exit code 3 ... Code of the dataset ended it"),
        ("crashed", sabotage("sys.exit(7)"), "exited unexpectedly with exit code 7 ... Code of the dataset ended it"),
    ],
    "Worker exits 0, or KeyboardInterrupt in getitem": [
        *(  # torch itself looks at its workers after 5 s
            ("crashed", sabotage(deed, timeout=1.0), "lost a worker ... exited unexpectedly ... or a KeyboardInterrupt")
            for deed in ("os._exit(0)", "sys.exit()", "interrupt")
        ),
        ("workload_failed", sabotage_main("sys.exit()"), "raised SystemExit"),
        ("workload_failed", sabotage_main("interrupt"), "raised KeyboardInterrupt"),
    ],
    "Exception in getitem": [("workload_failed", sabotage("key error"), "raised KeyError: 'label'")],
    "Odd exception constructor": [
        ("workload_failed", sabotage("two arguments"), "TwoArgumentsError: (7, 'the index file is damaged')"),
        ("workload_failed", sabotage_main("mute"), "MuteError"),
    ],
    "Exception class not importable": [
        (
            "stalled",
            hanging("make_sabotaged", deed="local error"),
            "no progress for 4. ... (limit 4.0 s) ... Can't pickle",
        ),
    ],
    "Batch unpicklable": [
        ("stalled", hanging("misbehaving:make_unpicklable"), "cannot pickle 'generator' ... pytorch/pytorch#142884"),
    ],
    "Hung getitem": [
        ("stalled", sabotage("hang", timeout=1.0), "DataLoader timed out after 1"),
        (
            "stalled",
            hanging("make_sabotaged", ALONE, deed="hang", place="both"),
            "the training process hangs in `_hang` at hostile.py",
        ),
    ],
    "Fork + held lock": [
        (
            "stalled",
            hanging("make_locked"),
            "hangs in `_take_lock` at hostile.py ... `with _LOCK:` ... a lock or a thread that the training process",
        ),
    ],
    "Fork after OpenMP": [("stalled", hanging("make_parallel", parallel_before=True), "Threads of OpenMP")],
    "Loader inside daemonic process": [
        (
            "workload_failed",
            sabotage("start a process"),
            "daemonic processes are not allowed to have children ... A worker must not start processes",
        ),
    ],
    "Unpicklable dataset, spawn": [
        ("workload_failed", hostile("make_with_lambda", SPAWN), "pickle ... leave the start method at fork"),
    ],
    "StopIteration in map dataset": [
        (
            "workload_failed",
            sabotage("stop", play, place="both"),
            "ended an epoch after 2 of ... A StopIteration raised inside __getitem__",
        )
        for play in (Play(), ALONE)
    ],
    "`__getitems__` of the wrong length": [
        (
            "workload_failed",
            hostile("make_short_queries"),
            "delivered 32 samples where 64 were requested ... __getitems__ must return one sample for each index",
        ),
    ],
    "Iterable that is not sharded": [
        (
            "workload_failed",
            hostile(factory, Play(workers=3), probed=True),
            "a dataset of 64: each of its workers returns all the data ... get_worker_info()",
        )
        for factory in ("misbehaving:make_unsharded", "make_shuffled_unsharded")
    ],
    "Epoch that ends early": [
        (
            "workload_failed",
            hostile("make_sharded_twice", probed=True),
            "32 samples of a dataset of 64 ... leave some out",
        ),
        ("workload_failed", hostile("make_only_once", ALONE), "ended an epoch after 0 batches ... in every __iter__"),
    ],
    "Batch needs grad": [
        ("workload_failed", hostile("make_given", samples="grad"), "automatic differentiation ... sample.detach()"),
    ],
    "Ragged / None / object": [
        ("workload_failed", hostile("make_given", samples="ragged"), "--collate PKG.MOD:FUNCTION"),
    ],
    "Empty / 0 batches / infinite iterable": [
        ("workload_failed", hostile("make_nothing"), "delivered no batch at all"),
        ("workload_failed", hostile("make_dropped", ALONE), "delivered no batch at all"),
    ],
    "CUDA OOM / pinned failure": [
        ("out_of_memory", sabotage("allocator"), "ran out of device memory: it asked for 2.00 GiB more. Use a smaller"),
        ("out_of_memory", sabotage_main("driver"), "ran out of device memory. Use a smaller --batch-size"),
        ("out_of_memory", sabotage_main("pinning without memory"), "ran out of page-locked memory"),
        ("out_of_memory", NO_MEMORY, "ran out of device memory"),
        ("workload_failed", sabotage_main("sticky"), "an illegal memory access"),  # no device is in use
        ("workload_failed", sabotage_main("lost"), "uncorrectable ECC error"),
        ("workload_failed", sabotage_main("pinning"), "CUDA error: invalid argument ... --set pin_memory=false"),
    ],
}


@pytest.mark.parametrize(("kind", "scene", "text"), list_cases(FAILING))
def test_a_hostile_dataset_fails_its_trial_with_a_diagnosis(kind: str, scene: Scene, text: str) -> None:
    (result,) = scene.play()
    assert result.kind == kind, result.message
    assert [part for part in text.split(" ... ") if part not in result.message] == [], result.message


COMPLETING: dict[str, list[Any]] = {
    "Fork + held lock": [(hostile("make_locked", SPAWN),)],
    "Fork after OpenMP": [
        (hostile("make_parallel", SPAWN, parallel_before=True),),
        (hanging("make_parallel", ALONE, Play()),),
    ],
    "Unpicklable dataset, spawn": [(hostile("make_with_lambda", ALONE, Play(method="fork")),)],
    "Batch needs grad": [(hostile("make_given", ALONE, samples="grad"),)],
    "Non-daemon thread, `atexit` sleep, ignored SIGTERM": [
        (hostile("make_unwilling_to_end", play),) for play in (ALONE, Play())
    ],
    "Factory forks a child": [
        (hostile("misbehaving:make_forked"),),
        *((hostile("make_helped", ALONE, method=method),) for method in ("fork", "spawn")),
    ],
}


@pytest.mark.parametrize("scene", list_cases(COMPLETING))
def test_a_dataset_that_misbehaves_only_elsewhere_completes_its_trials(scene: Scene) -> None:
    assert {result.kind for result in scene.play()} == {"completed"}


REFUSED: dict[str, list[Any]] = {
    "`__getitems__` of the wrong length": [(hostile("make_short_queries_collated"), "4 samples for 8 indices")],
    "Epoch that ends early": [(hostile("make_only_once"), "start again in every __iter__")],
    "Ragged / None / object": [
        (hostile("make_given", samples=samples), f"{text} ... --collate PKG.MOD:FUNCTION ... collate.py")
        for samples, text in (("ragged", "equal size"), ("none", "NoneType"), ("object", "'object'"))
    ],
    "Empty / 0 batches / infinite iterable": [
        (hostile("misbehaving:make_empty"), "of length 0: there is nothing to load"),
        (hostile("make_nothing"), "delivered no batch at all"),
    ],
    "Factory `os._exit(0)` / closes all fds": [
        (hostile("misbehaving:make_hard_exit"), "its process exited with code 0 without a result"),
        (hostile("make_closed"), "its process"),
    ],
    "Factory forks a child": [
        (hostile("make_fork_that_stays", stall_seconds=30.0), "exited with code 0 without a result"),
    ],
    RAISES: [(hostile("faults.no_such_module:make"), "No module named 'tests.faults.no_such_module'")],
    "Factory kills group / parent": [(hostile("make_group_killer"), "was killed by SIGKILL")],
    "Exception in getitem": [(sabotage("key error", place="both", index=3), "KeyError: 'label' ... hostile.py")],
    "CUDA OOM / pinned failure": [
        (
            NO_MEMORY,
            "step (tests.faults.hostile:make_step_without_memory) failed on a batch ... a smaller --batch",
        ),
    ],
}


@pytest.mark.parametrize(("scene", "text"), list_cases(REFUSED))
def test_a_workload_that_cannot_be_profiled_is_refused_with_the_reason(scene: Scene, text: str) -> None:
    error = refuse(**{name: getattr(scene, name) for name in scene.model_fields_set - {"plays"}})
    assert [part for part in text.split(" ... ") if part not in read_all(error)] == [], read_all(error)


# Workers


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.fault("Hung getitem", needs="plain")
def test_the_worker_that_blocks_the_others_is_named_with_its_line(method: Any) -> None:
    stall_seconds = STALL_SECONDS if method == "fork" else 2 * STALL_SECONDS
    (result,) = sabotage("hang", Play(method=method, seconds=3.0), stall_seconds=stall_seconds).play()
    assert result.kind == "stalled"
    assert "(limit " in result.message
    line = r"worker \d of 2 hangs in `_hang` at hostile\.py:\d+: `time\.sleep\(3600\)`"
    assert re.search(line, result.message), result.message
    assert "the training process" in result.details


@pytest.mark.fault("Exception in getitem", needs="plain")
def test_an_exception_has_the_same_cause_and_line_in_a_worker_and_in_the_training_process() -> None:
    results = sabotage("key error", Play(), ALONE, place="both").play()
    assert re.fullmatch(r"KeyError at hostile\.py:\d+", results[0].cause)
    assert results[0].cause == results[1].cause
    assert all("hostile.py" in result.details for result in results)


@pytest.mark.fault("Worker SEGV / ABRT", needs="plain")
def test_the_output_of_a_crashing_worker_is_kept() -> None:
    (result,) = sabotage("segfault").play()
    assert "Unexpected segmentation fault encountered in worker" in result.details
    assert "\0" not in result.details


@pytest.mark.fault("Worker SIGKILL (OOM-like)", needs="plain")
def test_workers_that_die_in_the_probe_do_not_prevent_its_result() -> None:
    assert probe("misbehaving:make_kills_its_worker").samples == 64


@pytest.mark.fault("Fork after OpenMP", needs="plain")
def test_dltune_computes_nothing_on_two_threads_before_workers_exist() -> None:
    with hostile("make_parallel", stall_seconds=6.0).open_runner() as runner:
        runner.probe((8, 8), LIMITS)
        result = runner.run(Play().to_request())
    assert result.kind == "completed", result.message


@pytest.mark.parametrize(
    ("library", "advice"),
    [
        ("tokenizers", "TOKENIZERS_PARALLELISM=false"),
        ("polars", "Polars' threads do not survive a fork"),
        ("h5py", "open the file in the worker"),
    ],
)
@pytest.mark.fault("Fork after a library's threads", needs="plain")
def test_a_library_that_does_not_survive_a_fork_is_named_with_the_fix(
    library: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(library)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")  # else tokenizers use one thread after a fork
    (result,) = hostile(f"make_{library}", stall_seconds=STALL_SECONDS).play()
    assert result.kind == "stalled", result.message
    assert advice in result.message
    assert "hangs in" in result.message


@pytest.mark.fault("Fork after a library's threads", needs="plain")
def test_a_library_that_only_workers_would_use_is_not_used_before_they_are_forked() -> None:
    pytest.importorskip("polars")
    with hostile("make_polars", stall_seconds=8.0, before=False).open_runner() as runner:
        profile = runner.probe((8, 8), LIMITS)
        results = [runner.run(Play(workers=workers).to_request()) for workers in (2, 0, 2)]
    assert profile.worker_failure is None
    assert [result.kind for result in results] == ["completed"] * 3


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
def test_a_users_module_is_imported_by_its_real_name_for_spawned_workers(tmp_path: Path) -> None:
    (tmp_path / "user_factory.py").write_text(DATA_MODULE)
    result = run("user_factory:make", working_dir=str(tmp_path), play=SPAWN)
    assert result.kind == "completed", result.message


@pytest.mark.parametrize(
    ("registered", "kind", "text"),
    [(False, "workload_failed", "imported by their names"), (True, "crashed", "could not be started")],
)
@pytest.mark.fault("Factory loaded via `spec_from_file_location`", needs="plain")
def test_a_module_that_spawned_workers_cannot_import_is_named(
    registered: bool, kind: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / "data.py").write_text(DATA_MODULE)
    (result,) = hostile("make_from_path", SPAWN, path=str(tmp_path / "data.py"), registered=registered).play()
    assert result.kind == kind, result.message
    assert text in result.message


# Data


KEY_ERROR = ("--arg", 'deed="key error"', "--arg", 'place="both"', "--arg", "samples=4000", "--arg", "index=300")
ENDED: dict[str, list[Any]] = {
    "Exception in getitem": [
        ("faults.hostile:make_sabotaged", KEY_ERROR, "fails even without workers: it raised KeyError: 'label'"),
    ],
    "StopIteration in map dataset": [("misbehaving:make_ends_early", (), "StopIteration")],
}


@pytest.mark.parametrize(("factory", "arguments", "text"), list_cases(ENDED))
def test_a_dataset_that_fails_without_workers_ends_the_run(factory: str, arguments: list[str], text: str) -> None:
    finished = run_cli(factory, *arguments, "--trials", "3", "--quiet")
    assert finished.returncode == 2, finished.stderr
    assert text in finished.stderr
    assert finished.stdout == ""


@pytest.mark.fault("Iterable that is not sharded", needs="plain")
def test_a_run_over_unsharded_data_stays_below_two_workers_and_says_why() -> None:
    finished = run_cli("faults.hostile:make_shuffled_unsharded", "--max-workers", "4", "--dry-run", "-v")
    assert finished.returncode == 0, finished.stderr
    assert "num_workers is at most 1: without sharding by get_worker_info()" in " ".join(finished.stderr.split())
    assert "num_workers=0" in finished.stdout
    assert "num_workers=2" not in finished.stdout


@pytest.mark.fault("Empty / 0 batches / infinite iterable", needs="plain")
def test_a_dataset_without_an_end_is_measured_for_the_time_of_a_trial() -> None:
    with hostile("make_endless").open_runner() as runner:
        profile = runner.probe((8, 8), LIMITS)
        result = runner.run(Play(seconds=0.5).to_request())
    assert (profile.samples, profile.workers_duplicate_data) == (None, False)
    assert result.kind == "completed", result.message
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
        ("def make():\n    class Strange(BaseException):\n        pass\n    raise Strange('odd')\n", "Strange: odd"),
    ],
)
@pytest.mark.fault(RAISES, needs="plain")
def test_a_module_that_fails_is_quoted_with_the_users_line(code: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "user_module.py").write_text(code)
    error = refuse("user_module:make", working_dir=str(tmp_path))
    assert isinstance(error, WorkloadError)
    assert text in str(error)
    assert "user_module.py" in read_all(error)
    assert "autotune/child" not in read_all(error)


@pytest.mark.fault("Factory prints junk, fake JSON, 100 MB", needs="plain")
def test_a_flood_of_output_neither_fills_the_disk_nor_changes_the_result() -> None:
    with hostile("make_flood").open_runner() as runner:
        result = runner.run(Play().to_request())
        sizes = [log.stat().st_size for log in Path(tempfile.gettempdir()).glob("dltune-*/log")]
    assert result.kind == "completed", result.message
    assert sizes
    assert max(sizes) < 8 * MIB


@pytest.mark.parametrize(("crashing", "kind"), [(False, "completed"), (True, "crashed")])
@pytest.mark.fault("Factory forks a child", needs="plain")
def test_a_process_that_hides_by_clearing_its_environment_ends_with_the_trial(
    crashing: bool, kind: str, tmp_path: Path
) -> None:
    seconds = f"36{tmp_path.stat().st_ino}"  # unique: in a namespace, the number of the process has another meaning
    arguments: Any = {"path": str(tmp_path / "pid"), "crashing": crashing, "seconds": seconds}
    (result,) = hostile("make_hidden", ALONE, **arguments).play()
    assert result.kind == kind
    assert (tmp_path / "pid").exists()
    assert ["sleep", seconds] not in [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]


@pytest.mark.fault("Factory kills group / parent", needs="plain")
def test_a_factory_that_terminates_its_parent_ends_the_trial_at_most(workdir: Path) -> None:
    finished = run_cli("faults.hostile:make_parent_killer")
    assert finished.returncode == 2, finished.stderr
    assert "RuntimeError: the parent lives" in finished.stderr or "was killed by SIGTERM" in finished.stderr
    assert list_trial_processes() == []
    assert not (workdir / "dltune.json").exists()


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.fault("Hostile files", needs="plain")
def test_a_child_that_sends_anything_but_a_report_has_crashed(lie: str) -> None:
    (result,) = hostile("make_liar", ALONE, stall_seconds=30.0, lie=lie).play()
    assert result.kind == "crashed"
    assert len(result.message) < 2 * MAX_TEXT_LENGTH
