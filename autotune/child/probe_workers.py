"""What workers cost beyond loading: starting them, their first use of the dataset, handing batches over.

A warm process hides some of it. What the training process has imported or cached, forked workers inherit; a real
training run with workers never touches the dataset in its own process, so each of its first workers pays. Rounds
of one small batch per worker, taken before and after the process has met the dataset, show the difference.
"""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, Final, NamedTuple

import torch
from torch.multiprocessing import get_sharing_strategy, set_sharing_strategy
from torch.utils.data import Dataset, TensorDataset, default_collate

from autotune.child.custom_loaders import MeasuredLoader
from autotune.child.errors import shut_down_workers
from autotune.child.loader import build_plain_loader
from autotune.child.timing import time_calls
from autotune.child.trial import settle_garbage
from autotune.child.workload import LoadedWorkload
from autotune.config import ProcessSettings
from autotune.errors import WorkloadError
from autotune.protocol.workload_profile import LinearCost
from autotune.system.machine import count_whole_cpus
from autotune.system.processes import measure_pss, read_thread_seconds
from autotune.system.software import read_start_method_in_force
from autotune.units import format_seconds
from autotune.workload import Workload

MAX_ROUND_WORKERS: Final = 16  # of a round; more tell nothing new
ROUND_BATCH_SIZE: Final = 2
MAX_FETCH_SECONDS: Final = 0.3  # spent on fetching samples that are then handed over again and again
TRANSFER_BATCHES: Final = 24
TRANSFER_SECONDS: Final = 0.25
COLLATE_SECONDS: Final = 0.05
USAGE_BATCHES: Final = 2  # after the first one, with which libraries set themselves up
OWN_THREADS: Final = 3  # of a worker: the one that loads, and two that send batches
MIN_THREAD_SECONDS: Final = 5e-3  # of CPU time; less says nothing about threads
NOTABLE_START_SECONDS: Final = 0.2  # of starting a worker; a fork takes less
DESCRIBED_WORKERS: Final = 8


def count_round_workers(usable_cpus: float) -> int:
    """Count the workers of a round: enough to share the CPUs that may be kept busy, as in a trial."""
    return min(2 * count_whole_cpus(usable_cpus), MAX_ROUND_WORKERS)


def start_worker(loader: MeasuredLoader) -> tuple[BaseProcess, Iterator[Any]]:
    """Begin an epoch of a loader with one worker, and give its process and the batches to come."""
    before = {child.pid for child in multiprocessing.active_children()}
    batches = iter(loader)
    (worker,) = (child for child in multiprocessing.active_children() if child.pid not in before)
    return worker, batches


def time_worker_round(workload: LoadedWorkload, workers: int, process: ProcessSettings | None = None) -> float | None:
    """Time an epoch of one small batch per worker, from starting them to taking them down, in seconds.

    None stands for one that failed, which the trials will meet again and name. Without `process`, workers start as the
    workload has it.
    """
    try:
        loader = build_plain_loader(workload, ROUND_BATCH_SIZE, workers, prefetch_factor=1, process=process)
        loader.index_source.open(max_batches=workers)
        settle_garbage()
        started = time.perf_counter()
        arrived = sum(1 for _ in itertools.islice(loader, workers))
        seconds = time.perf_counter() - started
        is_counted = workload.kind == "map" and loader.delivers_as_sampled
        return seconds if not is_counted or arrived == loader.index_source.batches else None
    except Exception as error:  # whatever the user's code raises in a worker
        shut_down_workers(error)
        return None


def fit_worker_startup(few: float | None, many: float | None, workers: int, load_seconds: float) -> LinearCost | None:
    """Turn the seconds of a round of one worker and of one of `workers` into the cost of starting any number.

    `load_seconds` is what one worker's share takes, which is not part of starting. None where a round failed.
    """
    if few is None or many is None:
        return None
    slope = max(0.0, many - few) / max(1, workers - 1)
    return LinearCost(fixed_seconds=max(0.0, few - load_seconds - slope), per_item_seconds=slope)


def per_worker_warmup_seconds(cold: float | None, warm: float | None, workers: int, usable_cpus: float) -> float:
    """Give the CPU seconds that each of `workers` paid in a cold round and not in a warm one, 0 or more."""
    if cold is None or warm is None:
        return 0.0
    return max(0.0, cold - warm) * min(usable_cpus, workers) / workers


def measure_manager_start(usable_cpus: float) -> float:
    """Measure what a worker pays for starting torch's shared-memory manager.

    In a process that has not used `file_system` yet, every worker starts one; afterwards this process is connected,
    and the workers it forks inherit that. So the same round is run twice; afterwards the process is warm in this
    respect, and stays so. The answer is in CPU seconds, and 0 where the strategy does not work.
    """
    workers = count_round_workers(usable_cpus)
    workload = LoadedWorkload(parts=Workload(dataset=TensorDataset(torch.zeros(2 * workers, 1))))
    process = ProcessSettings(sharing_strategy="file_system")
    cold, warm = (time_worker_round(workload, workers, process) for _ in range(2))
    return per_worker_warmup_seconds(cold, warm, workers, usable_cpus)


class WorkerUsage(NamedTuple):
    """What a worker uses after its first batches; zeros if unknown."""

    threads_cpu: float = 0.0  # CPU time of its other threads over that of the one that loads
    memory_bytes: int = 0  # its share of the machine's memory, without /dev/shm


def measure_worker(workload: LoadedWorkload) -> WorkerUsage:
    """Start a worker and measure its threads and its memory after a few batches; the user's own loaders are skipped."""
    if workload.own is not None:
        return WorkerUsage()
    try:
        loader = build_plain_loader(workload, ROUND_BATCH_SIZE, workers=1)
        loader.index_source.open(max_batches=USAGE_BATCHES + 3)  # it may still work while it is measured
        worker, batches = start_worker(loader)
        assert worker.pid is not None  # it was started
        next(batches, None)  # libraries set themselves up
        before = read_thread_seconds(worker.pid)
        for _ in range(USAGE_BATCHES):
            next(batches, None)
        spent = {thread: end - before.get(thread, 0.0) for thread, end in read_thread_seconds(worker.pid).items()}
        return WorkerUsage(_compare_threads(spent, worker.pid), measure_pss([worker.pid]))
    except Exception as error:  # the trials with workers will meet it and name it
        shut_down_workers(error)
        return WorkerUsage()


def _compare_threads(spent: Mapping[int, float], loading: int) -> float:
    """Return the CPU time of other threads over that of the loading one; 0 if there are only those that send."""
    others = sum(seconds for thread, seconds in spent.items() if thread != loading)
    if len(spent) <= OWN_THREADS or others < MIN_THREAD_SECONDS:
        return 0.0
    return others / max(MIN_THREAD_SECONDS, spent.get(loading, 0.0))


def describe_start(workload: LoadedWorkload, start: LinearCost | None) -> str | None:
    """Return the time that workers take to start if they are not forked; None if it is short."""
    if start is None or workload.forks_workers or start.per_item_seconds < NOTABLE_START_SECONDS:
        return None
    return (
        f"Workers start by {workload.start_method or read_start_method_in_force()}: {DESCRIBED_WORKERS} of them take "
        f"{format_seconds(start.per_batch(DESCRIBED_WORKERS))}, {format_seconds(start.per_item_seconds)} more for each."
    )


class ReplayDataset(Dataset[Any]):
    """Samples that were fetched before, again and again, so that only collating and handing over cost anything."""

    def __init__(self, samples: Sequence[Any], length: int) -> None:
        self._samples = samples
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._samples[index % len(self._samples)]


def fetch_samples(workload: LoadedWorkload, max_samples: int) -> list[Any]:
    """Fetch a few samples the way a loader does; slow ones are fewer, but at least one where there is any.

    Its batching must not be the workload's own.
    """
    dataset: Any = workload.parts.dataset
    if workload.kind == "iterable":
        source: Iterable[Any] = iter(dataset)
    else:
        order: Any = workload.parts.sampler if workload.parts.sampler is not None else range(len(dataset))
        indices = list(itertools.islice(iter(order), max_samples))
        is_at_once = hasattr(dataset, "__getitems__")
        source = _fetch_at_once(dataset, indices) if is_at_once else (dataset[index] for index in indices)
    samples: list[Any] = []
    deadline = time.perf_counter() + MAX_FETCH_SECONDS
    for sample in itertools.islice(source, max_samples):
        samples.append(sample)
        if time.perf_counter() > deadline:
            break
    return samples


def _fetch_at_once(dataset: Any, indices: list[Any]) -> list[Any]:
    samples: list[Any] = dataset.__getitems__(indices)
    if len(samples) != len(indices):
        raise WorkloadError(
            f"The dataset's __getitems__ returned {len(samples)} samples for {len(indices)} indices: it must return "
            "one for each, or throughputs are wrong and training skips data."
        )
    return samples


def time_worker_transfer(workload: LoadedWorkload, samples: Sequence[Any], size: int) -> tuple[float, float]:
    """Time a batch of samples that are at hand: seconds to collate it, and what one worker needs beyond that."""
    collate: Callable[[Any], Any] = workload.parts.collate_fn or default_collate
    batch = [samples[index % len(samples)] for index in range(size)]
    collate_seconds = statistics.fmean(
        one.wall for one in time_calls(lambda: collate(batch), COLLATE_SECONDS, min_calls=3, max_calls=TRANSFER_BATCHES)
    )
    replay = Workload(
        dataset=ReplayDataset(samples, size * TRANSFER_BATCHES),
        shuffle=False,
        collate_fn=collate,
        multiprocessing_context=workload.start_method,
    )
    moments = []
    deadline = time.perf_counter() + TRANSFER_SECONDS
    for _ in build_plain_loader(LoadedWorkload(parts=replay), size, workers=1):
        moments.append(time.perf_counter())
        if len(moments) > 4 and moments[-1] > deadline:
            break
    steady = moments[2:]  # the first ones were prepared while the worker started
    per_batch = (steady[-1] - steady[0]) / (len(steady) - 1) if len(steady) > 1 else collate_seconds
    return collate_seconds, max(0.0, per_batch - collate_seconds)


def connect_manager() -> None:
    """Have this process start torch's shared-memory manager, unless it is connected to one, as a probe leaves it.

    Workers that are forked later use that one, so that a trial pays what it would in the process of the probe; what
    starting one costs is known by then. Where the strategy does not work, the trial meets that again and names it.
    """
    strategy = get_sharing_strategy()
    set_sharing_strategy("file_system")
    try:
        torch.zeros(1).share_memory_()
    except RuntimeError:
        pass
    finally:
        set_sharing_strategy(strategy)


@contextmanager
def single_thread() -> Iterator[None]:
    """Compute on one thread, as every worker does.

    More of them would count their spinning as work, and OpenMP does not survive a fork: in the workers of a process
    that has computed on two threads, computing on two threads hangs.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
