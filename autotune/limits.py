"""What a trial may use, and what a configuration would need: rejected before it can do harm.

A worker's batches travel through /dev/shm. At most `num_workers * prefetch_factor + 2` of them exist at
once, each tensor rounded up to pages; with the `file_descriptor` strategy each tensor also holds a
descriptor in the training process. What trials measure corrects the share that cannot be read off:
the private memory of a worker.
"""

from __future__ import annotations

from typing import Final, Self

from autotune.errors import UsageError
from autotune.machine import MachineProfile, count_whole_cpus
from autotune.messages import TrialResult, WorkloadProfile
from autotune.request import TuningRequest
from autotune.schema import Bytes, Count, LimitsRecord, LoaderConfig, Value
from autotune.units import format_bytes, parse_budget

PAGE_BYTES: Final = 4096
WORKER_BYTES: Final = 24 * 2**20  # private memory of an idle forked worker, torch 2.13: 15 to 25 MiB
BASE_FILES: Final = 64  # interpreter, libraries, the user's own; measured 30 to 50
WORKER_FILES: Final = 6  # queue, sentinel and resource-sharer ends per worker in the parent
MOST_WORKERS: Final = 64
MEMORY_RESERVE: Final = 0.03  # of physical memory that must stay free whatever the budget says


class Limits(Value):
    """Budgets for everything one training process and its workers use on this host.

    Attributes:
        memory_bytes: Host memory.
        reserve_bytes: Host memory that must stay available to others.
        shm_bytes: /dev/shm.
        nofile: Open files of one process.
        gpu_bytes: Device memory; None on the CPU.
        max_workers: Upper bound of num_workers.
    """

    memory_bytes: Bytes
    reserve_bytes: Bytes
    shm_bytes: Bytes
    nofile: Count
    gpu_bytes: Bytes | None = None
    max_workers: Count = MOST_WORKERS

    def record(self) -> LimitsRecord:
        """Give the part that is written into the profile."""
        return LimitsRecord(**self.model_dump(exclude={"reserve_bytes"}))


class Violation(Value):
    """One limit that a configuration would break, or broke."""

    resource: str
    needed: float
    limit: float

    def describe(self) -> str:
        """Say it with the number against the limit."""
        if self.resource == "open files":
            return f"{self.resource}: {self.needed:,.0f} needed of {self.limit:,.0f}"
        return f"{self.resource}: {format_bytes(self.needed)} needed of {format_bytes(self.limit)}"


class Demand(Value):
    """What a configuration is expected to use at its peak."""

    memory_bytes: Bytes
    shm_bytes: Bytes
    files: Count

    def find_violations(self, limits: Limits) -> tuple[Violation, ...]:
        """List the limits that this demand breaks."""
        pairs = (
            ("host memory", self.memory_bytes, limits.memory_bytes),
            ("/dev/shm", self.shm_bytes, limits.shm_bytes),
            ("open files", self.files, limits.nofile),
        )
        return tuple(
            Violation(resource=name, needed=needed, limit=limit) for name, needed, limit in pairs if needed > limit
        )

    def constraints(self, limits: Limits) -> dict[str, float]:
        """Give Optuna's constraints: how far over (positive) or under each limit, as a share of it."""
        return {
            "memory": self.memory_bytes / max(1, limits.memory_bytes) - 1,
            "shm": self.shm_bytes / max(1, limits.shm_bytes) - 1,
            "files": self.files / max(1, limits.nofile) - 1,
        }


class DemandModel(Value):
    """Predicts a configuration's demand; `learn` returns a better one.

    Attributes:
        base_bytes: Memory of the training process itself.
        worker_bytes: Private memory of one worker.
        sample_bytes: Bytes of tensors per sample.
        batch_tensors: Tensors in a batch.
        probe_batch_size: Batch size when the configuration leaves batching to the user's code.
    """

    base_bytes: Bytes
    worker_bytes: Bytes = WORKER_BYTES
    sample_bytes: Bytes
    batch_tensors: Count
    probe_batch_size: Count

    @classmethod
    def from_workload(cls, workload: WorkloadProfile) -> Self:
        """Start from what the probe saw."""
        return cls(
            base_bytes=workload.rss_bytes,
            sample_bytes=workload.sample_bytes,
            batch_tensors=workload.batch_tensors,
            probe_batch_size=workload.probe_batch_size,
        )

    def predict(self, config: LoaderConfig) -> Demand:
        """Predict the peak demand of a configuration.

        Args:
            config: The configuration.

        Returns:
            Bytes and files for the whole process tree.
        """
        loader = config.dataloader
        batch_bytes = self._batch_bytes(config)
        if loader.num_workers == 0:
            return Demand(memory_bytes=self.base_bytes + 2 * batch_bytes, shm_bytes=0, files=BASE_FILES)
        live = count_live_batches(config)
        shm_bytes = live * batch_bytes
        held = live * self.batch_tensors if config.process.sharing_strategy == "file_descriptor" else 0
        return Demand(
            memory_bytes=self.base_bytes + loader.num_workers * (self.worker_bytes + batch_bytes) + shm_bytes,
            shm_bytes=shm_bytes,
            files=BASE_FILES + WORKER_FILES * loader.num_workers + held,
        )

    def _batch_bytes(self, config: LoaderConfig) -> int:
        samples = config.dataloader.batch_size or self.probe_batch_size
        pages = -(-samples * self.sample_bytes // PAGE_BYTES) + max(1, self.batch_tensors)  # each tensor is rounded up
        return pages * PAGE_BYTES if self.sample_bytes else 0

    def learn(self, result: TrialResult) -> DemandModel:
        """Correct a worker's memory by what a trial used.

        Args:
            result: A trial with workers whose memory was sampled.

        Returns:
            A model that would have predicted at least this trial's memory.
        """
        workers = result.config.dataloader.num_workers
        if not workers or not result.peak_host_bytes:
            return self
        rest = result.peak_host_bytes - self.base_bytes - result.peak_shm_bytes
        per_worker = rest // workers - self._batch_bytes(result.config)
        return self.model_copy(update={"worker_bytes": max(self.worker_bytes, per_worker)})


def count_live_batches(config: LoaderConfig) -> int:
    """Count the batches that can lie in shared memory at once."""
    loader = config.dataloader
    return loader.num_workers * (loader.prefetch_factor or 0) + 2


def plan_limits(machine: MachineProfile, request: TuningRequest, gpu_memory_bytes: int = 0) -> Limits:
    """Turn the user's budgets into bytes on this machine.

    Args:
        machine: What the machine allows.
        request: The user's budgets, for the whole host.
        gpu_memory_bytes: Memory of the accelerator; 0 on the CPU.

    Returns:
        Budgets of one of the `world_size` training processes that share the host.

    Raises:
        UsageError: A budget cannot be read.
    """
    share = request.world_size
    most_workers = max(MOST_WORKERS, 2 * count_whole_cpus(machine.usable_cpus))
    return Limits(
        memory_bytes=_parse("--max-memory", request.max_memory, machine.memory_available_bytes) // share,
        reserve_bytes=int(machine.memory_limit_bytes * MEMORY_RESERVE),
        shm_bytes=_parse("--max-shm", request.max_shm, machine.shm_free_bytes) // share if machine.shm_writable else 0,
        nofile=machine.nofile_limit,
        gpu_bytes=_parse("--max-gpu-memory", request.max_gpu_memory, gpu_memory_bytes) if gpu_memory_bytes else None,
        max_workers=most_workers if request.max_workers is None else request.max_workers,
    )


def _parse(option: str, text: str, whole: int) -> int:
    try:
        return min(parse_budget(text, whole), whole)
    except ValueError as error:
        raise UsageError(f"{option}: {error}. Give a share such as 80% or an amount such as 24GiB.") from None
