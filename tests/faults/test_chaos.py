"""Runs are killed at random moments, each continued by the next: no process, name or broken file is left."""

from __future__ import annotations

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
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import psutil
import pytest

from autotune.profiles.store import read_file
from tests.conftest import list_shm_names
from tests.faults.stage import DLTUNE, ROOT

SEED: Final = int(os.environ.get("DLTUNE_CHAOS_SEED", "20261121"))
SIGNALS: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
KILLS: Final = int(os.environ.get("DLTUNE_CHAOS_KILLS", "8"))  # more of them take longer
HONEST: Final = ("--dataset", "tests.misbehaving:make_honest", "--max-workers", "2")
LANES: Final = (  # mostly they wait, for a moment or for an end
    HONEST,
    (*HONEST, "--fresh"),
    ("--dataset", "tests.misbehaving:make_waiting", "--fresh"),  # each profiling finds others useful
    (*HONEST, "--storage", "sqlite:///studies.db"),
)
PHASES: Final = {"": 3.5, "Profiled ": 1.2, "trial ": 1.2, "Validation run 1": 1.5}  # seconds after a word to kill in
WEIGHTS: Final = (4, 3, 3, 2)
ARRIVING_SECONDS: Final = 180.0  # until a run says the word: four runs at a time may share two busy CPUs
ENDING_SECONDS: Final = 30.0  # for a run that was asked to end; usually it takes one
VANISHING_SECONDS: Final = 30.0  # for what a killed run has started, which may be importing torch
COMMAND: Final = (
    *(*DLTUNE, "--verbose", "--sampler", "random", "--trials", "10"),
    *("--batch-size", "8", "--trial-time", "0.2s", "--epochs", "1", "--step-time", "1ms"),
)


class Lane:
    """A folder, whose path is short for the sockets that torch makes below it, and the options of its runs."""

    def __init__(self, folder: Path, options: tuple[str, ...]) -> None:
        self.ends: Counter[str] = Counter()
        self._options = options
        self._mark = uuid.uuid4().hex
        self._known = set(list_shm_names())
        self._work, self._scratch, self._log = folder / "work", folder / "tmp", folder / "log"
        for one in (self._work, self._scratch):
            one.mkdir(parents=True)

    def _start(self, stderr: IO[str]) -> subprocess.Popen[str]:
        variables = {"PYTHONPATH": str(ROOT), "CHAOS_LANE": self._mark, "TMPDIR": str(self._scratch)}
        return subprocess.Popen(
            [*COMMAND, *self._options],
            cwd=self._work,
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )

    def kill(self, word: str, moment: float, number: signal.Signals) -> None:
        """Kill a run, so many seconds after it printed a word, and check what it leaves."""
        with self._log.open("w") as stderr:
            process = self._start(stderr)
            deadline = time.monotonic() + ARRIVING_SECONDS
            while process.poll() is None and time.monotonic() < deadline and f"\n{word}" not in self._read_log():
                time.sleep(0.01)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=moment)
            if number == signal.SIGINT and process.poll() is None:
                os.killpg(process.pid, number)  # as Ctrl-C does
            else:
                process.send_signal(number)
            process.communicate(timeout=ENDING_SECONDS)
        said, output = self._read_log(), self._work / "dltune.json"
        where = f"{number.name} {moment:.2f} s after {word!r}, exit code {process.returncode}:{said}"
        words = {"Validation run 1": "validating", "trial ": "searching", "Profiled ": "searching"}
        self.ends[next((phase for word, phase in words.items() if f"\n{word}" in said), "starting")] += 1
        self._check_nothing_is_left(where)
        if output.exists():
            assert read_file(output).profiles, where
        if number != signal.SIGKILL and said.startswith("\ndltune "):  # its own code has begun, and can answer
            assert process.returncode in (0, 130), where
            assert "Traceback" not in said, where
            assert output.exists() or "\ntrial " not in said, where

    def finish(self) -> None:
        """Let the last run end, and check the folder then."""
        with self._log.open("w") as stderr:
            process = self._start(stderr)
            printed, _ = process.communicate(timeout=180)
        assert process.returncode == 0, self._read_log()
        assert printed
        (profile,) = read_file(self._work / "dltune.json").profiles
        assert profile.is_validated
        self._check_nothing_is_left("the last run")
        assert {path.name for path in self._work.iterdir()} <= {"dltune.json", ".dltune.json.lock", "studies.db"}
        assert list(self._scratch.iterdir()) == []

    def _read_log(self) -> str:
        return "\n" + self._log.read_text()

    def _check_nothing_is_left(self, where: str) -> None:
        deadline = time.monotonic() + VANISHING_SECONDS
        while left := [*self._list_processes(), *set(list_shm_names()) - self._known]:
            assert time.monotonic() < deadline, f"{left} left by {where}"
            time.sleep(0.05)

    def _list_processes(self) -> list[str]:
        return [
            f"{process.pid} {process.info['cmdline']}"
            for process in psutil.process_iter(["environ", "status", "cmdline"])
            if (process.info["environ"] or {}).get("CHAOS_LANE") == self._mark
            and process.info["status"] != psutil.STATUS_ZOMBIE
        ]


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.fault("Chaos")
def test_runs_that_are_killed_at_random_leave_nothing_but_a_valid_result(folder: Path) -> None:
    lanes = [Lane(folder / str(place), options) for place, options in enumerate(LANES)]

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
