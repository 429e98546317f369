"""The controller settles on few workers that are as fast as the best, by windows of a simulated run."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from autotune.online.controller import MAX_TRIES, BatchCosts, Controller
from autotune.online.group import WorkerSettings
from autotune.online.result import find_bottleneck
from autotune.online.windows import Window

CPUS = 2.0
WORKLOADS = {
    "samples wait": BatchCosts(waiting=0.09, worker_cpu=0.016, main_cpu=0.002, step=0.004),
    "decoding": BatchCosts(waiting=0.0, worker_cpu=0.03, main_cpu=0.002, step=0.004),
    "the step is slow": BatchCosts(waiting=0.02, worker_cpu=0.002, main_cpu=0.002, step=0.05),
    "in memory": BatchCosts(waiting=0.0, worker_cpu=0.0001, main_cpu=0.001, step=0.002),
}


def simulate(costs: BatchCosts, workers: int, noise: random.Random, seconds: float = 2.0) -> Window:
    rate = costs.predict(workers, CPUS) * noise.gauss(1.0, 0.01)
    batches = rate * seconds
    wait = max(0.0, seconds - batches * costs.step)
    loaded = batches if workers else 0.0
    return Window(
        batches=batches,
        seconds=seconds,
        wait_seconds=wait,
        main_cpu_seconds=batches * costs.main_cpu,
        worker_batches=loaded,
        worker_seconds=loaded * (costs.waiting + costs.worker_cpu),
        worker_cpu_seconds=loaded * costs.worker_cpu,
    )


def no_limit(prefetch: int, running: int) -> int:
    return 64


def converge(costs: BatchCosts, controller: Controller, noise: random.Random) -> int:
    windows = 0
    while not controller.has_converged:
        controller.add(simulate(costs, controller.settings.workers, noise))
        windows += 1
    return windows


@pytest.mark.parametrize("own", [0, 1, 2, 12, 24])
@pytest.mark.parametrize("name", WORKLOADS)
def test_it_reaches_nearly_the_best_rate_within_a_few_windows(name: str, own: int) -> None:
    costs = WORKLOADS[name]
    best = max(costs.predict(workers, CPUS) for workers in range(1 if own else 0, 65))
    for seed in range(5):
        controller = Controller(WorkerSettings(own, 2), WorkerSettings(own, 2), CPUS, no_limit)
        assert converge(costs, controller, random.Random(seed)) <= MAX_TRIES + 1
        assert costs.predict(controller.settings.workers, CPUS) >= 0.9 * best


@pytest.mark.parametrize("own", [0, 2])
def test_it_goes_beyond_a_proposal_that_keeps_the_cpus_busy(own: int) -> None:
    costs = BatchCosts(waiting=0.16, worker_cpu=0.045, main_cpu=0.003, step=0.0105)
    best = max(costs.predict(workers, CPUS) for workers in range(65))
    for seed in range(20):
        controller = Controller(WorkerSettings(own, 2), WorkerSettings(own, 2), CPUS, no_limit)
        converge(costs, controller, random.Random(seed))
        assert costs.predict(controller.settings.workers, CPUS) >= 0.95 * best


def test_no_fewer_workers_are_tried_than_some_that_are_slower() -> None:
    costs = BatchCosts(waiting=0.0, worker_cpu=0.03, main_cpu=0.0, step=0.004)
    controller = Controller(WorkerSettings(12, 2), WorkerSettings(12, 2), CPUS, no_limit)
    for rate_ratio in (0.8, 1.0):  # the CPUs are busy in both windows
        controller.windows[controller.settings] = simulate(costs, 12, random.Random(0))._replace(seconds=2 / rate_ratio)
        controller.settings = WorkerSettings(16, 2)
    controller.settings = WorkerSettings(16, 2)
    controller.add(simulate(costs, 16, random.Random(0)))
    assert controller.has_converged
    assert controller.settings == WorkerSettings(16, 2)


@pytest.mark.parametrize("own", [0, 1])
def test_some_workers_are_tried_between_few_and_many_that_are_slower(own: int) -> None:
    costs, noise = replace(WORKLOADS["samples wait"], step=0.0005), random.Random(0)

    def simulate_epoch(workers: int) -> Window:
        window = simulate(costs, workers, noise)
        starts = 0.12 * workers * window.batches / 40  # of all workers, in epochs of 40 batches
        return window._replace(seconds=window.seconds + starts, wait_seconds=window.wait_seconds + starts)

    controller = Controller(WorkerSettings(own, 2), WorkerSettings(own, 2), CPUS, lambda prefetch, running: 40)
    while not controller.has_converged:
        controller.add(simulate_epoch(controller.settings.workers))
    best = max(simulate_epoch(workers).rate for workers in range(41))
    assert controller.windows[controller.settings].rate > 0.9 * best


def test_own_settings_that_are_as_fast_as_the_best_stay() -> None:
    controller = Controller(WorkerSettings(3, 2), WorkerSettings(3, 2), CPUS, no_limit)
    converge(WORKLOADS["the step is slow"], controller, random.Random(0))
    assert controller.settings == WorkerSettings(3, 2)


def test_samples_in_memory_end_without_workers() -> None:
    controller = Controller(WorkerSettings(0, 2), WorkerSettings(0, 2), CPUS, no_limit)
    in_process = BatchCosts(waiting=0.0, worker_cpu=0.0001, main_cpu=0.002, step=0.0002)
    transferred = replace(in_process, step=0.002)  # returning a batch from a worker takes longer than loading it
    noise = random.Random(0)
    while not controller.has_converged:
        workers = controller.settings.workers
        window = simulate(transferred if workers else in_process, workers, noise)
        controller.add(window._replace(wait_seconds=0.9 * window.seconds))
    assert controller.settings.workers == 0


def test_no_more_workers_than_the_limit_are_tried() -> None:
    controller = Controller(WorkerSettings(0, 2), WorkerSettings(0, 2), CPUS, limit=lambda prefetch, running: 4)
    converge(WORKLOADS["samples wait"], controller, random.Random(0))
    assert max(one.workers for one in controller.windows) == 4


def test_a_limit_that_sinks_begins_another_search_below_it() -> None:
    noise, limits = random.Random(0), [64]
    controller = Controller(WorkerSettings(0, 2), WorkerSettings(0, 2), CPUS, lambda prefetch, running: limits[0])
    converge(WORKLOADS["samples wait"], controller, noise)
    limits[0] = controller.settings.workers // 2
    controller.limit(WorkerSettings(limits[0], 2))
    assert (controller.final_window, controller.has_converged) == (None, False)
    converge(WORKLOADS["samples wait"], controller, noise)
    assert controller.settings.workers == limits[0]
    assert controller.final_window is not None


def test_it_starts_again_when_the_rate_falls_and_the_loop_waits_more() -> None:
    noise, controller = random.Random(0), Controller(WorkerSettings(2, 2), WorkerSettings(2, 2), CPUS, no_limit)
    converge(WORKLOADS["the step is slow"], controller, noise)
    slower = BatchCosts(waiting=0.4, worker_cpu=0.002, main_cpu=0.002, step=0.05)
    states = []
    for _ in range(2):
        controller.add(simulate(slower, controller.settings.workers, noise))
        states.append(controller.has_converged)
    assert states == [True, False]
    converge(slower, controller, noise)
    assert controller.settings.workers >= 7


@pytest.mark.parametrize("turns", [(0, 1), (1, 0), (0, 0, 1), (1, 1, 0)])
def test_processes_that_wait_for_each_other_at_each_step_are_all_tuned(turns: tuple[int, ...]) -> None:
    costs = [BatchCosts(waiting, worker_cpu=0.0005, main_cpu=0.0005, step=0.002) for waiting in (0.016, 0.04)]
    pair = [
        Controller(WorkerSettings(0, 2), WorkerSettings(0, 2), CPUS, no_limit, is_distributed=lambda: True)
        for _ in range(2)
    ]

    def find_period() -> float:
        return max(1 / one.predict(process.settings.workers, CPUS) for one, process in zip(costs, pair, strict=True))

    for _ in range(20):
        for turn in turns:
            workers, period = pair[turn].settings.workers, find_period()
            alone = simulate(costs[turn], workers, random.Random(0))
            wait = 1 / costs[turn].predict(workers, CPUS) - costs[turn].step  # the rest of a step is for the other one
            window = alone._replace(seconds=period * alone.batches, wait_seconds=wait * alone.batches)
            pair[turn].add(window)
    assert all(process.has_converged for process in pair)
    assert find_period() < 1.1 * costs[0].step


@pytest.mark.parametrize(("rate", "workers"), [(30.0, 4), (5.0, 0)])
def test_a_window_of_whole_epochs_replaces_one_without_the_start_of_the_workers(rate: float, workers: int) -> None:
    noise, controller = random.Random(0), Controller(WorkerSettings(0, 2), WorkerSettings(0, 2), CPUS, lambda *_: 4)
    converge(WORKLOADS["samples wait"], controller, noise)  # 9 batches/s without workers, 38 with 4
    assert (controller.settings.workers, controller.is_corrected) == (4, False)
    controller.correct(Window(rate, 1.0, 0.5))
    assert (controller.settings.workers, controller.is_corrected) == (workers, True)


def test_after_a_failure_the_own_settings_stay() -> None:
    controller = Controller(WorkerSettings(2, 2), WorkerSettings(2, 2), CPUS, no_limit)
    controller.add(simulate(WORKLOADS["samples wait"], 2, random.Random(0)))
    controller.fail("worker died")
    assert (controller.settings, controller.has_converged) == (WorkerSettings(2, 2), True)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [({}, 1), ({"batches": 800.0}, 3), ({"batches": 20.0, "wait_seconds": 0.0}, 3)],
    ids=["as fast", "slower", "with a faster step"],
)
def test_the_result_of_an_earlier_run_is_kept_while_it_is_as_fast(changes: dict[str, float], windows: int) -> None:
    costs = WORKLOADS["samples wait"]
    start = WorkerSettings(6, 2)
    known = simulate(costs, 6, random.Random(1))._replace(**changes)
    controller = Controller(WorkerSettings(0, 2), start, CPUS, no_limit, known)
    assert converge(costs, controller, random.Random(0)) >= windows
    assert (controller.settings == start) is (windows == 1)


def test_the_result_of_an_earlier_run_is_left_if_the_data_has_become_cheaper() -> None:
    controller = Controller(WorkerSettings(0, 2), WorkerSettings(6, 2), CPUS, no_limit, Window(40.0, 1.0, 0.6))
    controller.add(Window(40.0, 1.0, 0.6, 0.1, 40.0, 40 * 0.004, 40 * 0.003))  # a batch takes 4 ms, a step 10 ms
    assert not controller.has_converged
    assert controller.settings.workers == 0


def test_the_result_of_an_earlier_run_is_kept_though_the_model_does_not_know_that_batches_ahead_help() -> None:
    known = Window(40.0, 1.0, 0.6, 0.1, 40.0, 2.0, 1.0)
    controller = Controller(WorkerSettings(4, 2), WorkerSettings(4, 4), CPUS, no_limit, known)
    controller.add(known)
    assert controller.costs is not None
    assert controller.costs.predict(4, CPUS) > known.rate
    assert (controller.has_converged, controller.settings) == (True, WorkerSettings(4, 4))


def test_own_settings_that_an_earlier_run_found_to_be_slower_are_not_predicted_to_be_faster() -> None:
    costs = WORKLOADS["samples wait"]
    window = simulate(costs, 4, random.Random(0))
    controller = Controller(WorkerSettings(24, 2), WorkerSettings(4, 2), CPUS, no_limit, window)
    controller.add(window)
    assert controller.own_window is not None
    assert controller.own_window.rate == pytest.approx(window.rate)


@pytest.mark.parametrize(("windows", "workers"), [(2, None), (3, 6)], ids=["one worker", "several workers"])
def test_a_training_that_ends_early_keeps_the_best_so_far(windows: int, workers: int | None) -> None:
    controller = Controller(WorkerSettings(0, 2), WorkerSettings(0, 2), CPUS, no_limit)
    for _ in range(windows):
        controller.add(simulate(WORKLOADS["samples wait"], controller.settings.workers, random.Random(0)))
    assert not controller.has_converged
    controller.finish()
    assert controller.has_converged is (workers is not None)
    assert workers is None or controller.settings.workers >= workers


def test_what_busy_cpus_delay_is_not_predicted_to_delay_the_training_process() -> None:
    controller = Controller(WorkerSettings(0, 2), WorkerSettings(4, 2), CPUS, no_limit)
    costs = BatchCosts(waiting=0.1, worker_cpu=0.03, main_cpu=0.002, step=0.004)  # of four workers on two CPUs
    controller.add(Window(50.0, 1.0, 0.8, 0.2, 50.0, 50 * 0.13, 50 * 0.034))
    assert controller.costs is not None
    assert controller.own_window is not None
    assert controller.own_window.rate > 3 * costs.predict(0, CPUS)


def test_a_limit_below_the_users_workers_proposes_no_fewer_because_training_waits() -> None:
    controller = Controller(WorkerSettings(4, 2), WorkerSettings(4, 2), CPUS, lambda prefetch, kept: 1)
    controller.add(Window(50.0, 1.0, 0.8, 0.1, 50.0, 4.0, 0.4))
    assert controller.settings.workers == 4


@pytest.mark.parametrize(("cpu_seconds", "bottleneck"), [(0.1, "io"), (1.95, "cpu")])
def test_a_training_that_waits_is_not_limited_by_its_step_though_no_worker_was_measured(
    cpu_seconds: float, bottleneck: str
) -> None:
    controller = Controller(WorkerSettings(0, 2), WorkerSettings(0, 2), CPUS, no_limit)
    assert find_bottleneck(Window(50.0, 1.0, 0.9, cpu_seconds), controller) == bottleneck
