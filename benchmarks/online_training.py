"""A training run of some seconds in a fresh process, with or without the autopilot.

python -m benchmarks.online_training        # reads an OnlineJob (JSON) from stdin and prints an OnlineRun (JSON)
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence, Sized
from pkgutil import resolve_name
from typing import Any, Final

from pydantic import Field
from torch.utils.data import DataLoader, Dataset

import autotune
from autotune.config import FrozenModel
from autotune.online.epoch import Epoch
from autotune.online.group import WorkerSettings
from benchmarks.training import ROOT, make_environment, make_step
from benchmarks.workloads.catalogue import find_workload

MAX_SECONDS: Final = 120.0  # beyond the training itself
NEXT_BATCHES: Final = 40  # whose waits are compared with those of as many before


class OnlineJob(FrozenModel):
    """A training run with a loader of these settings.

    Attributes:
        workload: Name of the workload.
        workers: `num_workers` of the loader.
        prefetch: Its prefetch factor.
        is_tuned: Whether the autopilot changes it.
        seconds: Length of the run; it may end in the middle of an epoch.
        epoch_batches: Length of an epoch, for which the dataset is repeated or cut.
    """

    workload: str
    workers: int
    prefetch: int = 2
    is_tuned: bool
    seconds: float
    epoch_batches: int


class Resized(Dataset[Any]):
    """A dataset of another length, which repeats or cuts a given one."""

    def __init__(self, dataset: Any, length: int) -> None:
        self._dataset, self._length = dataset, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index % len(self._dataset)]


class ResizedBatches(Resized):
    """One whose samples are fetched together."""

    def __getitems__(self, indices: Sequence[int]) -> Any:
        return self._dataset.__getitems__([index % len(self._dataset) for index in indices])


class Change(FrozenModel):
    """A change of the workers: before which batch, to how many, and how long starting them took."""

    batch: int
    workers: int
    prefetch: int
    seconds: float


class OnlineRun(FrozenModel):
    """A run.

    Attributes:
        is_tuned: Whether the autopilot ran.
        ends: Seconds from the start to the end of each step.
        waits: Seconds in which the loop waited for each batch.
        changes: Changes of the workers.
        settled_at: Batches until the autopilot settled; None if it did not.
        window_rates: Batches per second in the window of each number of workers that was tried.
        workers: `num_workers` at the end.
        prefetch: `prefetch_factor` at the end.
    """

    is_tuned: bool
    ends: tuple[float, ...]
    waits: tuple[float, ...]
    changes: tuple[Change, ...] = ()
    settled_at: int | None = None
    window_rates: dict[str, float] = Field(default_factory=dict)
    workers: int
    prefetch: int

    def rate(self, start: float = 0.0, end: float = 1.0) -> float:
        """Return batches per second in a part of the run, given as shares of its time."""
        first, last = start * self.ends[-1], end * self.ends[-1]
        return sum(first < one <= last for one in self.ends) / (last - first)

    @property
    def settled_seconds(self) -> float | None:
        """Seconds until the autopilot settled."""
        return None if self.settled_at is None else self.ends[self.settled_at - 1]

    @property
    def longest_waits(self) -> list[float]:
        """The longest of 40 waits over the longest of the 40 before: after each change, forks not counted.

        In a run that is not tuned: after every 40 batches, as a comparison.
        """
        places = [(one.batch, one.seconds) for one in self.changes]
        if not self.is_tuned:
            places = [(batch, 0.0) for batch in range(NEXT_BATCHES, len(self.waits) - NEXT_BATCHES, NEXT_BATCHES)]
        ratios = list[float]()
        for batch, seconds in places:
            before = self.waits[max(0, batch - NEXT_BATCHES) : batch]
            after = list(self.waits[batch : batch + NEXT_BATCHES])
            if before and after:
                after[0] -= seconds
                ratios.append(max(after) / max(before))
        return ratios


def train_online(job: OnlineJob) -> OnlineRun:
    """Train in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.online_training"]
    options: dict[str, Any] = {"input": job.model_dump_json(), "cwd": ROOT, "env": make_environment()}
    limit = job.seconds + MAX_SECONDS
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=limit, **options)
    return OnlineRun.model_validate_json(finished.stdout)


def train(job: OnlineJob) -> OnlineRun:
    """Train in this process."""
    workload = find_workload(job.workload)
    step = make_step(workload.step, workload.step_seconds, None)
    given = resolve_name(workload.dataset)(**workload.dataset_args)
    resize = ResizedBatches if hasattr(given, "__getitems__") else Resized
    dataset = resize(given, job.epoch_batches * workload.batch_size)
    more: dict[str, Any] = {"prefetch_factor": job.prefetch, "persistent_workers": True} if job.workers else {}
    loader: Any = DataLoader(dataset, batch_size=workload.batch_size, shuffle=True, num_workers=job.workers, **more)
    changes, ends, waits = list[Change](), list[float](), list[float]()
    if job.is_tuned:
        autotune.autopilot(loader, None)
        _record_changes(changes, waits)
    settled_at, began = None, time.perf_counter()
    while not ends or ends[-1] < job.seconds:
        iterator, requested = iter(loader), time.perf_counter()
        for batch in iterator:
            waits.append(time.perf_counter() - requested)
            step(batch)
            requested = time.perf_counter()
            ends.append(requested - began)
            if ends[-1] >= job.seconds:
                break
            if job.is_tuned and settled_at is None and loader.autopilot_state.controller.has_converged:
                settled_at = len(ends)
        del iterator
    final, rates = WorkerSettings(job.workers, job.prefetch), dict[str, float]()
    if job.is_tuned:
        controller = loader.autopilot_state.controller
        final, windows = controller.settings, controller.windows
        rates = {f"w={one.workers} pf={one.prefetch}": window.rate for one, window in windows.items()}
    return OnlineRun(
        is_tuned=job.is_tuned,
        ends=tuple(ends),
        waits=tuple(waits),
        changes=tuple(changes),
        settled_at=settled_at,
        window_rates=rates,
        workers=final.workers,
        prefetch=final.prefetch,
    )


def _record_changes(changes: list[Change], waits: Sized) -> None:
    """Record each change of the workers, and how long it takes."""
    change = Epoch.change

    def change_and_record(epoch: Epoch, settings: WorkerSettings) -> bool:
        started = time.perf_counter()
        if is_made := change(epoch, settings):
            seconds, (workers, prefetch) = time.perf_counter() - started, epoch.settings
            changes.append(Change(batch=len(waits), workers=workers, prefetch=prefetch, seconds=seconds))
        return is_made

    Epoch.change = change_and_record  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    print(train(OnlineJob.model_validate_json(sys.stdin.read())).model_dump_json())
