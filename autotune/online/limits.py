"""The most workers that one training process may have, by memory, /dev/shm, open files and its share of the host."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any, Final

from autotune.profiles.device_prefetch import find_tensors
from autotune.protocol.budgets import MAX_SEARCHED_WORKERS
from autotune.system.machine import AvailableMemory, read_machine, read_shm
from autotune.system.procfs import list_folder, read_smaps
from autotune.units import parse_budget

WORKER_BYTES: Final = 48 * 2**20  # of a worker whose memory is not known yet: torch 2.13 has 15 to 25 MiB when idle
MEASURED_WORKERS: Final = 4  # reading the memory of one takes a millisecond or two
SHM_SHARE: Final = 0.8  # of the free space of /dev/shm
RESERVED_FILES: Final = 128
FILES_PER_WORKER: Final = 8  # of queues, in the training process


class WorkerLimits:
    """Reads the limits of this host each time, because the training itself uses them.

    Args:
        max_memory: Host memory for added workers: a share of what is available, such as `80%`, or a size.
        max_workers: The most workers in any case.
        processes: Training processes on this host, which share it.
    """

    def __init__(self, max_memory: str = "80%", max_workers: int | None = None, processes: int = 1) -> None:
        machine = read_machine()
        self.cpus = machine.usable_cpus / processes
        self._max_memory, self._processes = max_memory, processes
        self._most = max(MAX_SEARCHED_WORKERS, int(2 * self.cpus)) if max_workers is None else max_workers
        self._nofile = machine.nofile_limit
        self._memory = AvailableMemory()
        self._batch_bytes = self._batch_tensors = self._worker_bytes = 0

    def measure_batch(self, batch: Any) -> None:
        """Take the size of a batch into account, which workers return through /dev/shm."""
        sizes = [one.numel() * one.element_size() for one in find_tensors(batch) if one.device.type == "cpu"]
        self._batch_bytes = max(self._batch_bytes, sum(sizes))
        self._batch_tensors = max(self._batch_tensors, len(sizes))

    def measure_workers(self) -> None:
        """Take the private memory of running workers into account."""
        workers = [one.pid for one in multiprocessing.active_children() if one.pid is not None]
        private = [read_smaps(pid) for pid in workers[:: max(1, len(workers) // MEASURED_WORKERS)]]
        used = [one["Private_Dirty"] + one["Private_Clean"] for one in private]
        self._worker_bytes = max([self._worker_bytes, *used])

    def most_workers(self, prefetch: int, running: int) -> int:
        """Return the most workers with this prefetch factor, of which `running` ones have their resources already."""
        in_flight = prefetch * self._batch_bytes
        budget = parse_budget(self._max_memory, available := self._memory.read())
        memory = min(budget, available) // self._processes
        limits = [self._most, running + memory // (max(WORKER_BYTES, self._worker_bytes) + in_flight)]
        if in_flight:
            limits.append(running + int(SHM_SHARE * read_shm()[1] / self._processes) // in_flight)
        open_files = len(list_folder(Path(f"/proc/{os.getpid()}/fd")))
        per_worker = FILES_PER_WORKER + prefetch * self._batch_tensors
        limits.append(running + (self._nofile - open_files - RESERVED_FILES) // per_worker)
        return max(0, min(limits))
