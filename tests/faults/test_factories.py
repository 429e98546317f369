"""What becomes of factories that fail, lie, or turn against the process that called them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from autotune.errors import UsageError, WorkloadError
from autotune.runner.sandbox import detect_sandbox
from tests.faults.stage import MIB, Play, Scene, is_alive, list_trial_processes, read_all, refuse, run, run_cli

RAISES = "Factory raises / missing import / SyntaxError / RecursionError / `sys.exit(0)`"
SANDBOXED_OR_NOT = pytest.mark.parametrize("sandboxed", [True, False], ids=["sandboxed", "plain"])


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def make():\n    raise ValueError('no such bucket')\n", "ValueError: no such bucket"),
        ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("def make(:\n    pass\n", "SyntaxError"),
        ("def make():\n    return make()\n", "RecursionError: maximum recursion depth exceeded"),
        ("import sys\nsys.exit(0)\n", "SystemExit: 0"),
        ("def make():\n    class Strange(BaseException):\n        pass\n    raise Strange('odd')\n", "Strange: odd"),
    ],
)
@pytest.mark.fault(RAISES, needs="plain")
def test_a_module_that_fails_is_quoted_with_the_users_line(code: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "user_module.py").write_text(code)
    error = refuse("user_module:make", working_dir=str(tmp_path))
    assert isinstance(error, WorkloadError)
    assert words in str(error)
    assert "user_module.py" in read_all(error)
    assert "autotune/child" not in read_all(error)


@pytest.mark.fault(RAISES, needs="plain")
def test_a_factory_that_leaves_by_sys_exit_is_told_about_main() -> None:
    assert '__name__ == "__main__"' in str(refuse("misbehaving:make_exit"))


@pytest.mark.fault(RAISES, needs="plain")
def test_a_module_that_is_not_there_is_a_usage_error() -> None:
    error = refuse("faults.no_such_module:make")
    assert isinstance(error, UsageError)
    assert "No module named 'tests.faults.no_such_module'" in str(error)


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("misbehaving:make_hard_exit", "exited with code 0 without a result"),
        ("faults.hostile:make_closed", ""),
    ],
)
@pytest.mark.fault("Factory `os._exit(0)` / closes all fds", needs="plain")
def test_a_process_that_ends_well_but_says_nothing_has_failed(factory: str, words: str) -> None:
    error = refuse(factory)
    assert isinstance(error, WorkloadError)
    assert words in str(error)
    assert "its process" in str(error)


@pytest.mark.fault("Factory prints junk, fake JSON, 100 MB", needs="plain")
def test_a_flood_of_output_neither_fills_the_disk_nor_spoils_the_result() -> None:
    with Scene(factory="faults.hostile:make_flood").open_runner() as runner:
        result = runner.run(Play().to_request())
        (log,) = Path(tempfile.gettempdir()).glob(f"dltune-{os.getpid()}-*/log")
        size = log.stat().st_size
    assert result.kind == "completed", result.message
    assert size < 8 * MIB


@pytest.mark.parametrize(("workers", "sandboxed"), [(0, True), (2, False)])
@pytest.mark.fault("Non-daemon thread, `atexit` sleep, ignored SIGTERM", needs="plain")
def test_a_process_that_will_not_end_is_ended(workers: int, sandboxed: bool) -> None:
    result = run("faults.hostile:make_unwilling_to_end", play=Play(workers=workers), sandboxed=sandboxed)
    assert result.kind == "completed", result.message


@pytest.mark.fault("Factory forks a child", needs="plain")
def test_a_copy_of_the_trials_process_neither_answers_nor_stays() -> None:
    assert run("misbehaving:make_forked", sandboxed=False).kind == "completed"


@SANDBOXED_OR_NOT
@pytest.mark.fault("Factory forks a child", needs="plain")
def test_a_copy_that_holds_the_line_open_is_not_waited_for(sandboxed: bool) -> None:
    error = refuse("faults.hostile:make_fork_that_stays", sandboxed=sandboxed, stall_seconds=30.0)
    assert "exited with code 0 without a result" in str(error)


@SANDBOXED_OR_NOT
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.fault("Factory forks a child", needs="plain")
def test_what_a_thread_of_the_dataset_has_started_outlives_the_thread_and_not_the_trial(
    method: str, sandboxed: bool
) -> None:
    result = run("faults.hostile:make_helped", arguments={"method": method}, play=Play(workers=0), sandboxed=sandboxed)
    assert result.kind == "completed", result.message


@SANDBOXED_OR_NOT
@pytest.mark.parametrize("crashing", [False, True])
@pytest.mark.fault("Factory forks a child", needs="plain")
def test_a_process_that_hides_by_clearing_its_environment_ends_with_the_trial(
    crashing: bool, sandboxed: bool, tmp_path: Path
) -> None:
    place = tmp_path / "pid"
    arguments = {"path": str(place), "crashing": crashing}
    result = run("faults.hostile:make_hidden", arguments=arguments, play=Play(workers=0), sandboxed=sandboxed)
    assert result.kind == ("crashed" if crashing else "completed")
    if sandboxed and detect_sandbox().own_pids:
        return  # its number means nothing outside of the namespace that it ended with
    assert not is_alive(int(place.read_text()))


@pytest.mark.fault("Factory kills group / parent", needs="plain")
def test_a_factory_that_kills_its_group_hits_only_itself() -> None:
    assert "was killed by SIGKILL" in str(refuse("faults.hostile:make_group_killer", sandboxed=False))


@pytest.mark.fault("Factory kills group / parent", needs="plain")
def test_a_factory_that_terminates_its_parent_ends_the_trial_at_most(workdir: Path) -> None:
    finished = run_cli("faults.hostile:make_parent_killer")
    assert finished.returncode == 2, finished.stderr
    assert "RuntimeError: the parent lives" in finished.stderr or "was killed by SIGTERM" in finished.stderr
    assert list_trial_processes() == []
    assert not (workdir / "dltune.json").exists()
