"""The benchmarks' arithmetic and their grids; nothing is measured here."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from autotune.config import LoaderConfig
from autotune.search import stopping
from benchmarks import comparison, fidelity, regret, report
from benchmarks.footprint import FOOTPRINT_FILE, Footprint, judge_footprint
from benchmarks.holdout import VARIANTS, Score, Variant, choose, hold_out, in_force
from benchmarks.records import (
    Entrant,
    Line,
    Prediction,
    Screened,
    Tuning,
    WorkloadResult,
    list_own_costs,
    read_results,
    save_result,
)
from benchmarks.suite import gather_labels, parse_arguments, plan_epochs
from benchmarks.verdicts import Verdict, format_table
from benchmarks.whole_run import Trained, count_samples
from benchmarks.workloads import WORKLOADS, BenchWorkload, as_config, choose_by_hand, list_grid, list_spread
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


def make_line(
    finished_seconds: float, timed_seconds: float = 1.0, *, completed: bool = True, score: float = 1.0
) -> Line:
    return Line(
        config=make_config(round(score)),
        fate="measured",
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


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_every_dataset_yields_a_batch_of_its_size(workload: BenchWorkload) -> None:
    module, _, name = workload.dataset.partition(":")
    dataset = getattr(import_module(module), name)()
    batch = next(iter(DataLoader(dataset, batch_size=2)))
    assert count_samples(batch) == 2
    assert len(dataset) > 2 * workload.batch_size


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than CPUs are the point
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_every_configuration_of_a_grid_builds_a_loader(workload: BenchWorkload) -> None:
    grid = [*list_grid(workload), *list_spread(workload), choose_by_hand(workload, cpus=2)]
    for kwargs in grid:
        DataLoader(TensorDataset(torch.zeros(4)), **kwargs)
        DataLoader(TensorDataset(torch.zeros(4)), **as_config(kwargs).loader_kwargs())


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_a_grid_has_20_to_28_distinct_configurations(workload: BenchWorkload) -> None:
    configs = {as_config(kwargs) for kwargs in list_grid(workload)}
    assert len(configs) == len(list_grid(workload))
    assert 20 <= len(configs) <= 28


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_order_is_given_up_only_where_there_is_one(workload: BenchWorkload) -> None:
    module, _, name = workload.dataset.partition(":")
    if isinstance(getattr(import_module(module), name)(), IterableDataset):
        assert not workload.unordered


def test_arguments_that_mean_the_same_are_one_configuration() -> None:
    assert as_config({"batch_size": 8, "num_workers": 2}) == as_config(
        {"batch_size": 8, "num_workers": 2, "prefetch_factor": 2, "in_order": True, "pin_memory": False}
    )


@pytest.mark.parametrize(
    "batch", [torch.zeros(3, 7), (torch.zeros(3), torch.zeros(5)), [[torch.zeros(3)]], {"x": torch.zeros(3)}]
)
def test_samples_are_counted_by_the_first_tensor(batch: object) -> None:
    assert count_samples(batch) == 3


def test_a_short_run_lets_expect_a_long_one_whose_start_weighs_less() -> None:
    run = Trained(samples=300, epoch_seconds=(2.0, 1.0, 1.0))
    assert run.samples_per_second == 75
    assert run.extrapolate(10) == pytest.approx(1000 / 11)


def test_a_run_that_was_given_up_is_taken_as_it_is() -> None:
    assert Trained(samples=30, epoch_seconds=(2.0, 1.0), given_up=True).extrapolate(10) == 10


def test_slow_configurations_get_fewer_epochs_and_hopeless_ones_none() -> None:
    assert [plan_epochs(10, seconds) for seconds in (0.1, 2.0, 9.0, 11.0)] == [10, 5, 2, None]


def test_the_error_of_a_prediction_is_that_of_medians() -> None:
    (pair,) = fidelity.pair_up(make_result(make_entrant("spread", rates=(90, 100, 110), predicted=(102, 80, 103))))
    assert pair.error == pytest.approx(0.02)
    assert pair.spread == pytest.approx(0.2)
    assert pair.trial_errors == pytest.approx((0.02, -0.2, 0.03))
    assert pair.trials_covered == (True, False, True)


def test_the_interval_is_the_one_that_dltune_states() -> None:
    (near,) = fidelity.pair_up(make_result(make_entrant("spread", rates=(100, 100), predicted=(99, 100, 101))))
    (far,) = fidelity.pair_up(make_result(make_entrant("spread", rates=(120, 120), predicted=(99, 100, 101))))
    assert near.is_covered is True
    assert far.is_covered is False


def test_a_single_round_states_no_interval() -> None:
    (pair,) = fidelity.pair_up(make_result(make_entrant("spread", rates=(100,), predicted=(99,))))
    assert pair.is_covered is None


def test_a_configuration_whose_trial_failed_is_no_pair() -> None:
    entrant = make_entrant("spread", rates=(100,))
    failed = Prediction(seconds=1.0, failure="crashed: it was killed")
    assert fidelity.pair_up(make_result(entrant.model_copy(update={"predictions": (failed,)}))) == []


def test_fidelity_counts_medians_tails_and_coverage() -> None:
    entrants = [make_entrant("spread", rates=(100,) * 3, predicted=(rate,) * 3) for rate in (100, 101, 110)]
    verdicts = {line.what: line for line in fidelity.judge_fidelity(fidelity.pair_up(make_result(*entrants)))}
    assert verdicts["median error"].value == pytest.approx(0.01)
    assert verdicts["error, 90th percentile"].value == pytest.approx(0.082)
    assert verdicts["stated interval holds the truth"].value == pytest.approx(2 / 3)
    assert verdicts["pairs"].describe() == "missed by 37"


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.5, 2.5), (0.9, 3.7), (1.0, 4.0)])
def test_quantiles_lie_between_values(share: float, value: float) -> None:
    assert fidelity.find_quantile([4, 2, 1, 3], share) == pytest.approx(value)


def test_the_best_of_a_grid_is_picked_without_the_round_that_judges() -> None:
    steady, lucky = make_entrant("grid 1", rates=(100, 100, 100)), make_entrant("grid 2", rates=(90, 130, 90))
    assert regret.measure_share(make_entrant("dltune", rates=(99, 99, 99)), [steady, lucky]) == pytest.approx(0.99)


def test_in_a_single_round_the_best_is_that_of_the_screening() -> None:
    first = make_entrant("grid 1", rates=(100,)).model_copy(update={"screened": 120.0})
    second = make_entrant("grid 2", rates=(110,))
    assert regret.measure_share(make_entrant("dltune", rates=(99,)), [first, second]) == pytest.approx(0.99)


def test_regret_holds_choice_promise_and_tie_against_whole_runs() -> None:
    tuning = Tuning(tuner="dltune", config=make_config(2), seconds=60.0, promise=99.0, interval=(95.0, 103.0))
    entrants = (
        make_entrant("dltune", workers=2, rates=(98, 98, 98)),
        make_entrant("grid 1", workers=4, rates=(100, 100, 100)),
        make_entrant("search", workers=8, rates=(99, 99, 99)),
    )
    found = regret.measure_regret(make_result(*entrants, tunings=(tuning,)))
    assert found is not None
    assert found.share == pytest.approx(0.98)
    assert found.tie_cost == pytest.approx(1 / 99)
    assert found.promise_error == pytest.approx(1 / 98)
    assert found.is_promise_kept is True
    assert [line.is_reached for line in regret.judge_regret([found])][:3] == [True, False, True]


@pytest.mark.parametrize(("sibling", "share"), [((100, 100, 100), 0.98), ((90, 90, 90), 1.0)])
def test_a_choice_is_held_against_the_conventional_setting_with_as_many_workers(
    sibling: tuple[float, ...], share: float
) -> None:
    tuning = Tuning(tuner="dltune", config=make_config(2), seconds=60.0)
    entrants = (
        make_entrant("dltune", workers=2, rates=(98, 98, 98)),
        make_entrant("grid 1", workers=4, rates=(100, 100, 100)),
        make_entrant("sibling", workers=3, rates=sibling),
    )
    found = regret.measure_regret(make_result(*entrants, tunings=(tuning,)))
    assert found is not None
    assert found.sibling_share == pytest.approx(share)


def test_own_cost_is_what_passes_beside_the_timed_windows_and_leaves_out_failures() -> None:
    lines = [make_line(2.0), make_line(3.1), make_line(5.0, completed=False), make_line(9.0), make_line(10.05)]
    assert [own for own, _ in list_own_costs(lines)] == pytest.approx([0.1, 0.05])
    assert [ending for _, ending in list_own_costs(lines)] == pytest.approx([0.02, 0.02])


def test_the_best_known_early_ignores_what_came_later_or_failed() -> None:
    lines = (make_line(5.0, score=2), make_line(9.0, score=9, completed=False), make_line(31.0, score=8))
    tuning = Tuning(tuner="dltune", config=make_config(), seconds=60.0, lines=lines)
    assert tuning.best_after(30.0) == make_config(2)
    assert tuning.best_after(60.0) == make_config(8)
    assert tuning.best_after(1.0) is None


def test_each_configuration_enters_once_with_all_its_labels() -> None:
    tunings = (
        Tuning(tuner="dltune", config=make_config(8), seconds=60.0, lines=(make_line(5.0, score=8),)),
        Tuning(tuner="hand", config=make_config(2, persistent_workers=True), seconds=0.0),
    )
    grid = [Screened(config=make_config(workers), run=make_run(1), samples_per_second=workers) for workers in range(12)]
    labels = gather_labels(WORKLOADS[0], tunings, grid)
    assert labels[make_config(8)] == ("dltune", "early", "search")
    assert [config for config, why in labels.items() if why[0].startswith("grid")] == [
        make_config(workers) for workers in (11, 10)
    ]


def test_peers_are_compared_with_the_same_best() -> None:
    tunings = tuple(
        Tuning(tuner=tuner, config=make_config(workers), seconds=seconds)
        for tuner, workers, seconds in (("dltune", 8, 60.0), ("hand", 2, 0.0))
    )
    entrants = (make_entrant("dltune", "grid 1", rates=(100,)), make_entrant("hand", rates=(40,)))
    found = comparison.compare_peers(make_result(*entrants, tunings=tunings))
    assert found.shares == pytest.approx({"dltune": 1.0, "hand": 0.4})
    assert "100% in 1.0" in comparison.tabulate_comparisons([found])


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (Verdict(what="error", value=0.033, unit="%", target=0.02), "missed by 1.3 %"),
        (Verdict(what="share", value=0.95, unit="%", target=0.97, sense="at least"), "missed by 2.0 %"),
        (Verdict(what="time", value=112.0, unit="s", target=100), "missed by 12 s"),
        (Verdict(what="share", value=0.97, unit="%", target=0.97, sense="at least"), "reached"),
        (Verdict(what="time", value=None, unit="s", target=100), "not measured"),
        (Verdict(what="time", value=1.0, unit="s"), ""),
    ],
)
def test_a_verdict_says_by_how_much_a_target_was_missed(verdict: Verdict, words: str) -> None:
    assert verdict.describe() == words


def test_the_table_says_the_distance() -> None:
    table = format_table(("a", "b"), [Verdict(what="error", value=0.033, unit="%", target=0.02).as_row()[::3]])
    assert table.splitlines()[-1] == "| error | missed by 1.3 % |"


def test_results_are_read_as_they_were_written_and_others_are_passed_over(tmp_path: Path) -> None:
    result = make_result(make_entrant("dltune", rates=(100,), predicted=(99,)), name="reads")
    save_result(result, tmp_path)
    (tmp_path / "tutorial.json").write_text('{"of another": "format"}')
    assert read_results(tmp_path, ("tutorial", "reads", "absent"), WorkloadResult) == [result]


def test_a_summary_is_printed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuning = Tuning(tuner="dltune", config=make_config(2), seconds=112.0, lines=(make_line(5.0), make_line(6.3)))
    entrant = make_entrant("dltune", "grid 1", "early", "search", rates=(100, 100, 100), predicted=(101, 101, 102))
    save_result(make_result(entrant, tunings=(tuning,)), tmp_path)
    (tmp_path / FOOTPRINT_FILE).write_text(make_footprint().model_dump_json())
    report.publish(tmp_path)
    shown = capsys.readouterr().out
    assert "missed by 12 s" in shown
    assert "own cost" in shown
    assert (tmp_path / "summary.json").exists()


def make_footprint() -> Footprint:
    return Footprint(
        date="2026-01-02T03:04:05+00:00",
        cpus=2,
        import_seconds={
            "python and pydantic": (0.1,),
            "import autotune": (0.05,),
            "import autotune, and load": (0.2,),
        },
        parent_bytes=(100_000_000, 110_000_000),
        parent_cpu_share=0.01,
        own_seconds=(0.05,),
        tree_processes=65,
        tick_seconds=(0.005,),
        short_tick_seconds=(0.001,),
        exact_seconds=(0.1,),
        walled_seconds=(0.1,),
    )


def test_a_footprint_is_held_against_its_targets() -> None:
    assert [line.describe() for line in judge_footprint(make_footprint())] == [
        "reached",
        "missed by 40 ms",
        "reached",
        "reached",
        "reached",
        "reached",
    ]


def test_a_rehearsal_never_lands_among_the_results() -> None:
    options, workloads = parse_arguments(["--quick", "--only", "memory"])
    assert options.results != parse_arguments([])[0].results
    assert [workload.name for workload in workloads] == ["memory"]
    assert all(isinstance(as_config(kwargs), LoaderConfig) for kwargs in list_grid(workloads[0]))


def make_score(trace: str, variant: str, share: float, trials: float = 10.0) -> Score:
    return Score(trace=trace, variant=variant, share=share, trials=trials)


def test_what_is_judged_on_a_grid_was_chosen_without_it() -> None:
    scores = [
        *(make_score(trace, "even", 0.97) for trace in "abc"),
        *(make_score(trace, "lucky", share) for trace, share in zip("abc", (1.0, 0.9, 0.9), strict=True)),
        *(make_score(trace, "spoilt", share) for trace, share in zip("abc", (0.5, 1.0, 1.0), strict=True)),
    ]
    assert [(score.trace, score.variant, score.share) for score in hold_out(scores)] == [
        ("a", "spoilt", 0.5),
        ("b", "even", 0.97),
        ("c", "even", 0.97),
    ]


def test_of_variants_that_reach_as_much_the_one_with_fewest_trials_is_chosen() -> None:
    scores = [
        make_score("a", "long", 1.0, 40.0),
        make_score("a", "short", 0.998, 9.0),
        make_score("a", "bad", 0.9, 3.0),
    ]
    assert choose(scores) == "short"


def test_a_changed_constant_is_as_before_afterwards() -> None:
    before = stopping.PATIENCE_TRIALS
    with in_force(Variant("model", stopping, "PATIENCE_TRIALS", 3)):
        assert stopping.__dict__["PATIENCE_TRIALS"] == 3
    assert before == stopping.PATIENCE_TRIALS


def test_every_variant_but_a_plain_sampler_changes_a_constant_that_is_there() -> None:
    assert [variant.label for variant in VARIANTS if variant.module is None] == ["model", "tpe", "random"]
    for variant in VARIANTS:
        assert variant.module is None or getattr(variant.module, variant.constant) != variant.value
