"""Predicts the throughput of other numbers of workers from one window of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

KNEE_SHARE: Final = 0.95  # of the upper bound, which the first proposal is to reach


class Window(NamedTuple):
    """A part of a training run with unchanged workers."""

    batches: float = 0.0
    seconds: float = 0.0
    wait_seconds: float = 0.0  # of the training loop for batches
    main_cpu_seconds: float = 0.0  # of the training process
    worker_batches: float = 0.0
    worker_seconds: float = 0.0  # from receiving the indices to the end of `collate_fn`
    worker_cpu_seconds: float = 0.0

    def since(self, start: Window) -> Window:
        """Return the part after an earlier reading of the same counts."""
        return Window(*(now - then for now, then in zip(self, start, strict=True)))

    @property
    def rate(self) -> float:
        """Batches per second."""
        return self.batches / max(self.seconds, 1e-9)

    @property
    def wait_share(self) -> float:
        """Share of the time that the training loop waits for batches."""
        return min(1.0, self.wait_seconds / max(self.seconds, 1e-9))

    @property
    def busy_cpus(self) -> float:
        """CPUs that the training process and its workers keep busy."""
        return (self.main_cpu_seconds + self.worker_cpu_seconds) / max(self.seconds, 1e-9)


@dataclass(frozen=True, slots=True)
class BatchCosts:
    """Seconds of one batch, by what it needs."""

    waiting: float  # in a worker, for a disk or a network
    worker_cpu: float
    main_cpu: float
    step: float  # between the delivery of a batch and the request of the next one

    @classmethod
    def measure(cls, window: Window) -> BatchCosts | None:
        """Return the costs in a window; None without batches of workers."""
        if not window.worker_batches:
            return None
        step = max(1e-9, window.seconds - window.wait_seconds) / window.batches
        main_cpu = window.main_cpu_seconds / window.batches
        cpu = min(window.worker_cpu_seconds, window.worker_seconds) / window.worker_batches
        return cls(window.worker_seconds / window.worker_batches - cpu, cpu, main_cpu, step)

    def predict(self, workers: int, cpus: float) -> float:
        """Predict batches per second; workers wait independently and share the CPUs with the training process.

        Mean value analysis of a closed queueing network (Reiser and Lavenberg, 1980), in which the CPUs are one fast
        server with a delay (Seidmann's approximation). Without workers, a batch is loaded between two steps.
        """
        if not workers:
            return 1.0 / (self.step + self.waiting + self.worker_cpu)
        cpu, rate, queue = self.worker_cpu + self.main_cpu, 0.0, 0.0
        for number in range(1, workers + 1):
            response = cpu / cpus * (1 + queue)
            rate = number / (self.waiting + cpu * (cpus - 1) / cpus + response)
            queue = rate * response
        return min(rate, 1.0 / self.step)

    def propose(self, cpus: float, most: int) -> int:
        """Return the fewest workers, up to `most`, that come near the upper bound of the step and the CPUs."""
        bound = min(1.0 / self.step, cpus / max(self.worker_cpu + self.main_cpu, 1e-9))
        return next((one for one in range(1, most) if self.predict(one, cpus) >= KNEE_SHARE * bound), most)
