"""Starts training processes, has them get ready, and tells them to go.

Several can get ready side by side and then train one after the other: most of a run's time is the start of Python,
torch and CUDA, which nobody times.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from typing import IO, Final, Protocol, TypeVar

from pydantic import ValidationError

from benchmarks.training.environment import ROOT, make_environment
from benchmarks.training.messages import Order, Ready, TrainingRun, Workplace

READY_SECONDS: Final = 120.0  # a first start reads gigabytes of libraries
ENDLESS_SECONDS: Final = 300.0  # of a run that is never given up
GRACE_SECONDS: Final = 24.0  # of one that is given up by itself before
LINES_SHOWN: Final = 12  # of what a failed process printed
Answer = TypeVar("Answer", Ready, TrainingRun)


class TrainingError(Exception):
    """A training process failed or hung; its text says what it printed last."""


class Trainee(Protocol):
    """What the benchmark asks of a training process."""

    def await_ready(self) -> Ready:
        """Wait until it is ready."""

    def train(self, order: Order) -> TrainingRun:
        """Tell it to go, and wait for the end."""

    def close(self) -> None:
        """End it."""


class Trainer:
    """A training process; it gets ready from the moment on in which this is made."""

    def __init__(self, workplace: Workplace) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # lives as long as the process; `close` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.training.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env=make_environment(),
        )
        self._tell(workplace.model_dump_json())

    def await_ready(self) -> Ready:
        """Wait until everything is ready; a TrainingError says why it failed, or that it took two minutes."""
        return self._hear(Ready, READY_SECONDS)

    def train(self, order: Order) -> TrainingRun:
        """Have it train; a TrainingError says why it failed, or that it hung."""
        self._tell(order.model_dump_json())
        limit = ENDLESS_SECONDS if order.max_seconds is None else order.max_seconds + GRACE_SECONDS
        return self._hear(TrainingRun, limit)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it is gone; what it printed is told to whoever waits for its answer

    def _hear(self, kind: type[Answer], max_seconds: float) -> Answer:
        assert self._process.stdout is not None
        timer = threading.Timer(max_seconds, self._process.kill)
        timer.start()
        try:
            return kind.model_validate_json(self._process.stdout.readline())
        except ValidationError:
            raise TrainingError(self._read_errors() or f"no answer within {max_seconds:.0f} s") from None
        finally:
            timer.cancel()

    def _read_errors(self) -> str:
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        return "\n".join(self._errors.read().strip().splitlines()[-LINES_SHOWN:])

    def close(self) -> None:
        """End it; what is closed already may be closed again."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                _close_quietly(stream)


def _close_quietly(stream: IO[str]) -> None:
    try:
        stream.close()
    except OSError:
        pass  # a line that nobody is there to read any more
