"""One well-behaved dataset, and datasets, factories and steps that misbehave, for tests with real child processes."""

from __future__ import annotations

import gc
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from autotune import Workload

SAMPLES = 64


class Honest(Dataset[torch.Tensor]):
    """Small samples, quickly; subclasses do one thing wrong."""

    def __init__(self, samples: int = SAMPLES, floats: int = 16) -> None:
        self._samples = samples
        self._floats = floats

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Any:
        return torch.full((self._floats,), float(index))


class LazilyOpened(Honest):
    """Opens its file when it is first read, as recommended; a handle of another process is useless."""

    def __init__(self) -> None:
        super().__init__()
        self._opened: tuple[int, Any] | None = None

    def __getitem__(self, index: int) -> Any:
        if self._opened is None:
            self._opened = os.getpid(), Path(__file__).open("rb")  # noqa: SIM115  # it stays open
        opener, file = self._opened
        if opener != os.getpid():
            raise OSError("this file was opened in another process")
        file.seek(index)
        return torch.tensor(list(file.read(self._floats)))


class Waiting(Honest):
    """Sleeps for each sample: several times as many workers as CPUs are useful."""

    def __init__(self, seconds: float = 5e-4) -> None:
        super().__init__()
        self._seconds = seconds

    def __getitem__(self, index: int) -> Any:
        time.sleep(self._seconds)
        return super().__getitem__(index)


def make_telling(note: str | None = None) -> Honest:
    """Write the environment of the process to a file."""
    shared = sum(int(size) for size in re.findall(r"Shared_Dirty: +(\d+)", Path("/proc/self/smaps_rollup").read_text()))
    found = {
        "folder": str(Path.cwd()),
        "tempdir": tempfile.gettempdir(),
        "TMPDIR": os.environ["TMPDIR"],
        "session": "own" if os.getsid(0) == os.getpgid(0) else "another's",
        "argv": len(sys.argv),
        "shared_anonymous_mib": shared // 1024,
        "torch is collected": any(one is vars(torch) for one in gc.get_objects()),
        "drawn": random.random(),
        "drawn by numpy": float(numpy.random.random()),
    }
    if note is not None:
        Path(note).write_text("\n".join(f"{name}={value}" for name, value in found.items()))
    return Honest()


def make_killed() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def make_raising() -> NoReturn:
    raise ValueError("no such bucket: s3://example")


def make_none() -> None:
    return None


def make_exit() -> NoReturn:
    sys.exit(0)


def make_hard_exit() -> NoReturn:
    os._exit(0)


def make_slowly(seconds: float) -> Honest:
    time.sleep(seconds)
    return make_honest()


def make_counted() -> Honest:
    with Path(os.environ["CALLS_FILE"]).open("a") as calls:
        calls.write("x")
    return make_honest()


def make_hanging() -> NoReturn:
    while True:
        time.sleep(3600)


def make_chatty() -> Honest:
    os.write(1, b'{"op": "ready"}\n' + b'{"op":"probed"}\n' * 1000)
    os.write(2, b"\x00\xff noise\n")
    return Honest()


def make_with_grandchild() -> Honest:
    """Leave a process behind that has its own session and ignores SIGTERM."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    return Honest()


class FailsInWorkers(Honest):
    """Works in the training process only."""

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None:
            raise RuntimeError("the handle does not survive a fork")
        return super().__getitem__(index)


class FailsAtOneSample(Honest):
    """Cannot read one sample."""

    def __getitem__(self, index: int) -> Any:
        if index == SAMPLES // 3:
            raise KeyError("label")
        return super().__getitem__(index)


class Damaged(Honest):
    """Cannot read one sample of eight."""

    def __getitem__(self, index: int) -> Any:
        if index % 8 == 3:
            raise ValueError("the file is damaged")
        return super().__getitem__(index)


class HangsInWorkers(Honest):
    """Never returns in a worker."""

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None:
            time.sleep(3600)
        return super().__getitem__(index)


class KillsItsWorker(Honest):
    """Kills its worker, as the kernel's out-of-memory killer does."""

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class EndsEarly(Honest):
    """Raises StopIteration, which silently ends the epoch."""

    def __getitem__(self, index: int) -> Any:
        if index == SAMPLES // 2:
            raise StopIteration
        return super().__getitem__(index)


class Unsharded(IterableDataset[torch.Tensor]):
    """Returns everything once per worker."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(SAMPLES):
            yield torch.full((16,), float(index))


class Sharded(Unsharded):
    """Returns everything once."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for index in range(first, SAMPLES, step):
            yield torch.full((16,), float(index))


class QueriesBatches(Honest):
    """Returns a whole batch at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [super(QueriesBatches, self).__getitem__(index) for index in indices]


make_honest, make_lazily_opened, make_waiting, make_empty = Honest, LazilyOpened, Waiting, partial(Honest, samples=0)
make_fails_in_workers, make_fails_at_one_sample, make_damaged = FailsInWorkers, FailsAtOneSample, Damaged
make_hangs_in_workers, make_kills_its_worker, make_ends_early = HangsInWorkers, KillsItsWorker, EndsEarly
make_unsharded, make_sharded, make_queries_batches = Unsharded, Sharded, QueriesBatches


def make_loader() -> DataLoader[Any]:
    return DataLoader(Honest(), batch_size=8, num_workers=1, prefetch_factor=3, drop_last=True)


def make_own_batches() -> Workload:
    return Workload(dataset=Honest(), batch_sampler=[[0, 1], [2, 3, 4], [5]] * 8)


def make_raising_step() -> NoReturn:
    raise RuntimeError("no checkpoint found")


def make_forked() -> Honest:
    """Leave a copy of the child behind that would reply in its place."""
    os.fork()
    return Honest()


def make_counting_forks() -> Honest:
    """Leave a byte in a file for each worker that is forked."""
    os.register_at_fork(after_in_parent=_leave_byte)
    return Honest()


def collate_to_scalars(samples: list[Any]) -> tuple[torch.Tensor, ...]:
    return torch.tensor(1.0), torch.tensor(3), torch.tensor(True)


def make_scalars() -> Workload:
    return Workload(dataset=Honest(), collate_fn=collate_to_scalars)


def _leave_byte() -> None:
    with Path(os.environ["CALLS_FILE"]).open("ab") as calls:
        calls.write(b".")


def make_counting_step() -> Callable[[Any], None]:
    """Write a byte to the file named by CALLS_FILE at every call."""
    return lambda batch: _leave_byte()


def make_step_that_fails() -> Callable[[Any], None]:
    def step(batch: Any) -> None:
        raise RuntimeError("shapes do not match")

    return step


def make_no_step() -> int:
    return 5


class Unpicklable(Honest):
    """Returns samples that cannot be sent to another process, which hangs."""

    def __getitem__(self, index: int) -> Any:
        return (number for number in range(3))


def make_unpicklable() -> Workload:
    return Workload(dataset=Unpicklable(), collate_fn=list)
