"""The story of a benchmark, with formulas in the places of what takes long."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

from autotune.config import LoaderConfig
from autotune.errors import WorkloadError
from benchmarks.budget import Budget
from benchmarks.records import Entrant, Prediction, Tuning, WorkloadResult, read_results
from benchmarks.rounds import run_round
from benchmarks.screening import Track
from benchmarks.session import Options, Session
from benchmarks.training.messages import Workplace
from benchmarks.workloads.catalogue import CPU_WORKLOADS, GPU_WORKLOADS, WORKLOADS
from benchmarks.workloads.grid import choose_by_hand, make_config
from benchmarks.workloads.workload import BenchWorkload
from tests.benchmarks.fakes import CPUS, FakeClock, FakeTrainee, get_rate, list_labels, make_instruments, run_session


def test_with_time_enough_everything_is_measured_twice_and_written_down(tmp_path: Path) -> None:
    session = run_session(tmp_path)
    results = read_results(tmp_path, (workload.name for workload in WORKLOADS))
    assert results == list(session.results.values())
    for result in results:
        assert result.rounds == 2
        assert result.dropped == ()
        assert list_labels(result) == ["dltune", "grid 1", "defaults", "hand", "grid 2"]
        assert all(len(entrant.runs) == len(entrant.readings) == 2 for entrant in result.entrants)
    assert not session.untried
    assert not session.failed


def test_rounds_that_do_not_fit_are_left_out_and_named(tmp_path: Path) -> None:
    results = run_session(tmp_path, minutes=6.5, rounds=3).results
    assert [result.rounds for result in results.values()] == [3, 3, 3, 2]
    assert [result.dropped for result in results.values()] == [(), (), (), ("round 3: no time",)]


def test_a_workload_is_not_begun_at_the_cost_of_the_first_round_of_others(tmp_path: Path) -> None:
    session = run_session(tmp_path, minutes=4.0)
    assert session.untried == ["tabular", "tokens"]
    assert [result.rounds for result in session.results.values()] == [2, 2]


def test_the_time_is_held(tmp_path: Path) -> None:
    for minutes in (1.0, 3.0, 5.0, 8.0):
        clock = FakeClock()
        options = Options(tmp_path, rounds=9, minutes=minutes, peers=False)
        Session(options, make_instruments(clock), Budget(60 * minutes, clock), CPUS).run(GPU_WORKLOADS)
        assert clock.seconds <= 60 * minutes


def test_loadtune_is_asked_where_it_is_installed_and_there_is_time(tmp_path: Path) -> None:
    def run_loadtune(workload: BenchWorkload) -> Tuning:
        return Tuning(tuner="loadtune", config=make_config(workload.batch_size, 3), seconds=50.0)

    asked = run_session(tmp_path, run_loadtune=run_loadtune).results["jpeg"]
    assert "loadtune" in list_labels(asked)
    late = run_session(tmp_path, minutes=8.0, run_loadtune=run_loadtune).results["jpeg"]
    assert late.peer_note == "loadtune: no time for it"
    missing = run_session(tmp_path).results["jpeg"]
    assert missing.peer_note == "loadtune: not installed"


def test_a_rehearsal_runs_loadtune_once(tmp_path: Path) -> None:
    def run_loadtune(workload: BenchWorkload) -> Tuning:
        return Tuning(tuner="loadtune", config=make_config(workload.batch_size, 1), seconds=9.0)

    options = Options(tmp_path, rounds=1, minutes=60, quick=True)
    clock = FakeClock()
    session = Session(options, make_instruments(clock, run_loadtune=run_loadtune), Budget(3600, clock), CPUS)
    session.run(GPU_WORKLOADS)
    assert [bool(result.find_tuning("loadtune")) for result in session.results.values()] == [True, False, False, False]


def test_a_configuration_that_fails_is_left_out_and_named(tmp_path: Path) -> None:
    def start(workplace: Workplace) -> FakeTrainee:
        return FakeTrainee(workplace, lambda config: config.dataloader.num_workers == CPUS)

    result = run_session(tmp_path, start=start).results["jpeg"]
    assert "hand" not in list_labels(result)
    assert result.dropped[0] == "w=16 pf=2 bs=64 persistent: failed"
    assert len(result.grid) == 12


def test_an_entrant_that_fails_in_a_round_takes_no_further_part(tmp_path: Path) -> None:
    runs: list[LoaderConfig] = []
    hand = choose_by_hand(GPU_WORKLOADS[0], CPUS)

    def fail_second_time(config: LoaderConfig) -> bool:
        runs.append(config)
        return config == hand and runs.count(hand) > 1

    result = run_session(tmp_path, start=lambda workplace: FakeTrainee(workplace, fail_second_time)).results["jpeg"]
    assert result.dropped == ("w=16 pf=2 bs=64 pin persistent: failed in round 1",)
    assert len({len(entrant.runs) for entrant in result.entrants}) == 1


def test_a_workload_that_cannot_be_tuned_does_not_stop_the_others(tmp_path: Path) -> None:
    instruments = make_instruments(FakeClock())

    def tune(workload: BenchWorkload) -> Tuning:
        if workload.name == "jpeg":
            raise subprocess.CalledProcessError(2, ["dltune"], stderr="No module named 'PIL'")
        return instruments.tune(workload)

    session = run_session(tmp_path, tune=tune)
    assert session.failed == ["jpeg"]
    assert len(session.results) == 3


def test_a_grid_of_which_all_fails_is_soon_given_up(tmp_path: Path) -> None:
    tried: list[LoaderConfig] = []

    def note(config: LoaderConfig) -> bool:
        tried.append(config)
        return True

    result = run_session(tmp_path, start=lambda workplace: FakeTrainee(workplace, note)).results["jpeg"]
    assert len(tried) == 4 * len(GPU_WORKLOADS)
    assert result.entrants == ()


def test_a_round_that_fails_as_a_whole_is_named(tmp_path: Path) -> None:
    def predict(workload: BenchWorkload, config: LoaderConfig, epochs: int) -> Prediction:
        raise WorkloadError("the dataset is gone")

    session = run_session(tmp_path, predict=predict)
    assert session.results["jpeg"].dropped == ("round 1: failed", "round 2: failed")
    assert set(session.failed) == {workload.name for workload in GPU_WORKLOADS}


def run_without_device(tmp_path: Path, *, again: bool = False, **options: bool) -> WorkloadResult:
    """Measure the first workload of those without a device."""
    clock = FakeClock()
    given = Options(tmp_path, rounds=3, again=again, **options)
    session = Session(given, make_instruments(clock), Budget(math.inf, clock), CPUS)
    session.run(CPU_WORKLOADS[:1])
    assert not session.failed
    return session.results["tutorial"]


def test_without_a_device_all_entrants_are_predicted_and_trained_in_every_round(tmp_path: Path) -> None:
    result = run_without_device(tmp_path)
    assert {"dltune", "hand", "random", "grid 1", "grid 2", "sibling", "spread"} == {*list_labels(result)}
    assert {(len(entrant.runs), len(entrant.predictions)) for entrant in result.entrants} == {(3, 3)}
    assert result.device is None
    assert result.rounds == 3


def test_each_round_begins_with_another_entrant_and_now_with_the_trial_now_with_the_run(tmp_path: Path) -> None:
    made: list[tuple[str, LoaderConfig]] = []

    def start(workplace: Workplace) -> FakeTrainee:
        def note(config: LoaderConfig) -> bool:
            made.append(("run", config))
            return False

        return FakeTrainee(workplace, note)

    def predict(workload: BenchWorkload, config: LoaderConfig, epochs: int) -> Prediction:
        made.append(("trial", config))
        return Prediction(samples_per_second=get_rate(config), seconds=1.0)

    entrants = [Entrant(labels=("spread",), config=make_config(8, workers), epochs=2, screened=9) for workers in (1, 2)]
    for number in range(2):
        entrants = run_round(Track(CPU_WORKLOADS[0], start, predict), entrants, number, rounds=2)
    assert [(kind, config.dataloader.num_workers) for kind, config in made] == [
        *[("trial", 1), ("run", 1), ("run", 2), ("trial", 2)],
        *[("trial", 2), ("run", 2), ("run", 1), ("trial", 1)],
    ]


def test_the_rounds_alone_are_measured_again_of_choices_that_were_kept(tmp_path: Path) -> None:
    first = run_without_device(tmp_path)
    again = run_without_device(tmp_path, again=True)
    assert again.tunings == first.tunings
    assert again.grid == first.grid
    assert {len(entrant.runs) for entrant in again.entrants} == {3}


def test_without_a_grid_choices_are_held_against_defaults_and_siblings(tmp_path: Path) -> None:
    result = run_without_device(tmp_path, grid=False, peers=False)
    assert result.grid == ()
    assert {"dltune", "defaults", "hand", "sibling", "spread"} == {*list_labels(result)}
