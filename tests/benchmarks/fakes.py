"""A benchmark in which nothing takes long: tuners, trials and training processes are formulas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.config import LoaderConfig
from benchmarks.budget import Budget
from benchmarks.records import Prediction, Tuning, WorkloadResult
from benchmarks.session import Instruments, Options, Session
from benchmarks.training.messages import DeviceFacts, Order, Reading, Ready, Trained, TrainingRun, Workplace
from benchmarks.training.trainer import TrainingError
from benchmarks.workloads.catalogue import GPU_WORKLOADS
from benchmarks.workloads.grid import make_config
from benchmarks.workloads.workload import BenchWorkload

CPUS = 16
SAMPLES = 1000
FACTS = DeviceFacts(name="Test GPU", torch="2.11.0", cuda="13.0", driver="580.1", python="3.12.3")


class FakeClock:
    """A clock that the instruments put forward."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class FakeTrainee:
    """Trains at once; workers help up to eight, pinning and copying ahead help a little."""

    def __init__(self, workplace: Workplace, broken: Callable[[LoaderConfig], bool] = lambda config: False) -> None:
        self._broken = broken
        self.workplace = workplace

    def await_ready(self) -> Ready:
        return Ready(device=FACTS, samples=SAMPLES)

    def train(self, order: Order) -> TrainingRun:
        if self._broken(order.config):
            raise TrainingError("out of shared memory")
        seconds = SAMPLES / get_rate(order.config)
        trained = Trained(SAMPLES * order.epochs, (seconds,) * order.epochs)
        return TrainingRun(trained=trained, reading=Reading(waited_seconds=0.25 * seconds, utilization=(0.5, 0.7)))

    def close(self) -> None:
        pass


def get_rate(config: LoaderConfig) -> float:
    """Give the throughput in the fakes' world, samples per second."""
    workers = min(8, config.dataloader.num_workers)
    return 500.0 + 400 * workers + 50 * config.dataloader.pin_memory + 25 * config.process.device_prefetch


def make_instruments(clock: FakeClock, **changes: Any) -> Instruments:
    """Build instruments that take the time they take on a real GPU, on a clock that is put forward."""

    def tune(workload: BenchWorkload) -> Tuning:
        clock.seconds += 60
        config = make_config(workload.batch_size, 8, pinned=True, ahead=True)
        promise = get_rate(config)
        return Tuning(tuner="dltune", config=config, seconds=60, promise=promise, interval=(promise - 9, promise + 9))

    def predict(workload: BenchWorkload, config: LoaderConfig, epochs: int) -> Prediction:
        clock.seconds += 10
        return Prediction(samples_per_second=1.01 * get_rate(config), relative_error=0.02, seconds=10)

    def search_at_random(workload: BenchWorkload, seconds: float) -> Tuning:
        clock.seconds += seconds
        return Tuning(tuner="random", config=make_config(workload.batch_size, 6), seconds=seconds)

    usual: dict[str, Any] = {
        "tune": tune,
        "search_at_random": search_at_random,
        "run_loadtune": None,
        "start": FakeTrainee,
        "predict": predict,
    }
    return Instruments(**usual | changes)


def run_session(tmp_path: Path, minutes: float = 60.0, rounds: int = 2, **changes: Any) -> Session:
    clock = FakeClock()
    options = Options(tmp_path, rounds, minutes)
    session = Session(options, make_instruments(clock, **changes), Budget(60 * minutes, clock), CPUS)
    session.run(GPU_WORKLOADS)
    return session


def list_labels(result: WorkloadResult) -> list[str]:
    return [label for entrant in result.entrants for label in entrant.labels]
