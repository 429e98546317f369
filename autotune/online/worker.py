"""The part that runs in a worker: it counts batches and measures their cost; indices and data are unchanged."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import time
from collections.abc import Callable, Mapping
from multiprocessing.sharedctypes import RawArray
from typing import Any, Final

import torch
import torch.utils.data._utils.worker as torch_worker

from autotune.online.dataset_objects import read_globals
from autotune.system.worker_errors import UNSENT, report_unsent_data

MAX_WORKERS: Final = 1024  # of all groups of an epoch; later ones share the counters of earlier ones
_FIELDS: Final = 4  # batches, their seconds, their CPU seconds; seconds from the start to the first batch


class _Clock:
    """When this worker was started and received its indices, and its CPU time at the end of the batch before."""

    started = arrived = cpu_seconds = 0.0


class WorkerCounters:
    """Counters in memory that workers share with the training process."""

    def __init__(self) -> None:
        self._values = RawArray("d", MAX_WORKERS * _FIELDS)
        self.workers = 0  # started so far in an epoch, at most

    def collate(self, collate: Callable[[Any], Any], samples: Any) -> Any:
        """Collate a batch by the user's `collate_fn`; count it in a worker."""
        batch = collate(samples)
        if (info := torch_worker.get_worker_info()) is not None:
            before, _Clock.cpu_seconds = _Clock.cpu_seconds, time.process_time()
            first = info.id % MAX_WORKERS * _FIELDS
            self._values[first + 1] += time.perf_counter() - _Clock.arrived
            self._values[first + 2] += _Clock.cpu_seconds - before
            self._values[first] += 1
            if self._values[first] == 1:
                self._values[first + 3] = time.perf_counter() - _Clock.started
        return batch

    @property
    def start_seconds(self) -> float:
        """Seconds from the start of a worker to its first batch, of the slowest worker so far."""
        return float(max(self._values[3::_FIELDS]))

    def total(self) -> tuple[float, float, float]:
        """Return the batches of all workers, their seconds, and their CPU seconds."""
        values = self._values[: min(self.workers, MAX_WORKERS) * _FIELDS]  # all would take 100 us
        return sum(values[::_FIELDS]), sum(values[1::_FIELDS]), sum(values[2::_FIELDS])


class _IndexPickler(pickle.Pickler):
    """Pickles tensors without the rest of their storage, such as that of the permutation they are a part of."""

    def reducer_override(self, one: Any) -> Any:
        is_plain = type(one) is torch.Tensor and one.layout is torch.strided
        if not is_plain or one.untyped_storage().nbytes() <= one.nbytes:
            return NotImplemented
        return one.clone().__reduce_ex__(pickle.HIGHEST_PROTOCOL)


class TimedIndices:
    """A pickled batch of indices that notes when it arrives in a worker."""

    def __init__(self, indices: Any) -> None:
        buffer = io.BytesIO()
        _IndexPickler(buffer, pickle.HIGHEST_PROTOCOL).dump(indices)
        self._pickled = buffer.getvalue()

    def read(self) -> Any:
        """Return the indices."""
        return pickle.loads(self._pickled)  # noqa: S301  # this process has pickled them

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return _receive, (self._pickled,)


def _receive(pickled: bytes) -> Any:
    _Clock.arrived = time.perf_counter()
    return pickle.loads(pickled)  # noqa: S301  # by the training process


def start_worker(
    init: Callable[[int], Any] | None,
    collects_garbage: bool,
    parent: int,
    first: int,
    started: float,
    expected: Mapping[str, Any],
    worker_id: int,
) -> None:
    """Give a worker an id that is unique among all groups, then call the user's `worker_init_fn` with it.

    What the worker has inherited is never collected: the end of its copy of an iterator would end other workers.

    Args:
        init: The user's function.
        collects_garbage: Whether the training process does; it does not while it starts workers.
        parent: Process ID of the training if it forks workers, else 0.
        first: Workers of the groups before.
        started: When the group was started, of `time.perf_counter`.
        expected: Globals of the training process that a worker which is not forked must have, too.
        worker_id: Its number in its group.

    Raises:
        RuntimeError: A global differs.
    """
    report_unsent_data()
    if parent and os.getppid() != parent:  # it has ended meanwhile, and torch would wait for another parent
        os._exit(1)
    info = torch_worker.get_worker_info()
    for name, value in read_globals(info.dataset).items() if expected and info is not None else ():
        if expected.get(name, value) != value:
            raise RuntimeError(f"workers that are not forked have another {name} than the training")
    gc.freeze()
    if collects_garbage:
        gc.enable()
    _Clock.started = started
    number = first + worker_id
    if first and info is not None:  # the first group has torch's own ids
        torch_worker._worker_info = changed = copy.copy(info)
        object.__setattr__(changed, "id", number)
        object.__setattr__(changed, "num_workers", first + info.num_workers)
    if init is not None:
        init(number)
    _Clock.cpu_seconds = time.process_time()


def describe_error(error: BaseException) -> str:
    """Return type and first line of an error, of a worker's own one if torch sends it with its traceback."""
    try:
        lines = str(error).strip().splitlines() or [""]
    except Exception:  # of the user's class
        lines = [""]
    starts = [number for number, line in enumerate(lines) if line.endswith("Traceback (most recent call last):")]
    own = ""
    if starts:  # the line of the error comes after the frames, and before its notes
        own = next((line for line in lines[starts[-1] + 1 :] if not line.startswith(" ")), "")
    if own.rstrip().endswith(":"):  # of several lines
        more = (one.strip() for one in lines[lines.index(own) + 1 :] if one != UNSENT)
        own = f"{own.rstrip()} {next(filter(None, more), '')}"
    if lines[-1] == UNSENT:
        return f"a worker could not send a batch ({own})"
    if lines[0].startswith("Caught ") and own:
        return own
    return f"{type(error).__name__}: {lines[0]}".removesuffix(": ")
