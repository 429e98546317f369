"""What workers cost beyond loading: starting them, their first use of the dataset, handing batches over.

A warm process hides some of it. What the training process has imported or cached, forked workers inherit; a real
training run with workers never touches the dataset in its own process, so each of its first workers pays. Rounds
of one small batch per worker, taken before and after the process has met the dataset, show the difference.
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch.multiprocessing import get_sharing_strategy, set_sharing_strategy
from torch.utils.data import Dataset, TensorDataset, default_collate

from autotune.child.measurement import settle_garbage
from autotune.child.workload_loading import LoadedWorkload, build_loader
from autotune.config import DataLoaderSettings, LoaderConfig, ProcessSettings, StartMethod
from autotune.errors import WorkloadError
from autotune.profiles.batches import count_samples, find_tensors
from autotune.profiles.worker_init import ShareWatch
from autotune.system.machine import count_whole_cpus
from autotune.trial.workload_profile import LinearCost
from autotune.workload import Workload

MAX_ROUND_WORKERS: Final = 16  # of a round; more tell nothing new
ROUND_SIZE: Final = 2  # samples in a batch of a round
SHARD_CHECK_BATCHES: Final = 4
CACHE_SECONDS: Final = 0.3  # spent on fetching samples that are then handed over again and again
CENSUS_SECONDS: Final = 1.0  # spent on counting an epoch; longer ones are not counted
TRANSFER_BATCHES: Final = 24
TRANSFER_SECONDS: Final = 0.4


def count_round_workers(usable_cpus: float) -> int:
    """Count the workers of a round: enough to share the CPUs that may be kept busy, as in a trial."""
    return min(2 * count_whole_cpus(usable_cpus), MAX_ROUND_WORKERS)


def time_worker_round(workload: LoadedWorkload, workers: int, process: ProcessSettings | None = None) -> float | None:
    """Time an epoch of one small batch per worker, from starting them to taking them down.

    Args:
        workload: The pipeline.
        workers: How many, at least 1.
        process: How they start and share; None as the workload has it.

    Returns:
        Seconds; None where it fails, which the trials will meet again and name.
    """
    if process is None:
        process = _keep_process(workload)
    size = None if workload.batching == "user" else ROUND_SIZE
    settings = DataLoaderSettings(batch_size=size, num_workers=workers, prefetch_factor=1)
    try:
        loader = build_loader(workload, LoaderConfig(dataloader=settings, process=process))
        loader.gate.open(most_batches=workers)
        settle_garbage()
        started = time.perf_counter()
        arrived = sum(1 for _ in itertools.islice(loader, workers))
        seconds = time.perf_counter() - started
        return seconds if workload.kind == "iterable" or arrived == loader.gate.batches else None
    except Exception as error:  # whatever the user's code raises in a worker
        shut_down_workers(error)
        return None


def shut_down_workers(error: BaseException) -> None:
    """Let go of the loader that an error came through, so that its workers end now.

    The traceback is part of a cycle that holds the loader's iterator. Left to the garbage collector, the workers
    would be taken down at any moment, in the middle of an import, where they are waited for in vain, 5 s each.

    Args:
        error: What was raised; its traceback keeps no local variables.
    """
    traceback.clear_frames(error.__traceback__)


def _keep_process(workload: LoadedWorkload) -> ProcessSettings:
    """Start workers as the workload does, and share memory as torch does."""
    return ProcessSettings(multiprocessing_context=cast("StartMethod | None", workload.parts.multiprocessing_context))


def fit_worker_startup(few: float | None, many: float | None, workers: int, load_seconds: float) -> LinearCost | None:
    """Turn a round of one worker and one of `workers` into the cost of starting any number.

    Args:
        few: Seconds of the round of one worker.
        many: Seconds of the round of `workers` workers.
        workers: At least 1.
        load_seconds: Of one worker's share, which is not part of starting.

    Returns:
        Seconds as a function of the number of workers; None where a round failed.
    """
    if few is None or many is None:
        return None
    slope = max(0.0, many - few) / max(1, workers - 1)
    return LinearCost(fixed_seconds=max(0.0, few - load_seconds - slope), per_item_seconds=slope)


def share_first_use(cold: float | None, warm: float | None, workers: int, usable_cpus: float) -> float:
    """Give the CPU seconds that each of `workers` paid in a cold round and not in a warm one, 0 or more."""
    if cold is None or warm is None:
        return 0.0
    return max(0.0, cold - warm) * min(usable_cpus, workers) / workers


def measure_manager_start(usable_cpus: float) -> float:
    """Measure what a worker pays for starting torch's shared-memory manager.

    In a process that has not used `file_system` yet, every worker starts one; afterwards this process is connected,
    and the workers it forks inherit that. So the same round is run twice; afterwards the process is warm in this
    respect, and stays so.

    Args:
        usable_cpus: CPUs that can be kept busy.

    Returns:
        CPU seconds of one start, 0 or more; 0 where the strategy does not work.
    """
    workers = count_round_workers(usable_cpus)
    workload = LoadedWorkload(parts=Workload(dataset=TensorDataset(torch.zeros(2 * workers, 1))))
    process = ProcessSettings(sharing_strategy="file_system")
    cold, warm = (time_worker_round(workload, workers, process) for _ in range(2))
    return share_first_use(cold, warm, workers, usable_cpus)


class ReplayDataset(Dataset[Any]):
    """Samples that were fetched before, so that only collating and handing over cost anything.

    Args:
        samples: The samples, at least one; they are repeated as often as a loader asks.
        length: Samples in an epoch.
    """

    def __init__(self, samples: Sequence[Any], length: int) -> None:
        self._samples = samples
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._samples[index % len(self._samples)]


def fetch_samples(workload: LoadedWorkload, most: int) -> list[Any]:
    """Fetch a few samples the way a loader does.

    Args:
        workload: The pipeline; its batching must not be its own.
        most: Most samples.

    Returns:
        At least one sample, or none where the dataset is empty; fewer than `most` where they are slow.
    """
    dataset: Any = workload.parts.dataset
    if workload.kind == "iterable":
        source: Iterable[Any] = iter(dataset)
    elif hasattr(dataset, "__getitems__"):
        source = _fetch_at_once(dataset, _list_indices(workload, most))
    else:
        source = (dataset[index] for index in _list_indices(workload, most))
    samples: list[Any] = []
    deadline = time.perf_counter() + CACHE_SECONDS
    for sample in itertools.islice(source, most):
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


def _list_indices(workload: LoadedWorkload, most: int) -> list[Any]:
    parts = workload.parts
    indices: Any = parts.sampler if parts.sampler is not None else range(len(parts.dataset))  # type: ignore[arg-type]
    return list(itertools.islice(iter(indices), most))


def time_worker_transfer(workload: LoadedWorkload, samples: Sequence[Any], size: int) -> tuple[float, float]:
    """Time collating, and handing over, a batch of samples that are at hand.

    Args:
        workload: Gives the `collate_fn`.
        samples: Samples of the dataset.
        size: Samples per batch.

    Returns:
        Seconds per batch to collate it, and seconds per batch that one worker needs beyond that.
    """
    collate: Callable[[Any], Any] = workload.parts.collate_fn or default_collate
    batch = [samples[index % len(samples)] for index in range(size)]
    collate_seconds = _time_calls(lambda: collate(batch))
    cached = ReplayDataset(samples, size * TRANSFER_BATCHES)
    config = LoaderConfig(
        dataloader=DataLoaderSettings(batch_size=size, num_workers=1, prefetch_factor=2),
        process=_keep_process(workload),
    )
    loader = build_loader(LoadedWorkload(parts=Workload(dataset=cached, shuffle=False, collate_fn=collate)), config)
    moments = []
    deadline = time.perf_counter() + TRANSFER_SECONDS
    for _ in loader:
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


def _time_calls(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    calls = 0
    while calls < 3 or (time.perf_counter() - started < TRANSFER_SECONDS / 8 and calls < TRANSFER_BATCHES):
        call()
        calls += 1
    return (time.perf_counter() - started) / calls


def count_samples_single_process(workload: LoadedWorkload) -> None:
    """See how an iterable dataset shares its samples out to workers.

    Its samples are counted in one process, where an epoch is short enough, and one worker shows whether it asks which
    one it is.

    Args:
        workload: The pipeline; its census is filled in.
    """
    workload.census.asks_which_worker = _asks_which_worker(workload)
    try:
        with single_thread():
            samples = _count_epoch(workload, workers=0)
    except Exception:  # whatever it is, the trial without workers will meet it and name it
        return
    if samples is not None:
        workload.census.note(samples)


def _asks_which_worker(workload: LoadedWorkload) -> bool:
    """Tell whether a worker, before its first batch is there, looks at its number or at how many there are."""
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "asked"
        parts = dataclasses.replace(workload.parts, worker_init_fn=ShareWatch(str(note), workload.parts.worker_init_fn))
        time_worker_round(dataclasses.replace(workload, parts=parts), 1)
        return note.exists()


def _count_epoch(workload: LoadedWorkload, workers: int) -> int | None:
    """Count an epoch's samples, or until there are too many; None when it takes too long."""
    size = None if workload.batching == "user" else ROUND_SIZE
    extra = {"num_workers": workers, "prefetch_factor": 2} if workers else {}
    settings = DataLoaderSettings(batch_size=size, **extra)
    samples = 0
    deadline = time.perf_counter() + CENSUS_SECONDS
    for batch in build_loader(workload, LoaderConfig(dataloader=settings, process=_keep_process(workload))):
        samples += count_samples(batch, size or 1)
        if workload.census.is_multiplied(samples):
            break
        if time.perf_counter() > deadline:
            return None
    return samples


def workers_duplicate_data(workload: LoadedWorkload) -> bool:
    """Tell whether two workers of an iterable dataset deliver the same data.

    They do when they deliver twice the samples of one process and never ask which worker they are, or when their
    batches are equal one by one. What is drawn at random, and takes long, cannot be told.

    Args:
        workload: The pipeline.

    Returns:
        Whether it was seen to be duplicated; False where it cannot be told.
    """
    try:
        counted = _count_epoch(workload, workers=2) if workload.census.samples else None
    except Exception as error:  # whatever it is, the trials with workers will meet it and name it
        shut_down_workers(error)
        return False
    if (counted is not None and workload.census.is_exceeded(counted)) or _deliver_the_same(workload):
        return True
    workload.census.is_per_worker = counted is not None and workload.census.is_multiplied(counted)
    return False


def describe_epochs(workload: LoadedWorkload) -> tuple[str, ...]:
    """Say that more workers make an epoch longer, where `is_duplicated` has seen it; empty otherwise."""
    census = workload.census
    if not census.is_per_worker:
        return ()
    return (
        f"Each worker delivers an epoch of its own ({census.samples} samples): with 4 workers an epoch is 4 times as "
        "long. Throughputs count samples, so they can be compared; if it is not meant, share the data out in __iter__ "
        "by get_worker_info().",
    )


def _deliver_the_same(workload: LoadedWorkload) -> bool:
    """Tell whether two workers deliver equal batches.

    Batches come alternately from worker 0 and 1. They are the same data when each pair is equal although
    consecutive batches of one worker differ; constant data proves nothing.
    """
    size = None if workload.batching == "user" else ROUND_SIZE
    config = LoaderConfig(dataloader=DataLoaderSettings(batch_size=size, num_workers=2, prefetch_factor=2))
    prints = []
    try:
        for batch in itertools.islice(build_loader(workload, config), SHARD_CHECK_BATCHES):
            prints.append([tensor.cpu() for tensor in find_tensors(batch)])  # noqa: PERF401  # kept if a later one fails
    except Exception as error:  # whatever it is, the trials with workers will meet it and name it
        shut_down_workers(error)
        return False
    if len(prints) < SHARD_CHECK_BATCHES or not prints[0]:
        return False
    first, second, third, fourth = prints
    return _are_equal(first, second) and _are_equal(third, fourth) and not _are_equal(first, third)


def _are_equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(torch.equal(one, other) for one, other in zip(some, others, strict=True))
