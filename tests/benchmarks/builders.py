"""Records as a benchmark writes them down, with little said."""

from __future__ import annotations

from benchmarks.records import Entrant, Prediction, TunerTrial, Tuning, WorkloadResult
from benchmarks.training.messages import Trained
from tests.builders import make_config


def make_run(rate: float) -> Trained:
    """Build a whole run of one second."""
    return Trained(samples=round(rate), epoch_seconds=(0.6, 0.4))


def make_entrant(
    *labels: str, workers: int = 0, rates: tuple[float, ...], predicted: tuple[float, ...] = (), error: float = 0.05
) -> Entrant:
    """Build an entrant that was trained at these throughputs, and predicted at these, one a round."""
    predictions = tuple(Prediction(samples_per_second=rate, relative_error=error, seconds=1.0) for rate in predicted)
    return Entrant(
        labels=labels,
        config=make_config(workers),
        epochs=10,
        screened=rates[0],
        predictions=predictions,
        runs=tuple(make_run(rate) for rate in rates),
    )


def make_trial(
    finished_seconds: float, timed_seconds: float = 1.0, *, completed: bool = True, score: float = 1.0
) -> TunerTrial:
    return TunerTrial(
        config=make_config(round(score)),
        status="measured",
        completed=completed,
        score=score,
        finished_seconds=finished_seconds,
        trial_seconds=timed_seconds + 0.02,
        timed_seconds=timed_seconds,
    )


def make_result(*entrants: Entrant, tunings: tuple[Tuning, ...] = (), name: str = "tutorial") -> WorkloadResult:
    return WorkloadResult(
        workload=name,
        date="2026-01-02T03:04:05+00:00",
        cpus=2,
        torch="2.13.0",
        quick=False,
        seconds=400.0,
        tunings=tunings,
        grid=(),
        entrants=entrants,
    )
