"""Runs are killed at random moments, each continued by the next: nothing of what was told is lost."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
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
from autotune.search.trial_record import TrialRecord
from autotune.validation.rounds import ROUNDS

ROOT: Final = Path(__file__).parents[2]
SEED: Final = int(os.environ.get("DLTUNE_CHAOS_SEED", "20261121"))
SIGNALS: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
KILLS: Final = int(os.environ.get("DLTUNE_CHAOS_KILLS", "24"))  # more of them take longer
LANES: Final = {
    "a": ("--dataset", "tests.misbehaving:make_honest", "--isolation", "auto", "--max-workers", "2"),
    "b": ("--dataset", "tests.misbehaving:make_honest", "--isolation", "none", "--max-workers", "2"),
    "c": ("--dataset", "tests.misbehaving:make_waiting", "--isolation", "auto"),  # each probe finds others useful
    "d": ("--dataset", "tests.misbehaving:make_honest", "--isolation", "none", "--max-workers", "2"),
}  # mostly they wait, for a moment or for an end
PHASES: Final = {"": 3.5, "search ": 1.2, "trial ": 1.2, "confirm ": 1.5}  # a word, and the seconds after it to kill in
WEIGHTS: Final = (5, 3, 3, 1)
ARRIVING_SECONDS: Final = 40.0  # until a run says the word
TRIALS: Final = 20
ENDING_SECONDS: Final = 30.0  # for a run that was asked to end; usually it takes one
VANISHING_SECONDS: Final = 8.0  # for what a killed run has started
COMMAND: Final = (
    *(sys.executable, "-m", "autotune.cli", "--sampler", "random"),
    *("--batch-size", "8", "--trial-time", "0.2s", "--epochs", "1", "--step-time", "1ms"),
    *("--trials", str(TRIALS), "--afresh"),
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
        before = self.count_told()
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
        self._check_what_was_kept(before, said, where)
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

    def _check_what_was_kept(self, before: int, said: str, where: str) -> None:
        """Whoever saw a result finds it again: only the trial under way may be lost."""
        if self.output.exists():
            assert read_file(self.output).profiles, where
        shown = sum(line.startswith("trial ") for line in said.splitlines())
        assert before + shown <= self.count_told() <= before + shown + 1, where

    def _check_what_was_said(self, code: int, number: signal.Signals, said: str, where: str) -> None:
        if number == signal.SIGKILL or not said.startswith("dltune "):
            return  # else it has not got to its own code yet, or has no chance to say anything
        assert code in (0, 130), where
        assert "Traceback" not in said, where
        if "\ntrial " in said or "\nresumed " in said:
            assert self.output.exists(), where

    def count_told(self) -> int:
        """Count the results in the record, each of which must be whole."""
        database = self.folder / "work" / ".dltune" / "studies.db"
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for path in database.parent.glob("studies.db*"):  # with the journal of a transaction that was cut off
            shutil.copy(path, copy)
        records = [TrialRecord.model_validate_json(text) for text in _read_records(copy / "studies.db")]
        return sum(record.status != "repeated" for record in records)

    def _check_trials(self, trials: int) -> None:
        """Hold the trials of the last run against those that were told.

        Where the probes agree, they are as many as were asked for. Where they do not, a run passes over what lies
        outside its space and tries others instead, and a later run with a larger space takes over all of them.
        """
        most = TRIALS if "--max-workers" in self._options else self.count_told()
        assert TRIALS <= trials <= most

    def finish(self) -> None:
        """Let the last run go to its end, and look at the folder then."""
        log = self.folder / "log"
        with log.open("w") as stderr:
            process = self.start(stderr)
            printed, _ = process.communicate(timeout=180)
        said = log.read_text()
        assert process.returncode == 0, said
        assert "Wrote dltune.json" in printed
        (profile,) = read_file(self.output).profiles
        self._check_trials(profile.search.trials)
        assert profile.result.validation_runs >= ROUNDS
        assert _list_unfinished(self.folder / "work" / ".dltune" / "studies.db") == []
        self._check_what_is_left("the last run")
        assert sorted(path.name for path in (self.folder / "work").iterdir()) == [".dltune", "dltune.json"]
        assert sorted(path.name for path in (self.folder / "work" / ".dltune").iterdir()) == [
            ".gitignore",
            "studies.db",
        ]
        assert list(self._scratch.iterdir()) == []


def _await_word(process: subprocess.Popen[str], log: Path, word: str) -> None:
    """Wait until a run begins a line with a word; one whose search is over shows no trial any more."""
    deadline = time.monotonic() + ARRIVING_SECONDS
    words = (word, "search ended") if word == "trial " else (word,)
    while process.poll() is None and time.monotonic() < deadline:
        said = f"\n{log.read_text()}"
        if any(f"\n{candidate}" in said for candidate in words):
            return
        time.sleep(0.01)


def _read_records(database: Path) -> list[str]:
    if not database.exists():
        return []
    query = "SELECT value_json FROM trial_system_attributes WHERE key = 'dltune_record'"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'trial_system_attributes'").fetchall():
            return []
        states = connection.execute("SELECT DISTINCT state FROM trials").fetchall()
        assert states in ([], [("COMPLETE",)])
        return [json.loads(text) for (text,) in connection.execute(query)]


def _list_unfinished(database: Path) -> list[str]:
    """List the studies that no later run has continued to their end."""
    query = (
        "SELECT study_name FROM studies WHERE study_id NOT IN "
        "(SELECT study_id FROM study_user_attributes WHERE key = 'dltune_finished')"
    )
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return [name for (name,) in connection.execute(query)]


def _list_names() -> list[str]:
    return [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(("torch_", "sem."))]


def _name_phase(said: str) -> str:
    """Name how far a run had got by what it had said."""
    phases = {"confirm ": "confirming", "trial ": "searching", "search ": "searching", "dltune ": "probing"}
    return next((phase for word, phase in phases.items() if f"\n{word}" in f"\n{said}"), "starting")


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.fault("Chaos", needs="plain")
def test_runs_that_are_killed_at_random_lose_nothing_but_the_trial_under_way(folder: Path) -> None:
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
    assert min(ends[phase] for phase in ("starting", "searching", "confirming")) > 0
