from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autotune.profiles.schema import RankResult
from autotune.trial.measurement import Measurement, RankWaits
from autotune.validation.ranks import describe_late_rank, describe_multiplied_data, sum_up_ranks
from tests.builders import make_measurement_of


def make_ranks(*late: int, waits: tuple[float, ...] = (1.0, 4.0), samples: int = 0) -> Measurement:
    """Build a measurement of 100 steps in which each rank was last so many times."""
    pairs = zip(late, waits, strict=True)
    ranks = [RankWaits(wait_seconds=wait, steps=100, late_steps=count, samples=samples) for count, wait in pairs]
    return make_measurement_of(100.0).model_copy(update={"ranks": tuple(ranks)})


def test_what_ranks_waited_is_summed_up_over_the_rounds() -> None:
    first, second = sum_up_ranks([make_ranks(10, 90), make_ranks(20, 70)])
    assert (first.late_share, second.late_share) == (0.15, 0.8)
    assert (first.wait_seconds, second.wait_seconds) == (0.01, 0.04)


def test_one_process_has_no_ranks_to_sum_up() -> None:
    assert sum_up_ranks([make_measurement_of(100.0)]) == ()


def test_a_rank_that_is_always_the_last_is_named_with_its_wait() -> None:
    words = describe_late_rank(sum_up_ranks([make_ranks(2, 95)]), wait_share=0.5)
    assert words is not None
    assert words.startswith("Rank 1 gets its batch last in 95 % of the steps: it waits 40.0 ms for a batch, another")


def test_ranks_that_are_last_in_turn_are_told_as_slow_loading() -> None:
    words = describe_late_rank(sum_up_ranks([make_ranks(45, 50)]), wait_share=0.5)
    assert words is not None
    assert "it is not always the same one" in words


def test_nobody_is_named_where_no_step_waits() -> None:
    ranks = sum_up_ranks([make_ranks(2, 95)])
    assert describe_late_rank(ranks, wait_share=0.01) is None
    assert describe_late_rank(sum_up_ranks([make_ranks(2, 5)]), wait_share=0.5) is None
    assert describe_late_rank((), wait_share=0.5) is None


def test_ranks_that_each_go_through_all_of_the_data_are_warned_of() -> None:
    whole = [make_ranks(0, 0, samples=64)]
    assert "each goes through all of it" in (describe_multiplied_data(whole, 64) or "")
    assert describe_multiplied_data([make_ranks(0, 0, samples=32)], 64) is None
    assert describe_multiplied_data(whole, None) is None


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1)), max_size=9), st.floats(0, 1))
def test_any_ranks_can_be_described(seen: list[tuple[float, float]], fraction: float) -> None:
    words = describe_late_rank([RankResult(wait_seconds=wait, late_share=late) for wait, late in seen], fraction)
    assert words is None or words.endswith(".")
