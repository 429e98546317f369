"""The GPU benchmark, rehearsed: its story with formulas in the places of what takes long, its networks on the CPU."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from autotune.child.import_string import import_attribute
from autotune.config import LoaderConfig
from autotune.errors import WorkloadError
from benchmarks import gpu, gpu_report
from benchmarks.gpu import Instruments, Options, Session, parse_arguments
from benchmarks.gpu_budget import Budget
from benchmarks.gpu_records import DeviceFacts, GpuEntrant, GpuResult, GpuRun, Order, Reading, Ready, Workplace
from benchmarks.gpu_rounds import plan_epochs
from benchmarks.gpu_run import Stage, Utilization, prepare, train
from benchmarks.gpu_steps import TokenNetwork, build_residual_network, send
from benchmarks.gpu_trainer import Trainer, TrainingError
from benchmarks.gpu_tuners import is_loadtune_installed, make_command, make_loadtune_workload, mark_copies
from benchmarks.gpu_workloads import (
    WORKLOADS,
    GpuWorkload,
    choose_by_hand,
    choose_defaults,
    list_grid,
    make_config,
    shorten,
)
from benchmarks.records import Prediction, Tuning, read_results
from benchmarks.whole_run import Trained
from tests.system.test_gpus import FakeNvml

CPUS = 16
SAMPLES = 1000
CPU = torch.device("cpu")
EACH = pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
FACTS = DeviceFacts(name="Test GPU", torch="2.11.0", cuda="13.0", driver="580.1", python="3.12.3")


# What it trains


@EACH
def test_every_step_learns_from_a_batch_of_its_dataset(workload: GpuWorkload) -> None:
    small = shorten(workload)
    dataset = import_attribute(small.dataset)(**small.dataset_args)
    batch = next(iter(DataLoader(dataset, batch_size=4)))
    before = torch.get_rng_state()
    step = import_attribute(small.step)(CPU)
    step(batch)
    assert not torch.equal(before, torch.get_rng_state())  # a network was made, and nothing was raised


def test_networks_of_full_size_take_the_batches_they_are_given() -> None:
    with torch.device("meta"):
        pictures, tokens = build_residual_network(64, (3, 4, 6, 3)), TokenNetwork(256, 4)
        assert pictures(torch.zeros(2, 3, 128, 128)).shape == (2, 10)
        assert tokens(torch.zeros(2, 256, dtype=torch.long)).shape == (2, 256, 1024)
    assert 23e6 < sum(parameter.numel() for parameter in pictures.parameters()) < 24e6  # as a ResNet-50 for ten classes


@EACH
def test_an_epoch_has_whole_batches_only(workload: GpuWorkload) -> None:
    """A last short batch would have the device choose its kernels anew."""
    small = shorten(workload)
    assert len(import_attribute(small.dataset)(**small.dataset_args)) % small.batch_size == 0


def test_an_epoch_at_full_size_has_whole_batches_only() -> None:
    sizes = {"jpeg": 4096, "floats": 1024, "tabular": 131_072, "tokens": 8192}
    assert all(sizes[workload.name] % workload.batch_size == 0 for workload in WORKLOADS)


def test_only_pinned_memory_is_copied_without_waiting() -> None:
    asked: list[bool] = []

    class Spy(torch.Tensor):
        def to(self, *arguments: Any, non_blocking: bool = False, **options: Any) -> Any:
            asked.append(non_blocking)
            return self

    send(torch.zeros(2).as_subclass(Spy), CPU)
    assert asked == [False]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # as many workers as a large machine has CPUs
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")
@EACH
def test_the_grid_holds_distinct_configurations_among_them_what_people_set(workload: GpuWorkload) -> None:
    grid = list_grid(workload, CPUS)
    assert len(set(grid)) == len(grid) == 15
    assert choose_defaults(workload) in grid
    assert choose_by_hand(workload, CPUS) in grid
    for config in grid:
        DataLoader(TensorDataset(torch.zeros(4)), **config.loader_kwargs())


def test_a_small_machine_has_a_small_grid() -> None:
    assert {config.dataloader.num_workers for config in list_grid(WORKLOADS[0], 2)} == {0, 1, 2}


def test_the_command_is_what_a_user_types() -> None:
    command = make_command(shorten(WORKLOADS[0]), "cuda", quick=False)
    text = " ".join(command)
    assert "--device cuda --batch-size 16 --epochs 2 --trials 12 --trial-time 1500ms" in text
    assert "--dataset-arg samples=96" in text


def test_a_configuration_of_loadtune_is_the_same_as_ours() -> None:
    bare = make_config(8, 4, pinned=True).model_copy(update={"process": make_config(8, 4).process})
    assert mark_copies(bare) == make_config(8, 4, pinned=True)


@pytest.mark.skipif(not is_loadtune_installed(), reason="only `make bench-gpu` installs loadtune")
def test_loadtune_is_given_the_real_step() -> None:
    workload = make_loadtune_workload("tabular", quick=True)
    batch = next(iter(DataLoader(workload.make_dataset(), batch_size=4)))
    assert workload.train_step(None, None, batch, CPU).item() == 0.0


# A training process


def make_stage(seconds: float = 0.0) -> Stage:
    return Stage(TensorDataset(torch.zeros(64, 2)), lambda batch: time.sleep(seconds), CPU)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_run_counts_samples_and_epochs(*, ahead: bool) -> None:
    config = make_config(16, 0, ahead=ahead)
    run = train(make_stage(0.002), Order(config=config, epochs=3))
    assert run.trained.samples == 3 * 64
    assert len(run.trained.epoch_seconds) == 3
    assert 0 <= run.reading.waited_seconds < sum(run.trained.epoch_seconds)


def test_a_run_is_given_up_when_its_time_is_over() -> None:
    run = train(make_stage(0.02), Order(config=make_config(16, 0), epochs=9, most_seconds=0.03))
    assert run.trained.given_up
    assert run.trained.samples == 32


def test_utilization_is_sampled_while_a_run_goes_on() -> None:
    with Utilization("1234", FakeNvml()) as watched:
        deadline = time.monotonic() + 5.0
        while not watched.shares and time.monotonic() < deadline:
            time.sleep(0.01)
    assert set(watched.shares) == {0.37}


@pytest.mark.parametrize("refused", ["nvmlInit", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetHandleByUUID"])
def test_a_driver_that_does_not_tell_gives_no_utilization(refused: str) -> None:
    with Utilization("1234", FakeNvml(refused)) as watched:
        time.sleep(0.15)
    assert watched.shares == []


def make_workplace(**changes: Any) -> Workplace:
    usual: dict[str, Any] = {
        "dataset": "benchmarks.gpu_datasets:make_tabular",
        "dataset_args": {"samples": 64},
        "step": "benchmarks.gpu_steps:make_tabular_step",
        "device": "cpu",
        "batch_size": 16,
        "in_worker": False,
    }
    return Workplace(**usual | changes)


def test_everything_is_ready_before_a_run() -> None:
    stage = prepare(make_workplace())
    assert len(stage.dataset) == 64
    assert stage.device == CPU


def test_a_training_process_says_when_it_is_ready_and_trains_when_told() -> None:
    trainer = Trainer(make_workplace())
    try:
        ready = trainer.await_ready()
        runs = [trainer.train(Order(config=make_config(16, workers), epochs=2)) for workers in (0, 1)]
    finally:
        trainer.close()
        trainer.close()
    assert ready.samples == 64
    assert ready.device.torch == torch.__version__
    assert [run.trained.samples for run in runs] == [128, 128]


def test_a_training_process_that_fails_says_why() -> None:
    trainer = Trainer(make_workplace(step="benchmarks.gpu_steps:make_nothing"))
    try:
        with pytest.raises(TrainingError, match="make_nothing"):
            trainer.await_ready()
    finally:
        trainer.close()


# The story


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

    def train(self, order: Order) -> GpuRun:
        if self._broken(order.config):
            raise TrainingError("out of shared memory")
        seconds = SAMPLES / get_rate(order.config)
        trained = Trained(SAMPLES * order.epochs, (seconds,) * order.epochs)
        return GpuRun(trained=trained, reading=Reading(waited_seconds=0.25 * seconds, utilization=(0.5, 0.7)))

    def close(self) -> None:
        pass


def get_rate(config: LoaderConfig) -> float:
    """Give the throughput in the fakes' world, samples per second."""
    workers = min(8, config.dataloader.num_workers)
    return 500.0 + 400 * workers + 50 * config.dataloader.pin_memory + 25 * config.process.device_prefetch


def make_instruments(clock: FakeClock, **changes: Any) -> Instruments:
    """Build instruments that take the time they take on a real GPU, on a clock that is put forward."""

    def tune(workload: GpuWorkload) -> Tuning:
        clock.seconds += 60
        config = make_config(workload.batch_size, 8, pinned=True, ahead=True)
        promise = get_rate(config)
        return Tuning(tuner="dltune", config=config, seconds=60, promise=promise, interval=(promise - 9, promise + 9))

    def predict(workload: GpuWorkload, config: LoaderConfig, epochs: int) -> Prediction:
        clock.seconds += 10
        return Prediction(samples_per_second=1.01 * get_rate(config), relative_error=0.02, seconds=10)

    usual: dict[str, Any] = {"tune": tune, "run_loadtune": None, "start": FakeTrainee, "predict": predict}
    return Instruments(**usual | changes)


def run_session(tmp_path: Path, minutes: float = 60.0, rounds: int = 2, **changes: Any) -> Session:
    clock = FakeClock()
    options = Options(device="cuda", rounds=rounds, minutes=minutes, peers=True, quick=False, results=tmp_path)
    session = Session(options, make_instruments(clock, **changes), Budget(60 * minutes, clock), CPUS)
    session.run(WORKLOADS)
    return session


def list_labels(result: GpuResult) -> list[str]:
    return [label for entrant in result.entrants for label in entrant.labels]


def test_with_time_enough_everything_is_measured_twice_and_written_down(tmp_path: Path) -> None:
    session = run_session(tmp_path)
    results = read_results(tmp_path, (workload.name for workload in WORKLOADS), GpuResult)
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
        options = Options(device="cuda", rounds=9, minutes=minutes, peers=False, quick=False, results=tmp_path)
        Session(options, make_instruments(clock), Budget(60 * minutes, clock), CPUS).run(WORKLOADS)
        assert clock.seconds <= 60 * minutes


def test_loadtune_is_asked_where_it_is_installed_and_there_is_time(tmp_path: Path) -> None:
    def run_loadtune(workload: GpuWorkload) -> Tuning:
        return Tuning(tuner="loadtune", config=make_config(workload.batch_size, 3), seconds=50.0)

    asked = run_session(tmp_path, run_loadtune=run_loadtune).results["jpeg"]
    assert "loadtune" in list_labels(asked)
    late = run_session(tmp_path, minutes=8.0, run_loadtune=run_loadtune).results["jpeg"]
    assert late.peer_note == "loadtune: no time for it"
    missing = run_session(tmp_path).results["jpeg"]
    assert missing.peer_note == "loadtune: not installed"


def test_a_rehearsal_runs_loadtune_once(tmp_path: Path) -> None:
    def run_loadtune(workload: GpuWorkload) -> Tuning:
        return Tuning(tuner="loadtune", config=make_config(workload.batch_size, 1), seconds=9.0)

    options = Options(device="cpu", rounds=1, minutes=60, peers=True, quick=True, results=tmp_path)
    clock = FakeClock()
    session = Session(options, make_instruments(clock, run_loadtune=run_loadtune), Budget(3600, clock), CPUS)
    session.run(WORKLOADS)
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
    hand = choose_by_hand(WORKLOADS[0], CPUS)

    def fail_second_time(config: LoaderConfig) -> bool:
        runs.append(config)
        return config == hand and runs.count(hand) > 1

    result = run_session(tmp_path, start=lambda workplace: FakeTrainee(workplace, fail_second_time)).results["jpeg"]
    assert result.dropped == ("w=16 pf=2 bs=64 pin persistent: failed in round 1",)
    assert len({len(entrant.runs) for entrant in result.entrants}) == 1


def test_a_workload_that_cannot_be_tuned_does_not_stop_the_others(tmp_path: Path) -> None:
    instruments = make_instruments(FakeClock())

    def tune(workload: GpuWorkload) -> Tuning:
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
    assert len(tried) == 4 * len(WORKLOADS)
    assert result.entrants == ()


def test_a_round_that_fails_as_a_whole_is_named(tmp_path: Path) -> None:
    def predict(workload: GpuWorkload, config: LoaderConfig, epochs: int) -> Prediction:
        raise WorkloadError("the dataset is gone")

    session = run_session(tmp_path, predict=predict)
    assert session.results["jpeg"].dropped == ("round 1: failed", "round 2: failed")
    assert set(session.failed) == {workload.name for workload in WORKLOADS}


def test_slow_configurations_get_fewer_epochs() -> None:
    assert [plan_epochs(6, seconds) for seconds in (0.1, 2.0, 30.0)] == [6, 2, 1]


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


def test_a_rehearsal_never_lands_among_the_results() -> None:
    options, workloads = parse_arguments(["--quick", "--device", "cpu", "--only", "tokens"])
    assert options.results != parse_arguments([])[0].results
    assert [workload.name for workload in workloads] == ["tokens"]
    assert parse_arguments([])[0].minutes == 8


# The tables


def test_the_device_waits_less_the_more_it_is_busy() -> None:
    trained = Trained(samples=100, epoch_seconds=(1.0, 1.0))
    entrant = GpuEntrant(labels=("dltune",), config=make_config(8, 0), epochs=2, screened=50.0)
    assert entrant.utilization is None
    for waited in (0.5, 1.0):
        entrant = entrant.add_run(GpuRun(trained=trained, reading=Reading(waited_seconds=waited)))
    assert entrant.busy_share == pytest.approx((0.75 + 0.5) / 2)


def test_tables_name_the_device_the_gain_and_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_session(tmp_path, minutes=6.5, rounds=3)
    gpu_report.publish(tmp_path)
    shown = capsys.readouterr().out
    assert "Test GPU, 16 CPUs, torch 2.11.0, CUDA 13.0, driver 580.1, Python 3.12.3" in shown
    assert "round 3: no time" in shown
    assert "loadtune: not installed" in shown
    assert "7.55x" in shown
    assert "60.0 %" in shown
    assert (tmp_path / "summary.json").exists()


def test_without_results_there_is_nothing_to_print(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu_report.publish(tmp_path)
    assert "No results" in capsys.readouterr().out


def test_main_measures_and_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["gpu", "--quick", "--device", "cpu", "--results", str(tmp_path)])
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(gpu, "make_instruments", lambda options: make_instruments(FakeClock()))
    gpu.main()
    assert "Rehearsals, whose numbers say nothing" in capsys.readouterr().out


def test_the_real_instruments_know_device_and_sizes() -> None:
    options = parse_arguments(["--quick", "--device", "cpu"])[0]
    real = gpu.make_instruments(replace(options, peers=False))
    track = real.make_track(WORKLOADS[0], "cpu")
    assert track.device == "cpu"
    assert track.start is Trainer
