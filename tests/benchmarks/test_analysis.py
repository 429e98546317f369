"""The arithmetic of the benchmarks; nothing is measured here."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.analysis import comparison, fidelity, regret
from benchmarks.analysis.footprint import FOOTPRINT_FILE
from benchmarks.analysis.verdicts import Verdict, format_table
from benchmarks.records import Entrant, Prediction, Tuning, list_own_costs, read_results, save_result
from benchmarks.training.messages import Reading, Trained, TrainingRun
from tests.benchmarks.builders import make_entrant, make_result, make_trial
from tests.benchmarks.test_footprint import make_footprint
from tests.builders import make_config


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
    lines = [
        make_trial(2.0),
        make_trial(3.1),
        make_trial(5.0, completed=False),
        make_trial(9.0),
        make_trial(10.05),
    ]
    assert [own for own, _ in list_own_costs(lines)] == pytest.approx([0.1, 0.05])
    assert [ending for _, ending in list_own_costs(lines)] == pytest.approx([0.02, 0.02])


def test_the_best_known_early_ignores_what_came_later_or_failed() -> None:
    lines = (
        make_trial(5.0, score=2),
        make_trial(9.0, score=9, completed=False),
        make_trial(31.0, score=8),
    )
    tuning = Tuning(tuner="dltune", config=make_config(), seconds=60.0, lines=lines)
    assert tuning.best_after(30.0) == make_config(2)
    assert tuning.best_after(60.0) == make_config(8)
    assert tuning.best_after(1.0) is None


def test_peers_are_compared_with_the_same_best() -> None:
    tunings = tuple(
        Tuning(tuner=tuner, config=make_config(workers), seconds=seconds)
        for tuner, workers, seconds in (("dltune", 8, 60.0), ("hand", 2, 0.0))
    )
    entrants = (make_entrant("dltune", "grid 1", rates=(100,)), make_entrant("hand", rates=(40,)))
    found = comparison.compare_peers(make_result(*entrants, tunings=tunings), report.PEERS)
    assert found.shares == pytest.approx({"dltune": 1.0, "hand": 0.4})
    assert "100% in 1.0" in comparison.tabulate_comparisons([found], report.PEERS)


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
    assert read_results(tmp_path, ("tutorial", "reads", "absent")) == [result]


def test_a_summary_is_printed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuning = Tuning(tuner="dltune", config=make_config(2), seconds=112.0, lines=(make_trial(5.0), make_trial(6.3)))
    entrant = make_entrant("dltune", "grid 1", "early", "search", rates=(100, 100, 100), predicted=(101, 101, 102))
    save_result(make_result(entrant, tunings=(tuning,)), tmp_path)
    (tmp_path / FOOTPRINT_FILE).write_text(make_footprint().model_dump_json())
    report.publish(tmp_path)
    shown = capsys.readouterr().out
    assert "missed by 12 s" in shown
    assert "own cost" in shown
    assert (tmp_path / "summary.json").exists()


def test_the_device_waits_less_the_more_it_is_busy() -> None:
    trained = Trained(samples=100, epoch_seconds=(1.0, 1.0))
    entrant = Entrant(labels=("dltune",), config=make_config(), epochs=2, screened=50.0)
    assert entrant.utilization is None
    for waited in (0.5, 1.0):
        entrant = entrant.add_run(TrainingRun(trained=trained, reading=Reading(waited_seconds=waited)))
    assert entrant.busy_share == pytest.approx((0.75 + 0.5) / 2)


def test_without_results_there_is_nothing_to_print(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.publish(tmp_path)
    assert "No results" in capsys.readouterr().out
