from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from autotune.config import LoaderConfig, ProcessSettings
from autotune.progress import ProgressListener
from autotune.search.loop import SearchOutcome
from autotune.search.plan import GUESS_ERROR, Plan, make_plan
from autotune.search.surrogate import SpeedupPrediction
from autotune.trial.measurement import TrialResult
from autotune.trial.protocol import TrialRequest
from autotune.validation.ablation import Ablation, ablate, ablation_steps, estimate_steps
from autotune.validation.decision import Decision
from tests.builders import make_config, make_limits, make_machine, make_request, make_result, make_workload
from tests.validation.test_decision import make_record

SHARED = ProcessSettings(sharing_strategy="file_system")
ANSWER = make_config(12, 4, persistent_workers=True, in_order=False, process=SHARED)


def make_test_plan() -> Plan:
    return make_plan(make_request(batch_sizes=(32,)), make_machine(), make_workload(), make_limits())


def decide_for(config: LoaderConfig) -> Decision:
    """Build a decision for a configuration: four times as fast as the baseline."""
    return Decision(
        config=config,
        verdict="faster",
        samples_per_second=400.0,
        ci95=None,
        wait_share=0.0,
        speedup=4.0,
        speedup_ci95=(3.9, 4.1),
    )


def test_the_steps_change_one_setting_at_a_time_and_end_at_the_answer() -> None:
    settings, configs = zip(*ablation_steps(make_config(0), ANSWER), strict=True)
    assert settings == (
        "num_workers=12",
        "prefetch_factor=4",
        "persistent_workers=True",
        "in_order=False",
        "sharing_strategy=file_system",
    )
    assert configs[0] == make_config(12, 2)
    assert configs[-1] == ANSWER


def test_equal_configurations_have_no_steps_between_them() -> None:
    assert list(ablation_steps(ANSWER, ANSWER)) == []


def test_giving_workers_up_is_one_step() -> None:
    assert [setting for setting, _ in ablation_steps(ANSWER, make_config(0))] == ["num_workers=0"]


def measure_steps(answer: LoaderConfig, rate: Callable[[LoaderConfig, int], float | None]) -> Ablation:
    """Explain an answer by a formula of the configuration and of how often it was measured before; None fails."""
    counts: dict[LoaderConfig, int] = {}

    def run_trial(request: TrialRequest) -> TrialResult:
        counts[request.config] = counts.get(request.config, -1) + 1
        found = rate(request.config, counts[request.config])
        return make_result(request.config, found, kind="completed" if found else "too_many_files")

    return ablate(make_test_plan(), decide_for(answer), run_trial, ProgressListener())


def climb(config: LoaderConfig, number: int) -> float:
    loader = config.dataloader
    steps = bool(loader.num_workers) + (loader.prefetch_factor == 4) + loader.persistent_workers
    return 100.0 * (1 << steps)


def test_every_step_is_measured_beside_the_one_before_and_the_speedups_multiply_to_the_whole() -> None:
    rows = measure_steps(make_config(12, 4, persistent_workers=True), climb).steps
    assert [row.setting for row in rows] == ["num_workers=12", "prefetch_factor=4", "persistent_workers=True"]
    assert [row.speedup for row in rows] == pytest.approx([2.0, 2.0, 2.0])
    assert [row.samples_per_second for row in rows] == pytest.approx([200.0, 400.0, 800.0], rel=0.05)
    assert not any(row.is_noise for row in rows)


def test_one_bad_measurement_makes_a_step_uncertain_and_not_a_loss() -> None:
    """Seen: a step at 123 samples/s, where whole runs gave 366, was told as 0.38x and the next one as 2.12x."""

    def stumble(config: LoaderConfig, number: int) -> float:
        is_unlucky = config == make_config(12, 4) and number == 1
        return 123.0 if is_unlucky else 366.0

    rows = measure_steps(make_config(12, 4, persistent_workers=True), stumble).steps
    assert [row.speedup for row in rows] == pytest.approx([1.0, 1.0, 1.0])
    assert all(row.is_noise for row in rows)


def test_an_answer_that_is_one_step_away_is_explained_by_the_confirmation() -> None:
    asked: list[LoaderConfig] = []

    def note(config: LoaderConfig, number: int) -> float:
        asked.append(config)
        return 1.0

    (row,) = measure_steps(make_config(12, 2), note).steps
    assert (row.setting, row.speedup, row.speedup_ci95) == ("num_workers=12", 4.0, (3.9, 4.1))
    assert asked == []


def test_a_step_that_does_not_work_alone_is_taken_together_with_the_next() -> None:
    def needs_sharing(config: LoaderConfig, number: int) -> float | None:
        if not config.dataloader.num_workers:
            return 100.0
        return 400.0 if config.process == SHARED else None

    (row,) = measure_steps(make_config(12, 2, process=SHARED), needs_sharing).steps
    assert row.setting == "num_workers=12 sharing_strategy=file_system"
    assert row.speedup == pytest.approx(4.0)


def test_without_time_for_a_whole_round_none_begins() -> None:
    def refuse(request: TrialRequest) -> TrialResult:
        raise AssertionError(request)

    found = ablate(make_test_plan(), decide_for(ANSWER), refuse, ProgressListener(), has_time=lambda count: count < 6)
    assert found.steps == ()


def know(*tried: LoaderConfig) -> SearchOutcome:
    """Know that workers treble the throughput, surely, that nothing else is known to matter, and what was tried."""

    def predict(path: Sequence[LoaderConfig]) -> list[SpeedupPrediction]:
        return [SpeedupPrediction(3.0, 0.05), *(SpeedupPrediction(1.02, 0.001) for _ in path[2:])]

    return SearchOutcome(
        tuple(make_record(config, 100.0) for config in tried),
        "",
        (),
        {},
        lambda configs: [],
        predict,
        lambda config: True,
    )


KEPT = make_config(12, 4, persistent_workers=True)


def test_in_brief_the_steps_are_what_the_search_knows_and_end_at_what_the_answer_reaches() -> None:
    rows = estimate_steps(make_test_plan(), decide_for(KEPT), know(make_config(0), make_config(12, 2))).steps
    assert [row.setting for row in rows] == ["num_workers=12", "prefetch_factor=4", "persistent_workers=True"]
    assert [row.speedup for row in rows] == [3.0, 1.02, 1.02]
    assert rows[-1].samples_per_second == 400.0
    assert rows[0].samples_per_second == pytest.approx(400.0 / 1.02**2)
    assert all(row.is_estimate for row in rows)


def test_in_brief_a_step_that_nobody_tried_is_as_unsure_as_a_guess() -> None:
    tried = (make_config(0), make_config(12, 2), make_config(12, 4))
    rows = estimate_steps(make_test_plan(), decide_for(KEPT), know(*tried)).steps
    widths = [row.speedup_ci95[1] / row.speedup for row in rows if row.speedup_ci95]
    assert widths == pytest.approx([math.exp(1.96 * 0.05), 1.002, math.exp(1.96 * GUESS_ERROR)], rel=1e-3)
    assert [row.is_noise for row in rows] == [False, False, True]


def test_in_brief_a_single_step_gave_what_was_measured() -> None:
    (row,) = estimate_steps(make_test_plan(), decide_for(make_config(12, 2)), know()).steps
    assert (row.speedup, row.speedup_ci95, row.is_estimate) == (4.0, (3.9, 4.1), False)
