"""What the numbers of a replay are worth."""

from __future__ import annotations

from autotune.search import loop
from benchmarks.holdout import VARIANTS, Score, Variant, choose, hold_out, in_force


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
    before = loop.PATIENCE_TRIALS
    with in_force(Variant("model", loop, "PATIENCE_TRIALS", 3)):
        assert loop.__dict__["PATIENCE_TRIALS"] == 3
    assert before == loop.PATIENCE_TRIALS


def test_every_variant_but_a_plain_sampler_changes_a_constant_that_is_there() -> None:
    assert [variant.label for variant in VARIANTS if variant.module is None] == ["model", "tpe", "random"]
    for variant in VARIANTS:
        assert variant.module is None or getattr(variant.module, variant.constant) != variant.value
