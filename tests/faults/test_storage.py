"""Full disks, read-only folders, lost studies and other runs cost no result, and are reported in a sentence."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from autotune.profiles.schema import TunedProfile
from autotune.profiles.store import read_file, save_profile
from tests.builders import make_profile
from tests.faults.capabilities import wrap_in_mount
from tests.faults.stage import DLTUNE, make_command, run, start

PINS = ("prefetch_factor=2", "persistent_workers=true", "in_order=true", "sharing_strategy=file_descriptor")
BRIEF = ("--search", "num_workers=0:1", *(f"--set={pin}" for pin in PINS))  # two trials
FULL_DISK = "Output disk full"
pytestmark = pytest.mark.usefixtures("workdir")


def run_on_small_disk(workdir: Path, how: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run dltune with a file system of 512 KiB at `small`, which is damaged after the first trial."""
    small, trigger = workdir / "small", workdir / "trigger"
    small.mkdir()
    arguments = {"folder": small, "trigger": trigger, "how": how}
    words = [f"--arg={key}={json.dumps(str(value))}" for key, value in arguments.items()]
    command = make_command(*words, *BRIEF, *options, dataset="tests.faults.hostile:make_vandal")
    script = f'"$@"; code=$?; ls -A {small} >listing; exit $code'
    return run(wrap_in_mount("size=512k", ["sh", "-c", script, "sh", *command], str(small)), trigger.touch)


def measured(profile: TunedProfile) -> set[float | None]:
    return {trial.samples_per_second for trial in profile.search.trials}


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
    assert 1 <= count_trials(workdir / "rescued.json") <= 2
    assert set((workdir / "listing").read_text().split()) <= {"filler"}


@pytest.mark.fault(FULL_DISK, needs="mount")
def test_a_folder_that_is_read_only_from_the_start_is_refused_before_anything_is_measured(workdir: Path) -> None:
    (workdir / "small").mkdir()
    output, storage = (
        run(wrap_in_mount("ro", make_command(*option), "small"))
        for option in (("--output", "small/dltune.json"), ("--storage", "sqlite:///small/studies.db"))
    )
    assert (output.returncode, storage.returncode) == (1, 2)
    assert re.fullmatch(r"Error: small/dltune\.json cannot be written: the folder .* is read-only\.\n", output.stderr)
    assert re.search(r"Error: The study in sqlite:///small/studies\.db cannot be opened: .*--storage", storage.stderr)
    assert "Traceback" not in storage.stderr


@pytest.mark.fault("Study vanishes")
def test_a_run_whose_study_is_deleted_is_saved_and_continued_by_the_same_command(workdir: Path) -> None:
    command = make_command(*BRIEF, "--storage", "sqlite:///studies.db")
    finished = run(command, (workdir / "studies.db").unlink)
    assert finished.returncode == 2, finished.stderr
    assert finished.stderr.count("The study in sqlite:///studies.db cannot be used any more: ") == 1
    assert "Traceback" not in finished.stderr
    (unfinished,) = read_file(workdir / "dltune.json").profiles
    assert not unfinished.is_validated
    again = run(command)
    assert again.returncode == 0, again.stderr
    (continued,) = read_file(workdir / "dltune.json").profiles
    assert continued.is_validated
    assert measured(unfinished) <= measured(continued)


@pytest.mark.fault("Another dltune.json")
def test_a_tuned_file_of_another_version_is_unchanged_and_refused_before_anything_is_measured(workdir: Path) -> None:
    text = '{"schema_version": 3, "profiles": [{"ranks": 8}]}'
    (workdir / "dltune.json").write_text(text)
    finished = run(make_command())
    assert finished.returncode == 2
    assert "another version of dltune" in finished.stderr
    assert (workdir / "dltune.json").read_text() == text


@pytest.mark.fault("Full disk under stdout and stderr")
def test_stdout_on_a_full_disk_is_an_error_in_a_sentence(workdir: Path) -> None:
    save_profile(workdir / "dltune.json", make_profile())
    finished = run(["sh", "-c", 'exec "$@" >/dev/full', "sh", *DLTUNE, "show"])
    assert finished.returncode == 1
    assert finished.stderr == "Error: stdout cannot be written: No space left on device.\n"


@pytest.mark.fault("Full disk under stdout and stderr")
def test_a_log_on_a_full_disk_does_not_end_the_run(workdir: Path) -> None:
    finished = run(["sh", "-c", 'exec "$@" 2>/dev/full', "sh", *make_command(*BRIEF)])
    assert "Saved to dltune.json" in finished.stdout
    assert read_file(workdir / "dltune.json").profiles


def test_a_server_that_is_not_there_is_reported_without_its_password(workdir: Path) -> None:
    pytest.importorskip("psycopg")
    finished = run(make_command("--storage", "postgresql+psycopg://me:hidden@127.0.0.1:9/trials"))
    assert finished.returncode == 2, finished.stderr
    assert "postgresql+psycopg://me:***@127.0.0.1:9/trials cannot be opened" in " ".join(finished.stderr.split())
    assert "hidden" not in finished.stderr
    assert list(workdir.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "labels"), [([(), ()], {None}), ([("--profile", "one"), ("--profile", "other")], {"one", "other"})]
)
@pytest.mark.fault("Two runs at once")
def test_two_runs_at_once_save_one_profile_of_each_label(
    options: list[tuple[str, ...]], labels: set[str | None], workdir: Path
) -> None:
    """They disturb each other's measurements, but not each other's results."""
    runs = [start(make_command(*BRIEF, *one)) for one in options]
    for process in runs:
        process.communicate(timeout=120)
        assert process.returncode == 0
    profiles = read_file(workdir / "dltune.json").profiles
    assert (len(profiles), {profile.label for profile in profiles}) == (len(labels), labels)
