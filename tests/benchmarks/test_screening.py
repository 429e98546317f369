"""What is picked for whole runs, and how the time is held."""

from __future__ import annotations

from benchmarks.budget import Budget
from benchmarks.records import Screened, Tuning
from benchmarks.screening import gather_labels, pick_entrants
from benchmarks.workloads.catalogue import CPU_WORKLOADS, GPU_WORKLOADS
from tests.benchmarks.builders import make_run, make_trial
from tests.benchmarks.fakes import FakeClock
from tests.builders import make_config


def test_each_configuration_enters_once_with_all_its_labels() -> None:
    tunings = (
        Tuning(tuner="dltune", config=make_config(8), seconds=60.0, lines=(make_trial(5.0, score=8),)),
        Tuning(tuner="hand", config=make_config(2, persistent_workers=True), seconds=0.0),
    )
    grid = [Screened(config=make_config(workers), run=make_run(1), samples_per_second=workers) for workers in range(12)]
    entrants = pick_entrants(CPU_WORKLOADS[0], 10, tunings, [seen.config for seen in grid], grid)
    labels = {entrant.config: entrant.labels for entrant in entrants}
    assert labels[make_config(8)] == ("dltune", "early", "search")
    assert [config for config, why in labels.items() if why[0].startswith("grid")] == [
        make_config(workers) for workers in (11, 10)
    ]


def test_what_people_would_set_is_wanted_with_the_choice() -> None:
    tuning = Tuning(tuner="dltune", config=make_config(8), seconds=60.0)
    labels = gather_labels(CPU_WORKLOADS[0], (tuning,))
    assert list(labels.values()) == [("dltune",), ("sibling",), ("spread",)]
    assert list(gather_labels(GPU_WORKLOADS[0], (tuning,)).values()) == [("dltune",)]


def test_a_budget_expects_what_it_has_seen() -> None:
    clock = FakeClock()
    budget = Budget(100.0, clock)
    with budget.timed("round", "jpeg"):
        clock.seconds += 20
    with budget.timed("round", "floats"):
        clock.seconds += 10
    assert (budget.expect("round", "floats"), budget.expect("round", "tokens")) == (10, 20)
    assert budget.allows(round=3)
    assert not budget.allows(round=4)
