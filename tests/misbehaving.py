"""One well-behaved dataset, and datasets, factories and steps that misbehave, for tests with real child processes."""

from __future__ import annotations

import atexit
import gc
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Container, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from autotune import Workload

SAMPLES = 64
FIRST_USE_SECONDS = 0.6
Place = Literal["worker", "main", "both"]


class Honest(Dataset[torch.Tensor]):
    """Small samples, quickly; `act` is called with the index of each sample before it is read."""

    def __init__(self, samples: int = SAMPLES, floats: int = 16, act: Callable[[int], Any] | None = None) -> None:
        self._samples, self._floats, self._act = samples, floats, act

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Any:
        if self._act is not None:
            self._act(index)
        return torch.full((self._floats,), float(index))


def _act_at(deed: Callable[[], Any], place: Place, indices: Container[int], index: int) -> None:
    here = "main" if get_worker_info() is None else "worker"
    if index in indices and place in (here, "both"):
        deed()


def act(
    deed: Callable[[], Any], place: Place = "both", indices: Container[int] = range(SAMPLES)
) -> Callable[[int], None]:
    """Make an `act` of `Honest` that does a deed at some indices: in workers, in the training process, or in both."""
    return partial(_act_at, deed, place, indices)


def fail(error: BaseException) -> NoReturn:
    raise error


def hang() -> NoReturn:
    """Write a byte to the file named by HUNG_FILE, if any, and never return."""
    if path := os.environ.get("HUNG_FILE"):
        _leave_byte(path)
    while True:
        time.sleep(3600)


def _leave_byte(path: str) -> None:
    with Path(path).open("ab") as file:
        file.write(b".")


class Given(Honest):
    """Returns the result of a function of the index."""

    def __init__(self, read: Callable[[int], Any], samples: int = SAMPLES) -> None:
        super().__init__(samples)
        self._read = read

    def __getitem__(self, index: int) -> Any:
        return self._read(index)


class SlowAtFirstUse(Honest):
    """Waits when a process first reads it, as for an import or a file that is opened."""

    _was_used = False

    def __getitem__(self, index: int) -> Any:
        if not self._was_used:
            time.sleep(FIRST_USE_SECONDS)
            self._was_used = True
        return super().__getitem__(index)


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


class SharesFile(LazilyOpened):
    """Opens its file at once, and so shares its position with forked workers."""

    def __init__(self) -> None:
        super().__init__()
        self._file = Path(__file__).open("rb", buffering=0)  # noqa: SIM115  # it stays open

    def __getitem__(self, index: int) -> Any:
        self._opened = os.getpid(), self._file
        return super().__getitem__(index)


class Wrapper:
    """A loader of another library, around a DataLoader."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        yield from self._loader

    def __len__(self) -> int:
        return len(self._loader)


def make_wrapper(batch_size: int = 8, num_workers: int = 0) -> Wrapper:
    return Wrapper(DataLoader(SharesFile(), batch_size, num_workers=num_workers))


def make_waiting(seconds: float = 5e-4) -> Honest:
    """Sleep for each sample: several times as many workers as CPUs are useful."""
    return Honest(act=lambda index: time.sleep(seconds))


def make_holding() -> Honest:
    """Keep 64 MiB in each worker, in epochs longer than a trial."""
    held: list[bytes] = []

    def hold(_: int) -> None:
        time.sleep(1e-3)
        if get_worker_info() is not None and not held:
            held.append(b"x" * 2**26)

    return Honest(act=hold, samples=100_000)


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
        "torch's compiler is imported": "torch._dynamo" in sys.modules,
        "torch is collected": any(one is vars(torch) for one in gc.get_objects()),
        "drawn": random.random(),
        "drawn by numpy": float(numpy.random.random()),
        "drawn by torch": float(torch.rand(1)),
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
    return Honest()


def make_counted() -> Honest:
    _leave_byte(os.environ["CALLS_FILE"])
    return Honest()


def make_chatty() -> Honest:
    os.write(1, b'{"op": "ready"}\n' + b'{"op":"probed"}\n' * 1000)
    os.write(2, b"\x00\xff noise\n")
    return Honest()


def make_with_grandchild() -> Honest:
    """Leave a process behind that has its own session and ignores SIGTERM."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    return Honest()


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


make_honest, make_lazily_opened, make_hanging, make_empty = Honest, LazilyOpened, hang, partial(Honest, samples=0)
make_unsharded, make_sharded, make_queries_batches = Unsharded, Sharded, QueriesBatches
make_slow_at_first_use, make_dicts = (
    SlowAtFirstUse,
    partial(Given, lambda index: {"x": torch.zeros(4), "labels": index}),
)
_LOST_HANDLE = partial(fail, RuntimeError("the handle does not survive a fork"))
make_fails_in_workers = partial(Honest, act=act(_LOST_HANDLE, "worker"))
make_hangs_in_workers = partial(Honest, act=act(hang, "worker"))
make_kills_its_worker = partial(Honest, act=act(make_killed, "worker"))
make_fails_at_one_sample = partial(Honest, act=act(partial(fail, KeyError("label")), indices=[SAMPLES // 3]))
make_damaged = partial(Honest, act=act(partial(fail, ValueError("the file is damaged")), indices=range(3, SAMPLES, 8)))
make_unprintable = partial(Honest, act=act(partial(fail, ValueError("caf\udce9.jpg: a name that is not UTF-8"))))
make_ends_early = partial(Honest, act=act(partial(fail, StopIteration()), indices=[SAMPLES // 2]))


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
    os.register_at_fork(after_in_parent=lambda: _leave_byte(os.environ["CALLS_FILE"]))
    return Honest()


def make_scalars() -> Workload:
    """Make batches of three scalars."""
    return Workload(
        dataset=Honest(), collate_fn=lambda samples: (torch.tensor(1.0), torch.tensor(3), torch.tensor(True))
    )


def make_counting_step() -> Callable[[Any], None]:
    """Write a byte to the file named by CALLS_FILE at every call."""
    return lambda batch: _leave_byte(os.environ["CALLS_FILE"])


def make_step_that_fails() -> Callable[[Any], None]:
    return lambda batch: fail(RuntimeError("shapes do not match"))


def make_popping_step() -> Callable[[Any], None]:
    """Take the labels out of each batch, as the loss of a model of transformers does."""
    return lambda batch: batch.pop("labels").sum()


def make_labels() -> Workload:
    """Make a stream of batches that `make_popping_step` leaves nothing of."""
    return Workload(dataset=Sharded(), collate_fn=lambda rows: {"labels": torch.stack(rows)})


def make_elsewhere() -> Honest:
    os.chdir("/")
    return Honest()


def make_no_step() -> int:
    return 5


def make_unpicklable() -> Workload:
    """Make samples that cannot be sent to another process, which hangs."""
    return Workload(dataset=Given(lambda index: (number for number in range(3))), collate_fn=list)


def make_with_exit_handlers(path: str) -> Dataset[Any]:
    """Make a file that is removed at exit, before another exit handler hangs."""
    Path(path).touch()
    atexit.register(time.sleep, 3600)
    atexit.register(Path(path).unlink)
    return make_honest()
