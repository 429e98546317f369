"""Checks the samples: whether workers deliver the same ones as the training process, and how many raise."""

from __future__ import annotations

import hashlib
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from autotune.child.errors import shut_down_workers
from autotune.child.probe_storage import SampleRead, measure_read
from autotune.child.probe_workers import single_thread
from autotune.child.workload import LoadedWorkload

MAX_COMPARED: Final = 64  # samples
MIN_COMPARED: Final = 8  # of fewer nothing is said
MIN_DIFFERING: Final = (
    4  # fewer may be a rare chance that a dataset draws by itself, and that readings alike do not show
)
READINGS_ALIKE: Final = 2  # after the first, and only where samples differ
READ_SECONDS: Final = 0.25  # spent on a reading without workers
WORKERS_READ_SECONDS: Final = 0.5  # spent on one with workers, their start included
WORKERS: Final = 2  # that read at the same time
BATCH: Final = 2  # samples; small ones let the workers take turns often
MAX_NAMED: Final = 3  # indices, in a sentence
MAX_DEPTH: Final = 6  # of objects within objects
MAX_SAMPLES: Final = 2000
MAX_SECONDS: Final = 2.0
MAX_FIRST_FAILURES: Final = 20  # in a row, from the first on; then it is the dataset, and no sample


class DigestedSamples(Dataset[str]):
    """Gives a digest of each sample, which is drawn with the same chances wherever it is read."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> str:
        random.seed(index)
        torch.manual_seed(index)
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed(index)
        return make_digest(self._dataset[index])


class DataLook(NamedTuple):
    """What came of reading some samples of a map-style dataset without workers and with them; nothing of others."""

    differing: tuple[int, ...] = ()  # indices of those that came out differently
    reads: Mapping[int, SampleRead] = MappingProxyType({})  # of each by index, without workers, as they came


def compare_workers(workload: LoadedWorkload, *, workers_first: bool = False) -> DataLook:
    """Find samples that readings without workers agree on, and a reading with workers does not.

    With `workers_first` this process reads after them, and leaves them nothing that it has opened or started.
    Chances must come from the global generators: where any sample differs from one reading without workers to the next,
    the dataset draws on a generator of its own, and none is found.
    """
    parts = workload.parts
    if workload.kind != "map" or workload.is_opaque or parts.sampler is not None or parts.batch_sampler is not None:
        return DataLook()
    if not workload.forks_workers:  # nothing is shared by accident
        return DataLook()
    digested = DigestedSamples(parts.dataset)
    try:
        with keep_chances():
            indices: Sequence[int] = _spread(len(digested))
            with_workers = _read_by_workers(digested, indices, workload) if workers_first else {}
            with single_thread():
                first, reads = _read(digested, indices)
            if len(first) < MIN_COMPARED:
                return DataLook()
            with_workers = with_workers or _read_by_workers(digested, list(first), workload)
            differing = tuple(index for index in first if with_workers.get(index, first[index]) != first[index])
            with single_thread():
                is_shown = len(differing) >= MIN_DIFFERING and _reads_alike(digested, first)
            return DataLook(differing if is_shown else (), reads)
    except Exception as error:  # whatever it is, the trials will meet it and name it
        shut_down_workers(error)
        return DataLook()


def describe_differing(indices: Sequence[int]) -> str | None:
    """Say which samples came out differently from workers, and how that happens; None where none did."""
    if not indices:
        return None
    named = ", ".join(map(str, indices[:MAX_NAMED])) + (", ..." if len(indices) > MAX_NAMED else "")
    return (
        f"Workers deliver other data than the training process: of the samples that were compared, {len(indices)} came "
        f"out differently (index {named}), while two readings without workers agree. A file that was opened before the "
        "workers were forked does this, for they share its position, and so does what depends on the process that "
        "reads. Open files in the worker, in the first call of __getitem__."
    )


def _spread(samples: int) -> range:
    return range(0, samples, max(1, samples // MAX_COMPARED))[:MAX_COMPARED]


def _read(digested: DigestedSamples, indices: Sequence[int]) -> tuple[dict[int, str], dict[int, SampleRead]]:
    """Read samples in this process, until that has taken long enough; gives digests, and what each took."""
    digests: dict[int, str] = {}
    reads: dict[int, SampleRead] = {}
    deadline = time.perf_counter() + READ_SECONDS
    for index in takewhile(lambda _: time.perf_counter() < deadline, indices):
        digests[index], reads[index] = measure_read(partial(digested.__getitem__, index))
    return digests, reads


def _reads_alike(digested: DigestedSamples, first: Mapping[int, str]) -> bool:
    """Tell whether further readings in this process give the same."""
    return all(digested[index] == digest for _ in range(READINGS_ALIKE) for index, digest in first.items())


def _read_by_workers(digested: DigestedSamples, indices: Sequence[int], workload: LoadedWorkload) -> dict[int, str]:
    """Read samples in workers, until that has taken long enough."""
    loader: DataLoader[Any] = DataLoader(
        digested,
        batch_size=BATCH,
        sampler=indices,
        num_workers=WORKERS,
        worker_init_fn=workload.parts.worker_init_fn,
        multiprocessing_context=workload.start_method,
    )
    digests: list[str] = []
    deadline = time.perf_counter() + WORKERS_READ_SECONDS
    for batch in loader:
        digests.extend(batch)
        if time.perf_counter() > deadline:
            break
    return dict(zip(indices, digests, strict=False))


@contextmanager
def keep_chances() -> Iterator[None]:
    """Leave the global generators as they were."""
    numpy = sys.modules.get("numpy.random")
    states = random.getstate(), torch.get_rng_state(), None if numpy is None else numpy.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        if numpy is not None:
            numpy.set_state(states[2])


def make_digest(sample: Any) -> str:
    """Make a digest of the numbers and words of a sample; what it holds besides counts by its type."""
    hasher = hashlib.blake2b(digest_size=16)
    for piece in _list_pieces(sample):
        hasher.update(piece)
    return hasher.hexdigest()


def _list_pieces(value: Any, depth: int = 0) -> Iterator[bytes]:
    yield type(value).__name__.encode()
    if depth > MAX_DEPTH:
        return
    if isinstance(value, torch.Tensor):
        yield from _list_tensor_pieces(value)
    elif isinstance(value, str | bytes | int | float | complex | None):
        yield repr(value).encode()
    elif hasattr(value, "tobytes") and not getattr(getattr(value, "dtype", None), "hasobject", False):
        yield value.tobytes()
    elif hasattr(value, "tolist"):  # an array of objects, whose bytes are their addresses
        yield from _list_pieces(value.tolist(), depth + 1)
    elif isinstance(value, Mapping):
        for key in value:
            yield from _list_pieces(key, depth + 1)
            yield from _list_pieces(value[key], depth + 1)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _list_pieces(entry, depth + 1)
    else:
        yield from _list_pieces(getattr(value, "__dict__", None), depth + 1)


def _list_tensor_pieces(tensor: torch.Tensor) -> Iterator[bytes]:
    yield f"{tensor.dtype}{tuple(tensor.shape)}".encode()
    if tensor.layout == torch.strided:
        yield tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def describe_failure_rate(workload: LoadedWorkload) -> str | None:
    """Say how many samples raise, asked one by one at random; None where all or none do, or where they cannot be."""
    dataset, parts = workload.parts.dataset, workload.parts
    if workload.kind != "map" or parts.sampler is not None or parts.batch_sampler is not None:
        return None
    length = len(dataset)  # type: ignore[arg-type]  # a map dataset without a sampler was refused if it has none
    deadline = time.perf_counter() + MAX_SECONDS
    tried, failed = 0, []
    order = torch.randperm(length, generator=torch.Generator().manual_seed(0))  # of its own: the user's stays as it was
    for index in order[:MAX_SAMPLES].tolist():
        tried += 1
        try:
            dataset[index]
        except Exception:  # whatever the user's code raises: it is counted
            failed.append(index)
        if len(failed) == tried >= MAX_FIRST_FAILURES or time.perf_counter() > deadline:
            break
    if not 0 < len(failed) < tried:
        return None
    verb = "raises" if len(failed) == 1 else "raise"
    return (
        f"About {len(failed)} of {tried:,} samples {verb} (one is sample {failed[0]}), without workers: a training run "
        "would meet them as well. Mend them, or have the dataset replace such samples."
    )
