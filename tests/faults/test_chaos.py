"""Runs are killed at random moments, each continued by the next: no process, name or broken file is left."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final

import psutil
import pytest

from autotune.profiles.store import read_file

ROOT: Final = Path(__file__).parents[2]
SEED: Final = int(os.environ.get("DLTUNE_CHAOS_SEED", "20261121"))
SIGNALS: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
KILLS: Final = int(os.environ.get("DLTUNE_CHAOS_KILLS", "24"))  # more of them take longer
LANES: Final = {
    "a": ("--dataset", "tests.misbehaving:make_honest", "--max-workers", "2"),
    "b": ("--dataset", "tests.misbehaving:make_honest", "--max-workers", "2", "--fresh"),
    "c": ("--dataset", "tests.misbehaving:make_waiting", "--fresh"),  # each profiling finds others useful
    "d": ("--dataset", "tests.misbehaving:make_honest", "--max-workers", "2", "--storage", "sqlite:///studies.db"),
}  # mostly they wait, for a moment or for an end
PHASES: Final = {
    "": 3.5,
    "Profiled ": 1.2,
    "trial ": 1.2,
    "Validation run 1": 1.5,
}  # a word, and the seconds after it to kill in
WEIGHTS: Final = (4, 3, 3, 2)
ARRIVING_SECONDS: Final = 40.0  # until a run says the word
TRIALS: Final = 20
ENDING_SECONDS: Final = 30.0  # for a run that was asked to end; usually it takes one
VANISHING_SECONDS: Final = 8.0  # for what a killed run has started
COMMAND: Final = (
    *(sys.executable, "-m", "autotune", "--verbose", "--sampler", "random"),
    *("--batch-size", "8", "--trial-time", "0.2s", "--epochs", "1", "--step-time", "1ms"),
    *("--trials", str(TRIALS)),
)


class Lane:
    """A folder in which one run after another is killed.

    Args:
        folder: The folder; short, for the sockets that torch makes below it.
        options: What its runs are given beside what all are.
    """

    def __init__(self, folder: Path, options: tuple[str, ...]) -> None:
        self.folder = folder
        self.ends: Counter[str] = Counter()
        self._options = options
        self._mark = uuid.uuid4().hex
        self._scratch = folder / "tmp"
        self._others_names = set(_list_names())
        self._scratch.mkdir()
        (folder / "work").mkdir()

    @property
    def output(self) -> Path:
        return self.folder / "work" / "dltune.json"

    def start(self, stderr: IO[str]) -> subprocess.Popen[str]:
        """Start a run as a shell starts a job: in a process group of its own."""
        return subprocess.Popen(
            [*COMMAND, *self._options],
            cwd=self.folder / "work",
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "CHAOS_LANE": self._mark,
                "TMPDIR": str(self._scratch),
            },
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )

    def kill(self, word: str, moment: float, number: signal.Signals) -> None:
        """Kill a run, so many seconds after it said a word, and look at what it leaves."""
        log = self.folder / "log"
        with log.open("w") as stderr:
            process = self.start(stderr)
            _await_word(process, log, word)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=moment)
            if number == signal.SIGINT and process.poll() is None:
                os.killpg(process.pid, number)  # as Ctrl-C does
            else:
                process.send_signal(number)
            process.communicate(timeout=ENDING_SECONDS)
        said = log.read_text()
        where = f"{number.name} {moment:.2f} s after {word!r}, exit code {process.returncode}:\n{said}"
        self.ends[_name_phase(said)] += 1
        self._check_what_is_left(where)
        if self.output.exists():
            assert read_file(self.output).profiles, where
        self._check_what_was_said(process.returncode, number, said, where)

    def _check_what_is_left(self, where: str) -> None:
        deadline = time.monotonic() + VANISHING_SECONDS
        while (
            left := [*self._list_processes(), *set(_list_names()) - self._others_names]
        ) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left, f"{left} left by {where}"

    def _list_processes(self) -> list[str]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("CHAOS_LANE") == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {' '.join(process.cmdline())}")
        return found

    def _check_what_was_said(self, code: int, number: signal.Signals, said: str, where: str) -> None:
        if number == signal.SIGKILL or not said.startswith("dltune "):
            return  # else it has not got to its own code yet, or has no chance to say anything
        assert code in (0, 130), where
        assert "Traceback" not in said, where
        if "\ntrial " in said:
            assert self.output.exists(), where

    def finish(self) -> None:
        """Let the last run go to its end, and look at the folder then."""
        log = self.folder / "log"
        with log.open("w") as stderr:
            process = self.start(stderr)
            printed, _ = process.communicate(timeout=180)
        said = log.read_text()
        assert process.returncode == 0, said
        assert printed
        (profile,) = read_file(self.output).profiles
        assert profile.is_validated
        self._check_what_is_left("the last run")
        left = {path.name for path in (self.folder / "work").iterdir()}
        assert left <= {"dltune.json", ".dltune.json.lock", "studies.db"}
        assert list(self._scratch.iterdir()) == []


def _await_word(process: subprocess.Popen[str], log: Path, word: str) -> None:
    """Wait until a run begins a line with a word, or ends."""
    deadline = time.monotonic() + ARRIVING_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if f"\n{word}" in f"\n{log.read_text()}":
            return
        time.sleep(0.01)


def _list_names() -> list[str]:
    return [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(("torch_", "sem."))]


def _name_phase(said: str) -> str:
    """Name how far a run had got by what it had said."""
    phases = {"Validation run 1": "validating", "trial ": "searching", "Profiled ": "searching"}
    return next((phase for word, phase in phases.items() if f"\n{word}" in f"\n{said}"), "starting")


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.fault("Chaos", needs="plain")
def test_runs_that_are_killed_at_random_leave_nothing_but_a_valid_result(folder: Path) -> None:
    lanes = []
    for name, options in LANES.items():
        (folder / name).mkdir()
        lanes.append(Lane(folder / name, options))

    def go(lane: Lane, place: int) -> None:
        seed = SEED + place
        chance = random.Random(seed)
        for _ in range((KILLS + place) // len(lanes)):
            (word,) = chance.choices(tuple(PHASES), WEIGHTS)
            moment, number = chance.uniform(0.0, PHASES[word]), chance.choice(SIGNALS)
            sys.stdout.write(f"seed {seed}: {number.name} {moment:.2f} s after {word!r}\n")
            lane.kill(word, moment, number)
        lane.finish()

    with ThreadPoolExecutor(len(lanes)) as pool:
        for done in [pool.submit(go, lane, place) for place, lane in enumerate(lanes)]:
            done.result()
    ends = sum((lane.ends for lane in lanes), Counter())
    sys.stdout.write(f"seed {SEED}: {KILLS} kills: {dict(ends)}\n")
    assert min(ends[phase] for phase in ("starting", "searching", "validating")) > 0
