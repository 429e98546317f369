"""The command as a user runs it: real processes, real signals, a real full /dev/shm."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from autotune import load
from tests.misbehaving import make_honest

ROOT = str(Path(__file__).parent.parent)
QUICK = ("--batch-size", "8", "--trial-time", "0.3s", "--epochs", "2", "--max-workers", "2", "--step-time", "1ms")
WITHOUT_SHM = "mount -t tmpfs -o size=64m tmpfs /dev/shm && exec"
pytestmark = pytest.mark.usefixtures("leaves_nothing", "workdir")


def make_command(factory: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "autotune", "--dataset", f"tests.misbehaving:{factory}", *options]


def start(factory: str, *options: str) -> subprocess.Popen[str]:
    command, environment = make_command(factory, *QUICK, *options), {**os.environ, "PYTHONPATH": ROOT}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(factory: str, *options: str) -> subprocess.CompletedProcess[str]:
    process = start(factory, *options)
    stdout, stderr = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def await_trials(process: subprocess.Popen[str], count: int) -> list[str]:
    """Read stderr until so many trials have been reported, and return their lines."""
    assert process.stderr is not None
    rows = (line for line in process.stderr if re.match(r" +\d+ ", line))
    seen = list(islice(rows, count))
    assert len(seen) == count, "the run ended before enough trials were seen"
    return seen


def test_a_quiet_run_prints_its_result_and_saves_arguments_that_a_loader_takes(workdir: Path) -> None:
    quiet = run("make_honest", "--trials", "4", "--quiet")
    assert quiet.returncode == 0, quiet.stderr
    assert quiet.stderr == ""
    assert quiet.stdout.startswith("Result")
    assert "Saved to dltune.json" in quiet.stdout
    tuned = load(workdir / "dltune.json")
    loader = DataLoader(make_honest(), shuffle=True, **tuned.loader_kwargs())
    assert sum(len(batch) for batch in loader) == 64
    seconds = tuned.profile.search.phase_seconds
    assert list(seconds) == ["profiling", "search", "validation"]
    assert sum(seconds.values()) == pytest.approx(tuned.profile.search.seconds, abs=0.1)
    assert {path.name for path in workdir.iterdir()} == {"dltune.json"}


def test_json_is_one_document_on_stdout_and_details_are_on_stderr() -> None:
    chatty = run("make_chatty", "--trials", "1", "--json", "--verbose")
    assert chatty.returncode == 0, chatty.stderr
    assert json.loads(chatty.stdout)["workload"]["dataset"] == "tests.misbehaving:make_chatty"
    assert "Limits: memory" in chatty.stderr
    assert "Phases: profiling" in chatty.stderr


@pytest.mark.slow
def test_a_run_without_standard_input_and_output_saves_its_result(workdir: Path) -> None:
    command = shlex.join(make_command("make_honest", *QUICK, "--trials", "1"))
    environment = {**os.environ, "PYTHONPATH": ROOT}
    finished = subprocess.run(["sh", "-c", f"exec {command} <&- >&-"], env=environment, check=False, timeout=120)
    assert finished.returncode == 0
    assert (workdir / "dltune.json").exists()


@pytest.mark.slow
def test_a_dataset_that_works_only_without_workers_keeps_them_off() -> None:
    finished = run("make_fails_in_workers", "--trials", "3")
    assert finished.returncode == 0, finished.stderr
    assert "the handle does not survive a fork" in finished.stderr
    assert load("dltune.json").loader_kwargs()["num_workers"] == 0


def test_a_broken_factory_exits_2_with_a_sentence(workdir: Path) -> None:
    finished = run("make_raising")
    assert finished.returncode == 2
    assert "ValueError: no such bucket" in finished.stderr
    assert finished.stdout == ""
    assert "autotune/" not in finished.stderr
    assert not (workdir / "dltune.json").exists()


def test_a_run_that_is_rejected_leaves_the_cursor_of_the_terminal_visible() -> None:
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen(
            [sys.executable, "-m", "autotune", "--dataset", "nocolon"],
            env={**os.environ, "PYTHONPATH": ROOT, "TERM": "xterm"},
            stdout=subprocess.DEVNULL,
            stderr=theirs,
        )
        os.close(theirs)
        written = b"".join(read_until_hung_up(terminal))
        assert process.wait(timeout=60) == 2
    assert b"nocolon" in written
    assert written.rfind(b"\x1b[?25h") >= written.rfind(b"\x1b[?25l")  # shown after it was hidden, if it was


def read_until_hung_up(terminal: io.RawIOBase) -> Iterator[bytes]:
    with contextlib.suppress(OSError):  # the other end was closed
        while data := terminal.read(4096):
            yield data


@pytest.mark.slow
def test_a_hanging_factory_exits_2_after_the_stall_time() -> None:
    finished = run("make_hanging", "--stall-time", "300ms")  # a factory may take 20 times as long
    assert finished.returncode == 2
    assert "made no progress" in finished.stderr


def test_ctrl_c_saves_the_best_so_far_and_exits_130() -> None:
    process = start("make_waiting", "--trials", "40", "--sampler", "random")
    await_trials(process, 3)
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted: the same command continues, unless it has --fresh." in " ".join(stdout.split())
    assert "No change recommended" not in stdout
    assert load("dltune.json").profile.result.validation_runs == 0


@pytest.mark.slow
def test_an_interrupted_run_is_continued_by_the_same_command() -> None:
    process = start("make_waiting", "--trials", "5", "--sampler", "random")
    seen = await_trials(process, 3)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    finished = run("make_waiting", "--trials", "5", "--sampler", "random")
    assert finished.returncode == 0, finished.stderr
    assert f"{len(seen)} earlier trials" in finished.stderr
    assert load("dltune.json").profile.is_validated


def can_mount() -> bool:
    probe = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f"{WITHOUT_SHM} true"]
    try:
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="needs a user namespace that may mount a tmpfs")
def test_a_small_shm_ends_with_a_feasible_configuration_and_names_the_skipped_ones() -> None:
    floats = 2**20  # 4 MiB a sample
    options = ["--arg", "samples=48", "--arg", f"floats={floats}", "--batch-size", "2,4,16"]
    options += ("--trials", "10", "--trial-time", "0.3s", "--epochs", "2", "--step-time", "1ms", "--verbose")
    inner = " ".join(["exec", *make_command("make_honest", *options)])
    finished = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f"{WITHOUT_SHM[:-4]} {inner}"],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert "would exceed" in finished.stderr
    profile = load("dltune.json", on_mismatch="default").profile
    assert profile.hardware.shm_limit_bytes == 64 * 2**20
    assert profile.result.peak_shm_bytes <= profile.budgets.shm_bytes
