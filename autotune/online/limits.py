"""The most workers that one training process may have, by memory, /dev/shm, open files and its share of the host."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import Any, Final

from autotune.online.group import list_workers
from autotune.online.shared_state import SharedState
from autotune.profiles.device_prefetch import find_tensors
from autotune.profiles.load import MAX_FILES_PER_WORKER, RESERVED_FILES
from autotune.profiles.schema import MAX_SEARCHED_WORKERS
from autotune.system.machine import AvailableMemory, count_whole_cpus, read_machine, read_nofile_limit, read_shm
from autotune.system.procfs import PROC, list_folder, list_used_segments, read_smaps
from autotune.system.software import inherits_imports
from autotune.units import format_bytes, parse_budget

WORKER_BYTES: Final = 48 * 2**20  # of a worker whose memory is not known yet: torch 2.13 has 15 to 25 MiB when idle
MEASURED_WORKERS: Final = 4  # reading the memory of one takes a millisecond or two
GROWTH: Final = 1.25  # of a worker's memory later in the run
SHM_SHARE: Final = 0.8  # of the free space of /dev/shm
SHM_READINGS: Final = 3  # a batch that a worker returns during one of them seems to be another program's
HELD_BATCHES: Final = 2  # in the training process: the one in use, and the next one


class WorkerLimits:
    """Reads the limits of this host each time, because the training itself uses them.

    Args:
        max_memory: Host memory for workers: a share of what is available, such as `80%`, or a size.
        max_workers: The most workers in any case.
        processes: Training processes on this host, which share it.
        start_method: Of workers; some import torch and the script again, which keeps a CPU busy.
    """

    def __init__(
        self, max_memory: str = "80%", max_workers: int | None = None, processes: int = 1, start_method: str = "fork"
    ) -> None:
        machine = read_machine()
        self.cpus = min(machine.usable_cpus, machine.of_host(processes).per_rank(processes).usable_cpus)
        self._max_memory, self._processes = max_memory, processes
        usual = max(MAX_SEARCHED_WORKERS, int(2 * self.cpus))
        if not inherits_imports(start_method):
            usual = 2 * count_whole_cpus(self.cpus)
        self._most = usual if max_workers is None else max_workers
        self._memory = AvailableMemory()
        self._batch_bytes = self._batch_tensors = self._typical_bytes = 0
        copied = 0 if start_method == "fork" else read_smaps("self")["Anonymous"]  # at most, with the dataset
        self._worker_bytes = max(WORKER_BYTES, copied)
        self.shared = SharedState()

    def measure_batch(self, batch: Any) -> None:
        """Take the size of a batch into account, which workers return through /dev/shm."""
        with suppress(Exception):  # of a type of its own
            sizes = [one.numel() * one.element_size() for one in find_tensors(batch) if one.device.type == "cpu"]
            self._batch_bytes = max(self._batch_bytes, sum(sizes))
            self._batch_tensors = max(self._batch_tensors, len(sizes))

    def measure_workers(self) -> str:
        """Take the private memory of running workers into account; return a reason if it exceeds the budget."""
        workers = [one.pid for one in list_workers()]
        found = [read_smaps(pid) for pid in workers[:: max(1, len(workers) // MEASURED_WORKERS)]]
        sizes = sorted(one["Private_Dirty"] + one["Private_Clean"] for one in found)
        if not sizes:
            return ""
        known = self._worker_bytes if self._typical_bytes else WORKER_BYTES
        self._typical_bytes = sizes[len(sizes) // 2]
        self._worker_bytes = max(known, int(GROWTH * sizes[-1]))
        used = len(workers) * self._typical_bytes
        if used <= (budget := self._read_budget(used)):
            return ""
        return f"{len(workers)} workers take {format_bytes(used)}, {self._describe_excess(budget)}"

    def explain_memory(self, prefetch: int) -> str:
        """Return why the memory allows no worker; empty if it allows one."""
        needed, budget = self._worker_bytes + prefetch * self._batch_bytes, self._read_budget(0)
        excess = f"a worker needs about {format_bytes(needed)}, {self._describe_excess(budget)}"
        return excess if needed > budget else ""

    def _describe_excess(self, budget: int) -> str:
        return f"more than {format_bytes(budget)} of memory (max_memory={self._max_memory!r})"

    def explain_open_files(self) -> str:
        """Return a reason if the training process can open few more files; takes a few microseconds."""
        most = read_nofile_limit()
        try:
            os.close(lowest := os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            lowest = most if error.errno == errno.EMFILE else 0
        if lowest < most - RESERVED_FILES // 2:
            return ""
        return f"nearly all of {most} files are open: each tensor of a worker that the training keeps is one"

    def most_workers(self, prefetch: int, kept: int) -> int:
        """Return the most workers within the limits. New ones start before the others end, so that both count.

        Args:
            prefetch: Their prefetch factor.
            kept: How many of the running workers stay.
        """
        workers = [one.pid for one in list_workers()]
        running, in_flight = len(workers), prefetch * self._batch_bytes
        tensors = prefetch * self._batch_tensors
        files = read_nofile_limit() - len(list_folder(PROC / "self" / "fd")) - RESERVED_FILES - running * tensors
        most = self._read_budget(running * self._typical_bytes) // (self._worker_bytes + in_flight)
        most = min(most, running + min(self._most - kept, files // (MAX_FILES_PER_WORKER + tensors)))
        if in_flight and self._fit_in_shm(in_flight, 0) < most:
            pids = [os.getpid(), *workers]
            most = min(most, max(self._fit_workers(pids, in_flight) for _ in range(SHM_READINGS)))
        return min(self._most, kept + max(0, most - running))

    def _fit_workers(self, pids: list[int], in_flight: int) -> int:
        """Return the workers whose batches fit in /dev/shm without those of these processes; 2 ms for each process."""
        segments = len(set[str]().union(*map(list_used_segments, pids)))
        return self._fit_in_shm(in_flight, segments * self._batch_bytes // self._batch_tensors)

    def _fit_in_shm(self, in_flight: int, ours: int) -> int:
        """Return the workers whose batches fit in /dev/shm, of which this many bytes are ours."""
        share = SHM_SHARE * (read_shm()[1] + ours) / self._processes
        return int((share - HELD_BATCHES * self._batch_bytes) // in_flight)

    def _read_budget(self, used: int) -> int:
        available = self._memory.read() + used * self._processes
        return min(parse_budget(self._max_memory, available), available) // self._processes
