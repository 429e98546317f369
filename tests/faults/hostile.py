"""Datasets and factories that crash, hang, lie, leak, or damage shared resources."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import importlib.util
import itertools
import mmap
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from autotune import Workload
from autotune.protocol.messages import MAX_MESSAGE_BYTES
from tests import misbehaving
from tests.misbehaving import SAMPLES, Given, Honest, Place, Sharded, Unsharded, act, fail, hang

MIB = 2**20


class TwoArgumentsError(Exception):
    """Cannot be rebuilt from one message."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)


class MuteError(Exception):
    """Cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def _raise_local() -> NoReturn:
    class LocalError(Exception):
        pass

    raise LocalError("its class cannot be imported")


def _write_beyond_shm() -> None:
    segment = SharedMemory(create=True, size=32 * MIB)
    assert segment.buf is not None
    segment.buf[:] = bytes(32 * MIB)


def _read_behind_the_end() -> None:
    with Path(os.environ["MAPPED_FILE"]).open("r+b") as file:
        file.truncate(MIB)
        mapped = mmap.mmap(file.fileno(), MIB)
        file.truncate(0)
        mapped[MIB // 2]


def _eat_memory() -> None:
    kept = []
    while True:
        kept.append(bytearray(b"x" * 16 * MIB))


_PINNING = "Caught RuntimeError in pin memory thread for device 0.\nOriginal Traceback (most recent call last):\n"
CUDA_ERRORS: dict[str, Exception] = {
    "allocator": torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"
    ),
    "driver": RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported asynchronously"),
    "pinning": RuntimeError(
        f'{_PINNING}  File "torch/utils/data/_utils/pin_memory.py", line 41, in do_one_step\n'
        "    data = pin_memory(data, device)\nRuntimeError: CUDA error: invalid argument\n"
    ),
    "sticky": RuntimeError("CUDA error: an illegal memory access was encountered"),
    "lost": RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    "pinning without memory": RuntimeError(f"{_PINNING}RuntimeError: CUDA error: out of memory\n"),
}
DEEDS: dict[str, Callable[[], Any]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "os._exit(3)": lambda: os._exit(3),
    "sys.exit(7)": lambda: sys.exit(7),
    "os._exit(0)": lambda: os._exit(0),
    "sys.exit()": sys.exit,
    "interrupt": partial(fail, KeyboardInterrupt()),
    "key error": partial(fail, KeyError("label")),
    "two arguments": partial(fail, TwoArgumentsError(7, "the index file is damaged")),
    "mute": partial(fail, MuteError()),
    "local error": _raise_local,
    "hang": hang,
    "terminate main": lambda: os.kill(os.getppid(), signal.SIGTERM),
    "overwrite shm": _write_beyond_shm,
    "truncate": _read_behind_the_end,
    "eat memory": _eat_memory,
    "start a process": lambda: multiprocessing.Process(target=time.sleep, args=(0,)).start(),
    "stop": partial(fail, StopIteration()),
    "ask for memory": lambda: torch.empty(512 * MIB, dtype=torch.uint8),
    **{name: partial(fail, error) for name, error in CUDA_ERRORS.items()},
}


def make_sabotaged(
    deed: str, place: Place = "worker", index: int = 20, samples: int = SAMPLES, timeout: float = 0.0
) -> Workload:
    """Make a dataset that does a deed; its order is fixed, so that the deed is neither first nor last."""
    return Workload(dataset=Honest(samples, act=act(DEEDS[deed], place, [index])), shuffle=False, timeout=timeout)


class Stream(IterableDataset[torch.Tensor]):
    """Returns the iterators that a function makes."""

    def __init__(self, make_iterator: Callable[[], Iterator[torch.Tensor]]) -> None:
        self._make_iterator = make_iterator

    def __iter__(self) -> Iterator[torch.Tensor]:
        return self._make_iterator()


class ShortQueries(Honest):
    """Returns half of a batch."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices[: max(1, len(indices) // 2)]]


def collate_by_hand(samples: list[torch.Tensor]) -> torch.Tensor:
    """Make a batch in private memory, which is moved to shared memory when the worker sends it."""
    return torch.stack(list(samples)).clone()


class ShuffledUnsharded(Unsharded):
    """Returns everything once per worker, in another order each time, so that no two batches are equal."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in torch.randperm(SAMPLES).tolist():
            yield torch.full((16,), float(index)) + torch.rand(16)


class ShardedTwice(Sharded):
    """Leaves out every second share."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        keep = 1 if worker is None else worker.num_workers
        return (sample for number, sample in enumerate(super().__iter__()) if number % keep == 0)


def make_only_once() -> Stream:
    """Make a dataset with one iterator for all epochs."""
    samples = iter([torch.full((16,), float(index)) for index in range(SAMPLES)])
    return Stream(lambda: samples)


make_short_queries, make_shuffled_unsharded, make_sharded_twice = ShortQueries, ShuffledUnsharded, ShardedTwice


DATASETS: dict[str, Callable[[], Any]] = {
    "ragged": lambda: Given(lambda index: torch.zeros(3 + index % 2)),
    "none": lambda: Given(lambda index: None),
    "object": lambda: Given(lambda index: object()),
    "grad": lambda: Given(lambda index: torch.zeros(4, requires_grad=True) * 2),
    "many tensors": lambda: Given(lambda index: tuple(torch.zeros(4) for _ in range(32))),
    "lambda": lambda: Honest(act=lambda index: None),  # cannot be pickled
    "endless": lambda: Stream(lambda: itertools.repeat(torch.zeros(16))),
    "nothing": lambda: Stream(lambda: iter(())),
    "dropped": lambda: Workload(dataset=Honest(samples=5), drop_last=True),  # its only batch, which is incomplete
    "short queries, collated": lambda: Workload(dataset=ShortQueries(), collate_fn=collate_by_hand),
    "large, collated": lambda: Workload(dataset=Honest(floats=MIB // 4), collate_fn=collate_by_hand),
    "bytes": lambda: Workload(dataset=Honest(), collate_fn=lambda samples: bytes(MIB)),  # fill the pipe
}


def make(name: str) -> Any:
    return DATASETS[name]()


def make_from_path(registered: bool) -> Dataset[Any]:
    """Load the dataset's module from a file, as scripts without packages do."""
    spec = importlib.util.spec_from_file_location("loaded_from_a_path", misbehaving.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if registered:
        sys.modules["loaded_from_a_path"] = module
    spec.loader.exec_module(module)
    made: Dataset[Any] = module.Honest()
    return made


def make_large(hang_at: int = -1) -> Workload:
    """Make samples of 1 MiB; may hang at one index."""
    return Workload(dataset=Honest(floats=MIB // 4, act=act(hang, indices=[hang_at])), shuffle=False)


def make_hoarding_step() -> Callable[[Any], None]:
    """Keep every batch, and with it a file descriptor."""
    kept: list[Any] = []
    return kept.append


def make_hanging_step() -> Callable[[Any], None]:
    """Hang at the sixth batch: after the warm-up of the step, while workers have more to send."""
    calls = itertools.count(1)

    def step(batch: Any) -> None:
        if next(calls) == 6:
            hang()

    return step


def make_lock_that_is_left() -> NoReturn:
    """Hang where Python has made a semaphore, and not yet removed its name."""
    _lock = importlib.import_module("_multiprocessing").SemLock(0, 1, 1, "/mp-dltune00", False)
    hang()


def make_short_of_addresses() -> Workload:
    """Limit what the process may map, as `ulimit -v` does, and ask for more."""
    import resource

    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 256 * MIB, resource.RLIM_INFINITY))
    return make_sabotaged("ask for memory", "both")


class Named(Dataset[torch.Tensor]):
    def __init__(self, names: Any) -> None:
        self._names = names

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(len(self._names[index]))])


def make_many_names(in_a_list: bool, samples: int = 2_500_000) -> Dataset[Any]:
    """Hold many names: in a list of small objects, or in one tensor."""
    if in_a_list:
        return Named([f"bucket/folder/{number:012d}.jpg" for number in range(samples)])
    return Named(torch.ones(samples, 64, dtype=torch.uint8))


_LOCK = threading.Lock()


def _take_lock(index: int) -> None:
    if get_worker_info() is not None:
        with _LOCK:
            pass


def make_locked() -> Dataset[Any]:
    """Make a dataset whose workers need a lock that a thread of the training process holds."""
    is_held = threading.Event()

    def hold() -> None:
        with _LOCK:
            is_held.set()
            time.sleep(3600)

    threading.Thread(target=hold, daemon=True).start()
    is_held.wait()
    return Honest(act=_take_lock)


def _take_two_threads(worker: int) -> None:
    torch.set_num_threads(2)


def _compute(index: int) -> None:
    torch.ones(4 * MIB).sum()


def make_parallel(parallel_before: bool = False) -> Workload:
    """Make a dataset whose workers use two threads, perhaps after the training process has done so."""
    if parallel_before:
        torch.set_num_threads(2)
        _compute(0)
    return Workload(dataset=Honest(act=_compute), worker_init_fn=_take_two_threads)


def make_closed() -> Dataset[Any]:
    os.closerange(0, 4096)
    return Honest()


def make_flood() -> Dataset[Any]:
    """Print 100 MB, some of it like a message."""
    for _ in range(100):
        os.write(1, b'{"op":"probed","profile":{}}\n' * 36_000)
        os.write(2, b"\0\xff noise\n")
    return Honest()


def make_unwilling_to_end() -> Dataset[Any]:
    """Start a thread, register an exit handler and ignore SIGTERM, each of which keeps a process from ending."""
    threading.Thread(target=time.sleep, args=(3600,)).start()
    atexit.register(time.sleep, 3600)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return Honest()


def make_fork_that_stays() -> Dataset[Any]:
    """Fork behind Python's back, so that the copy keeps every descriptor, and let only the copy live."""
    if ctypes.CDLL(None).fork() == 0:
        time.sleep(3600)
    os._exit(0)


def make_helped(method: str) -> Dataset[Any]:
    """Make a dataset that needs a process, which is started by a thread that ends."""
    context: Any = multiprocessing.get_context(method)
    helper = context.Process(target=time.sleep, args=(3600,))
    thread = threading.Thread(target=helper.start)
    thread.start()
    thread.join()
    time.sleep(1.0)  # for a spawned process to have read its arguments
    return Honest(act=lambda _: os.waitpid(helper.pid or 0, os.WNOHANG) == (0, 0) or fail(RuntimeError("it is gone")))


def make_hidden(seconds: str, crashing: bool = False) -> Dataset[Any]:
    """Leave a process behind that has a session and an environment of its own, and whose parent is gone."""
    path = f"PATH={os.environ['PATH']}"
    subprocess.run(["env", "-i", path, "sh", "-c", f"setsid sleep {seconds} &"], check=True)
    if crashing:
        os.abort()
    return Honest()


def make_group_killer() -> NoReturn:
    os.killpg(0, signal.SIGKILL)
    time.sleep(3600)
    raise AssertionError


def make_parent_killer() -> NoReturn:
    """Terminate the parent, which ends this process within the second unless the parent was out of reach."""
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(1.0)
    raise RuntimeError("the parent lives")


def make_step_without_memory() -> Callable[[Any], None]:
    return lambda batch: fail(CUDA_ERRORS["allocator"])


OBJECTS = 16_000  # read by one sample: about two MiB of pages


def make_leak() -> Dataset[Any]:
    """Make a dataset that takes 8 ms for a sample and leaks 1 MiB, in whichever process reads it."""
    kept: list[Any] = []

    def leak(index: int) -> None:
        time.sleep(0.008)
        kept.append(bytearray(b"x" * MIB))

    return Honest(4096, act=leak)


def make_copy_on_write() -> Dataset[Any]:
    """Hold many small Python objects, whose reference counts each worker writes, which copies their pages."""
    objects = [str(number) * 10 for number in range(1_500_000)]

    def read(index: int) -> torch.Tensor:
        time.sleep(0.001)
        start = index * 977 * OBJECTS % len(objects)
        return torch.tensor([float(len(objects[start : start + OBJECTS]))])

    return Given(read, samples=4096)


LIES = {
    "noise": b"\x00\xff noise",
    "half a report": b'{"op": "measured"}',
    "no time": b'{"op": "measured", "measurement": {"epochs": [{"batch_seconds": [], "end_seconds": 0, '
    b'"wait_seconds": 0, "samples": 9, "closed_after": null}], "epoch_batches": 1, '
    b'"stopped": "done"}}',
    "depth": b"[" * 100_000,
    "a phase that is a number": b'{"op": "progress", "phase": 1e999, "batches": -1}',
    "an endless message": b"",  # made when it is sent: each process that imports this module would hold 65 MiB
}


def make_liar(lie: str) -> Dataset[Any]:
    """Make a dataset that sends something false to the tuner for each sample."""

    def send(index: int) -> None:
        for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208  # names, as numbers
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as line:
                if line.family == socket.AF_UNIX and line.type == socket.SOCK_STREAM:
                    with Connection(line.detach()) as connection:
                        connection.send_bytes(LIES[lie] or b"x" * (MAX_MESSAGE_BYTES + 2**20))

    return Honest(act=send)


def make_vandal(folder: str, trigger: str, how: str) -> Dataset[Any]:
    """Make a dataset that fills a file system or makes it read-only once the file `trigger` exists."""

    def strike(index: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(trigger)  # noqa: PTH108  # as fast as can be
            if how == "read-only":
                subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
            with contextlib.suppress(OSError), (Path(folder) / "filler").open("ab", buffering=0) as filler:
                while how == "fill":
                    filler.write(b"x" * 512)

    return Honest(act=strike)


def make_polars(before: bool = True) -> Dataset[torch.Tensor]:
    """Use Polars in whichever process reads, and perhaps before: workers that are forked afterwards hang."""
    pl = importlib.import_module("polars")
    frame = pl.DataFrame({"key": [number % 7 for number in range(100_000)]})
    dataset = Honest(act=lambda index: frame.group_by("key").agg(pl.len()))
    if before:
        dataset[0]
    return dataset


def make_tokenizers() -> Dataset[torch.Tensor]:
    library = importlib.import_module("tokenizers")
    tokenizer = library.Tokenizer(library.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
    dataset = Honest(act=lambda index: tokenizer.encode_batch(["a b c " * 100] * 100))
    dataset[0]
    return dataset
