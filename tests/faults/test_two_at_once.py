"""Two runs at the same time wait, share or refuse; neither costs the other a result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.profiles.store import read_file
from tests.faults.stage import ROOT
from tests.faults.test_storage import BRIEF

SAVE = """
import sys
from pathlib import Path
from autotune.profiles.store import save_profile
from tests.builders import make_profile
for number in range(10):
    save_profile(Path("dltune.json"), make_profile(f"{sys.argv[1]}-{number}"))
"""
OPEN = """
import sys, time
from autotune.search.ask_tell import open_search
from autotune.search.storage import open_storage
from tests.builders import make_machine, make_request
from autotune.search.space import SearchSpace
space = SearchSpace.of(batch_size=(32,), num_workers=(0, 1))
request = make_request(study_name=sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
with (
    open_storage(None) as storage,
    open_search(storage, request, space, make_machine().hardware(None), print) as search,
):
    search.ask()
"""
pytestmark = [pytest.mark.usefixtures("workdir"), pytest.mark.fault("Two runs at once", needs="plain")]


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_run(*options: str) -> subprocess.Popen[str]:
    return start("-m", "autotune.cli", "--dataset", "tests.misbehaving:make_honest", *BRIEF, *options)


def await_word(process: subprocess.Popen[str], word: str) -> None:
    assert process.stderr is not None
    while line := process.stderr.readline():
        if line.startswith(word):
            return
    raise AssertionError(f"the run ended before it said {word!r}")


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, stderr = process.communicate(timeout=120)
    return process.returncode, stderr


def test_a_second_run_of_the_same_request_is_refused_and_the_first_goes_on(workdir: Path) -> None:
    lasting = ("--trial-time", "2s", "--epochs", "40", "--step-time", "20ms")
    first = start_run(*lasting)
    await_word(first, "trial")
    code, said = finish(start_run(*lasting))
    assert code == 2
    assert f"is being worked on by another dltune (process {first.pid}). Wait for it" in said
    assert finish(first)[0] == 0
    assert read_file(workdir / "dltune.json").profiles[0].search.feasible
    assert {path.name for path in workdir.rglob("*")} == {"dltune.json", ".dltune", ".gitignore", "studies.db"}


def test_a_run_that_was_killed_keeps_nobody_from_its_study() -> None:
    first = start_run()
    await_word(first, "trial")
    first.send_signal(signal.SIGKILL)
    finish(first)
    second = start_run()
    await_word(second, "resumed")
    assert finish(second)[0] == 0


def test_runs_that_make_the_record_of_trials_at_the_same_moment_all_get_it() -> None:
    openers = [start("-c", OPEN, f"study{number}") for number in range(6)]
    for opener in openers:
        assert opener.stdout is not None
        assert opener.stdout.readline() == "ready\n"
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write("\n")
        opener.stdin.flush()
    assert [finish(opener) for opener in openers] == [(0, "")] * 6


def test_two_runs_beside_each_other_write_their_profiles_into_one_file(workdir: Path) -> None:
    """They disturb each other's measurements, and are told so; they do not disturb each other's results."""
    runs = [start_run("--study-name", name, "--profile", name) for name in ("one", "other")]
    assert [finish(run)[0] for run in runs] == [0, 0]
    assert {profile.name for profile in read_file(workdir / "dltune.json").profiles} == {"one", "other"}


def test_of_many_that_write_one_file_none_loses_a_profile_and_nobody_reads_half_of_it(workdir: Path) -> None:
    path = workdir / "dltune.json"
    writers = [start("-c", SAVE, f"writer{number}") for number in range(4)]
    while any(writer.poll() is None for writer in writers):
        assert not path.exists() or read_file(path).profiles
        time.sleep(0.001)
    assert [finish(writer)[0] for writer in writers] == [0, 0, 0, 0]
    assert len(read_file(path).profiles) == 40
    assert list(workdir.iterdir()) == [path]
