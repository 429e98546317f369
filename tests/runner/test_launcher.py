"""A fresh process is forked from one that has imported torch, and is as fresh as one that is started."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from autotune.protocol.measurement import TrialResult
from autotune.runner import launcher
from autotune.runner.fork_server import Forked
from autotune.runner.launcher import Starter
from autotune.runner.runner import TrialRunner
from tests.runner.trials import LIMITS, ROOT, make_request, open_runner

pytestmark = [
    pytest.mark.usefixtures("leaves_nothing"),
    pytest.mark.skipif(not launcher.CAN_FORK, reason="forking wants Linux and descriptors of processes"),
]
THREADED = "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"


@pytest.fixture
def runner(leaves_nothing: None) -> Iterator[TrialRunner]:
    with open_runner("make_telling") as runner:
        runner.limit(LIMITS)
        yield runner


def run_fresh(runner: TrialRunner) -> TrialResult:
    return runner.run(make_request(0, fresh=True))


def was_forked(runner: TrialRunner) -> bool:
    assert runner._child is not None
    return isinstance(runner._child._process, Forked)


def find_server(runner: TrialRunner) -> int:
    assert runner._starter._server is not None
    return runner._starter._server.pid


def test_every_fresh_process_is_another_fork_of_the_one_that_imported_torch(runner: TrialRunner) -> None:
    results = [run_fresh(runner) for _ in range(3)]
    assert [result.kind for result in results] == ["completed"] * 3, results[0].message
    assert was_forked(runner)


@pytest.mark.parametrize("way", ["forked", "started"])
def test_what_a_process_finds_around_it_does_not_depend_on_how_it_was_started(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The factory of the dataset tells its folder, its environment, and how much of its memory is shared."""
    monkeypatch.setattr(launcher, "CAN_FORK", way == "forked")
    note = tmp_path / "note"
    with open_runner("make_telling", starter=Starter(ROOT), dataset_args={"note": str(note)}) as runner:
        runner.limit(LIMITS)
        assert run_fresh(runner).kind == "completed"
        assert was_forked(runner) == (way == "forked")
    told = dict(line.split("=", 1) for line in note.read_text().splitlines())
    assert told["folder"] == str(Path(__file__).parents[2])
    assert told["tempdir"].startswith("/")
    assert told["tempdir"] == told["TMPDIR"]
    assert told["session"] == "own"
    assert told["argv"] == "1"
    assert told["torch is collected"] == "True"  # by the garbage collector, in workers as well
    assert int(told["shared_anonymous_mib"]) < 48  # relocated code of libraries, which nobody writes to


def test_chances_differ_from_fork_to_fork(tmp_path: Path) -> None:
    notes = []
    with open_runner("make_telling", dataset_args={"note": str(tmp_path / "note")}) as runner:
        runner.limit(LIMITS)
        for _ in range(2):
            run_fresh(runner)
            notes.append((tmp_path / "note").read_text())
    drawn = [[line for line in note.splitlines() if line.startswith("drawn")] for note in notes]
    assert drawn[0] != drawn[1]


def test_when_the_forking_process_is_gone_interpreters_are_started(runner: TrialRunner) -> None:
    run_fresh(runner)
    os.kill(find_server(runner), signal.SIGKILL)
    assert run_fresh(runner).kind == "completed"
    assert not was_forked(runner)


def test_threads_that_a_fork_would_lose_make_interpreters_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(THREADED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with open_runner("make_telling", starter=Starter(ROOT)) as runner:
        runner.limit(LIMITS)
        assert run_fresh(runner).kind == "completed"
        assert not was_forked(runner)


def test_the_forking_process_ends_with_the_runner() -> None:
    with open_runner("make_telling", starter=Starter(ROOT)) as runner:
        runner.limit(LIMITS)
        run_fresh(runner)
        server = find_server(runner)
    assert not psutil.pid_exists(server)


def test_a_forked_process_that_is_killed_is_named_with_its_signal() -> None:
    with open_runner("make_killed") as runner:
        runner.limit(LIMITS)
        result = run_fresh(runner)
    assert result.kind != "completed"
    assert "SIGKILL" in result.message
