from __future__ import annotations

from collections.abc import Sequence

import pytest

from autotune.confirming import Contestant
from autotune.deciding import decide, pick_finalists
from autotune.records import TrialRecord
from autotune.schema import LoaderConfig
from tests.builders import make_config, make_contestant, make_result

BASELINE = make_config(0)


def make_record(config: LoaderConfig, score: float, peak_host_bytes: int = 0) -> TrialRecord:
    result = make_result(config, score, peak_host_bytes=peak_host_bytes)
    return TrialRecord(number=0, config=config, fate="measured", score=score, constraints={}, result=result)


def pick(records: Sequence[TrialRecord]) -> list[int]:
    """List the workers of the finalists."""
    return [config.dataloader.num_workers for config in pick_finalists(records)]


def test_the_best_and_the_smallest_close_to_it_enter_the_final_first() -> None:
    scores = {1: 500.0, 2: 930.0, 4: 960.0, 8: 1000.0, 16: 990.0}
    assert pick([make_record(make_config(workers), score) for workers, score in scores.items()]) == [8, 2, 16]


def test_a_lucky_trial_does_not_lead_the_final_when_its_neighbours_were_slower() -> None:
    records = [make_record(make_config(8), 1000.0), make_record(make_config(12), 950.0)]
    finalists = pick_finalists(records, {make_config(8): 900.0, make_config(12): 940.0})
    assert finalists[0] == make_config(12)


def test_who_is_far_behind_does_not_enter_the_final() -> None:
    assert pick([make_record(make_config(1), 500.0), make_record(make_config(8), 1000.0)]) == [8]


def test_failed_and_skipped_trials_do_not_enter_the_final_whatever_their_score() -> None:
    failed = TrialRecord(
        number=1,
        config=make_config(4),
        fate="measured",
        score=0.0,
        constraints={},
        result=make_result(make_config(4), kind="out_of_memory"),
    )
    skipped = TrialRecord(number=2, config=make_config(9), fate="skipped", score=9e9, constraints={})
    assert pick([failed, skipped, make_record(make_config(2), 100.0)]) == [2]


def test_without_a_trial_that_worked_there_is_no_final() -> None:
    assert pick([]) == []


def test_the_fastest_wins_when_nobody_is_close() -> None:
    fast, slow = (
        make_contestant(make_config(8), 200.0, 203.0, 197.0),
        make_contestant(make_config(2), 150.0, 150.0, 150.0),
    )
    decision = decide(make_contestant(BASELINE, 100.0, 101.0, 99.0), [slow, fast])
    assert decision is not None
    assert (decision.config, decision.verdict, decision.runner_up) == (make_config(8), "faster", None)
    assert decision.speedup == pytest.approx(2.0)
    assert decision.samples_per_second == pytest.approx(200.0)
    assert decision.speedup_interval is not None
    assert decision.speedup_interval[0] < 2.0 < decision.speedup_interval[1]


@pytest.mark.parametrize(
    ("small", "large"),
    [
        (make_contestant(make_config(4, 2), 199.0, 199.0), make_contestant(make_config(8, 2), 200.0, 200.0)),
        (make_contestant(make_config(4, 2), 199.0, 199.0), make_contestant(make_config(4, 4), 200.0, 200.0)),
        (
            make_contestant(make_config(4), 199.0, 199.0, peak_host_bytes=10),
            make_contestant(make_config(4, persistent_workers=True), 200.0, 200.0, peak_host_bytes=20),
        ),
        (make_contestant(make_config(4), 199.0, 199.0), make_contestant(make_config(4, in_order=False), 200.0, 200.0)),
    ],
)
def test_of_two_within_noise_the_smaller_wins_and_the_faster_is_named(small: Contestant, large: Contestant) -> None:
    for finalists in ([small, large], [large, small]):
        decision = decide(make_contestant(BASELINE, 100.0, 100.0), finalists)
        assert decision is not None
        assert decision.config == small.config
        assert decision.runner_up == large.config
        assert decision.samples_per_second == pytest.approx(199.0)


@pytest.mark.parametrize(
    "rates",
    [
        pytest.param((101.0, 101.0, 101.0), id="too small a gain"),
        pytest.param((90.0, 130.0, 160.0), id="within noise"),
        pytest.param((80.0, 80.0, 80.0), id="slower"),
    ],
)
def test_the_baseline_is_kept_unless_the_gain_is_beyond_doubt(rates: tuple[float, ...]) -> None:
    decision = decide(make_contestant(BASELINE, 100.0, 100.0, 100.0), [make_contestant(make_config(4), *rates)])
    assert decision is not None
    assert (decision.config, decision.verdict, decision.speedup) == (BASELINE, "keep", 1.0)
    assert decision.samples_per_second == pytest.approx(100.0)


def test_noise_that_both_share_in_every_round_does_not_hide_a_gain() -> None:
    decision = decide(
        make_contestant(BASELINE, 100.0, 50.0, 200.0), [make_contestant(make_config(4), 110.0, 55.0, 220.0)]
    )
    assert decision is not None
    assert decision.verdict == "faster"
    assert decision.speedup == pytest.approx(1.1)


def test_rounds_that_only_one_of_them_has_seen_are_left_out_of_the_comparison() -> None:
    decision = decide(make_contestant(BASELINE, 100.0, 100.0, 100.0), [make_contestant(make_config(4), 200.0, 200.0)])
    assert decision is not None
    assert decision.speedup == pytest.approx(2.0)


def test_where_the_baseline_cannot_run_the_best_wins_without_a_speedup() -> None:
    broken = Contestant(BASELINE)
    broken.note(make_result(BASELINE, kind="out_of_memory"), epochs=10)
    decision = decide(broken, [make_contestant(make_config(4), 100.0, 100.0)])
    assert decision is not None
    assert (decision.verdict, decision.speedup, decision.speedup_interval) == ("faster", None, None)


def test_a_finalist_that_failed_in_any_round_cannot_win() -> None:
    shaky = make_contestant(make_config(8), 500.0, 500.0)
    shaky.note(make_result(make_config(8), kind="crashed"), epochs=10)
    decision = decide(make_contestant(BASELINE, 100.0, 100.0), [shaky, make_contestant(make_config(4), 150.0, 150.0)])
    assert decision is not None
    assert decision.config == make_config(4)


def test_without_finalists_the_baseline_is_kept() -> None:
    decision = decide(make_contestant(BASELINE, 100.0, 100.0), [])
    assert decision is not None
    assert (decision.config, decision.verdict) == (BASELINE, "keep")


def test_where_nothing_ran_there_is_nothing_to_decide() -> None:
    assert decide(Contestant(BASELINE), [Contestant(make_config(4))]) is None


def test_a_best_that_is_clearly_faster_is_not_given_up_for_a_smaller_one_that_is_not() -> None:
    baseline = make_contestant(BASELINE, 100.0, 100.1, 99.9)
    small = make_contestant(make_config(2), 104.2, 104.3, 104.1)
    large = make_contestant(make_config(4), 106.0, 106.1, 105.9)
    decision = decide(baseline, [small, large])
    assert decision is not None
    assert (decision.verdict, decision.config) == ("faster", make_config(4))
