"""A disk that fills up, turns read-only or loses a file costs no trial, and is reported in a sentence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from autotune.profiles.store import read_file, save_profile
from tests.builders import make_profile
from tests.faults.capabilities import find_namespace
from tests.faults.stage import QUICK, ROOT

PINS = ("prefetch_factor=2", "persistent_workers=true", "in_order=true", "sharing_strategy=file_descriptor")
BRIEF = (*QUICK, "--search", "num_workers=0:1", *(f"--set={pin}" for pin in PINS))  # two trials
FULL_DISK = "Output disk full"
pytestmark = pytest.mark.usefixtures("workdir")


def make_command(*options: str) -> list[str]:
    return [sys.executable, "-m", "autotune", *options]


def run(command: Sequence[str], at_first_trial: Callable[[], None] = lambda: None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and do something when it has printed its first trial."""
    environment, pipe = {**os.environ, "PYTHONPATH": str(ROOT)}, subprocess.PIPE
    process = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)
    assert process.stderr is not None
    printed = ""
    while line := process.stderr.readline():
        printed += line
        if line.startswith("trial"):
            at_first_trial()
            break
    stdout, stderr = process.communicate(timeout=120)
    return subprocess.CompletedProcess(command, process.returncode, stdout, printed + stderr)


def run_on_small_disk(workdir: Path, how: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run dltune with a file system of 512 KiB at `small`, which is damaged after the first trial."""
    small, trigger = workdir / "small", workdir / "trigger"
    small.mkdir()
    arguments = {"folder": small, "trigger": trigger, "how": how}
    factory = ["--dataset", "tests.faults.hostile:make_vandal"]
    factory += [f"--arg={key}={json.dumps(str(value))}" for key, value in arguments.items()]
    script = f'mount -t tmpfs -o size=512k tmpfs {small} && "$@"; code=$?; ls -A {small} >listing; exit $code'
    command = [*find_namespace(), "sh", "-c", script, "sh", *make_command(*factory, *BRIEF, *options)]
    return run(command, trigger.touch)


def count_trials(file: Path) -> int:
    (profile,) = read_file(file).profiles
    return len(profile.search.trials)


@pytest.mark.fault(FULL_DISK, needs="mount")
def test_a_study_that_can_no_longer_be_written_ends_the_run_with_the_best_so_far(workdir: Path) -> None:
    finished = run_on_small_disk(workdir, "fill", "--storage", "sqlite:///small/studies.db")
    assert finished.returncode == 2, finished.stderr
    assert finished.stderr.count("The study in sqlite:///small/studies.db cannot be used any more") == 1
    assert "disk is full" in finished.stderr
    assert "The best result so far was saved to dltune.json" in finished.stderr
    assert 1 <= count_trials(workdir / "dltune.json") <= 2


@pytest.mark.fault(FULL_DISK, needs="mount")
@pytest.mark.parametrize(
    ("how", "words"), [("fill", "No space left on device"), ("read-only", "is read-only|Read-only file system")]
)
def test_a_result_that_cannot_be_written_is_printed_instead(workdir: Path, how: str, words: str) -> None:
    finished = run_on_small_disk(workdir, how, "--output", "small/dltune.json", "--storage", "sqlite:///studies.db")
    assert finished.returncode == 1, finished.stderr
    assert re.search(rf"Error: small/dltune\.json cannot be written: .*({words})", finished.stderr)
    assert "The profile is printed instead" in finished.stderr
    assert "Traceback" not in finished.stderr
    (workdir / "rescued.json").write_text(finished.stdout)
    assert count_trials(workdir / "rescued.json") == 2
    assert set((workdir / "listing").read_text().split()) <= {"filler"}


@pytest.mark.fault(FULL_DISK, needs="mount")
def test_a_folder_that_is_read_only_from_the_start_is_refused_before_anything_is_measured(workdir: Path) -> None:
    (workdir / "small").mkdir()
    script = 'mount -t tmpfs -o ro tmpfs small && exec "$@"'
    inside = [*find_namespace(), "sh", "-c", script, "sh"]
    honest = ("--dataset", "tests.misbehaving:make_honest")
    output = run([*inside, *make_command(*honest, "--output", "small/dltune.json")])
    storage = run([*inside, *make_command(*honest, "--storage", "sqlite:///small/studies.db")])
    assert (output.returncode, storage.returncode) == (1, 2)
    assert re.fullmatch(r"Error: small/dltune\.json cannot be written: the folder .* is read-only\.\n", output.stderr)
    assert re.search(r"Error: The study in sqlite:///small/studies\.db cannot be opened: .*--storage", storage.stderr)
    assert "Traceback" not in storage.stderr


@pytest.mark.fault("Study vanishes", needs="plain")
def test_a_run_whose_study_is_deleted_is_saved_and_continued_by_the_same_command(workdir: Path) -> None:
    storage = ("--storage", "sqlite:///studies.db")
    command = make_command("--dataset", "tests.misbehaving:make_honest", *BRIEF, *storage)
    finished = run(command, (workdir / "studies.db").unlink)
    assert finished.returncode == 2, finished.stderr
    assert finished.stderr.count("The study in sqlite:///studies.db cannot be used any more: ") == 1
    assert "Traceback" not in finished.stderr
    assert not read_file(workdir / "dltune.json").profiles[0].is_validated
    again = run(command)
    assert again.returncode == 0, again.stderr
    assert read_file(workdir / "dltune.json").profiles[0].is_validated
    assert count_trials(workdir / "dltune.json") == 2


@pytest.mark.fault("Another dltune.json", needs="plain")
def test_a_tuned_file_of_another_version_is_unchanged_and_refused_before_anything_is_measured(workdir: Path) -> None:
    text = '{"schema_version": 3, "profiles": [{"ranks": 8}]}'
    (workdir / "dltune.json").write_text(text)
    finished = run(make_command("--dataset", "tests.misbehaving:make_honest"))
    assert finished.returncode == 2
    assert "another version of dltune" in finished.stderr
    assert (workdir / "dltune.json").read_text() == text


@pytest.mark.fault("Full disk under stdout and stderr", needs="plain")
def test_stdout_on_a_full_disk_is_an_error_in_a_sentence(workdir: Path) -> None:
    save_profile(workdir / "dltune.json", make_profile())
    finished = run(["sh", "-c", 'exec "$@" >/dev/full', "sh", *make_command("show")])
    assert finished.returncode == 1
    assert finished.stderr == "Error: stdout cannot be written: No space left on device.\n"


@pytest.mark.fault("Full disk under stdout and stderr", needs="plain")
def test_a_log_on_a_full_disk_does_not_end_the_run(workdir: Path) -> None:
    command = make_command("--dataset", "tests.misbehaving:make_honest", *BRIEF)
    finished = run(["sh", "-c", 'exec "$@" 2>/dev/full', "sh", *command])
    assert "Saved to dltune.json" in finished.stdout
    assert read_file(workdir / "dltune.json").profiles
