"""Two runs at the same time: neither costs the other a result."""

from __future__ import annotations

import os
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
    save_profile(Path("dltune.json"), make_profile(label=f"{sys.argv[1]}-{number}"))
"""
pytestmark = [pytest.mark.usefixtures("workdir"), pytest.mark.fault("Two runs at once", needs="plain")]


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_run(*options: str) -> subprocess.Popen[str]:
    return start("-m", "autotune", "--dataset", "tests.misbehaving:make_honest", *BRIEF, *options)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, stderr = process.communicate(timeout=120)
    return process.returncode, stderr


def test_two_runs_of_the_same_request_both_end_and_the_file_has_one_profile(workdir: Path) -> None:
    runs = [start_run() for _ in range(2)]
    assert [finish(run)[0] for run in runs] == [0, 0]
    assert len(read_file(workdir / "dltune.json").profiles) == 1


def test_two_runs_with_labels_of_their_own_write_their_profiles_into_one_file(workdir: Path) -> None:
    """They disturb each other's measurements, but not each other's results."""
    runs = [start_run("--profile", name) for name in ("one", "other")]
    assert [finish(run)[0] for run in runs] == [0, 0]
    assert {profile.label for profile in read_file(workdir / "dltune.json").profiles} == {"one", "other"}


def test_of_many_that_write_one_file_none_loses_a_profile_and_nobody_reads_half_of_it(workdir: Path) -> None:
    path = workdir / "dltune.json"
    writers = [start("-c", SAVE, f"writer{number}") for number in range(4)]
    while any(writer.poll() is None for writer in writers):
        assert not path.exists() or read_file(path).profiles
        time.sleep(0.001)
    assert [finish(writer)[0] for writer in writers] == [0, 0, 0, 0]
    assert len(read_file(path).profiles) == 40
    assert [file.name for file in workdir.iterdir() if not file.name.endswith(".lock")] == [path.name]
