"""Cross-validates the results of `replay`, whose sampler and constants were chosen on the same grids.

Each grid is held out once: of all variants (the samplers, and the default one with each of its constants halved and
doubled), the one that is best on the other grids is judged on this one.

    python -m benchmarks.holdout [--seeds 10]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from autotune.config import FrozenModel
from autotune.request import SamplerName
from autotune.search import loop, surrogate
from benchmarks.replay import Replayed, read_traces, replay

RESULTS: Final = Path("benchmarks/results/holdout.json")
SHIPPED: Final = "model"
TIE_SHARE: Final = 0.005  # variants closer to the best than this are ties


class Variant(NamedTuple):
    """A sampler, with one constant of a module changed or none."""

    sampler: SamplerName
    module: ModuleType | None = None
    constant: str = ""
    value: Any = None

    @property
    def label(self) -> str:
        """The name of the variant."""
        return self.sampler if self.module is None else f"{self.constant}={self.value}"


VARIANTS: Final = (
    Variant("model"),
    Variant("tpe"),
    Variant("random"),
    *(Variant("model", loop, "MIN_EXPECTED_IMPROVEMENT", gain) for gain in (0.005, 0.02)),
    *(Variant("model", loop, "MIN_TRIALS", trials) for trials in (3, 12)),
    *(Variant("model", loop, "PATIENCE_TRIALS", trials) for trials in (3, 10)),
    *(Variant("model", surrogate, "MIN_NOISE", noise) for noise in (0.02, 0.08)),
    *(Variant("model", surrogate, "WORKERS_SCALE", doublings) for doublings in (0.35, 1.4)),
    *(Variant("model", surrogate, "PRIOR_SCALES", scales) for scales in ((0.5,), (1.0,), (2.0,))),
)


class Score(FrozenModel):
    """Mean share of the best and mean number of trials of a variant on one grid."""

    trace: str
    variant: str
    share: float
    trials: float


@contextmanager
def in_force(variant: Variant) -> Iterator[None]:
    """Change the constant of a variant during the block."""
    if variant.module is None:
        yield
        return
    before = getattr(variant.module, variant.constant)
    setattr(variant.module, variant.constant, variant.value)
    try:
        yield
    finally:
        setattr(variant.module, variant.constant, before)


def choose(scores: Sequence[Score]) -> str:
    """Return the variant with the best mean share over some grids; of ties the one with the fewest trials."""
    labels = dict.fromkeys(score.variant for score in scores)
    shares = {label: statistics.fmean(score.share for score in scores if score.variant == label) for label in labels}
    trials = {label: statistics.fmean(score.trials for score in scores if score.variant == label) for label in labels}
    ties = [label for label in labels if shares[label] >= max(shares.values()) - TIE_SHARE]
    return min(ties, key=lambda label: trials[label])


def hold_out(scores: Sequence[Score]) -> list[Score]:
    """Return for each grid the score of the variant that was chosen on the others."""
    found = []
    for trace in dict.fromkeys(score.trace for score in scores):
        chosen = choose([score for score in scores if score.trace != trace])
        found += [score for score in scores if score.trace == trace and score.variant == chosen]
    return found


def score_variants(seeds: int) -> list[Score]:
    """Replay every grid with every variant."""
    scores = []
    for variant in VARIANTS:
        for trace in read_traces():
            with in_force(variant):
                runs = [replay(trace, variant.sampler, seed) for seed in range(seeds)]
            scores.append(_sum_up(variant.label, runs))
    return scores


def _sum_up(label: str, runs: Sequence[Replayed]) -> Score:
    return Score(
        trace=runs[0].trace,
        variant=label,
        share=statistics.fmean(run.share for run in runs),
        trials=statistics.fmean(run.trials for run in runs),
    )


def print_table(scores: Sequence[Score], held_out: Sequence[Score]) -> None:
    """Print the variant that was chosen without each grid and its score there, next to the default; then the means."""
    print(
        f"{'held out':12} {'chosen on the others':22} {'reaches':>8} {'trials':>7}   {'as shipped':>10} {'trials':>7}"
    )
    shipped = [score for score in scores if score.variant == SHIPPED]
    for score, ours in zip(held_out, shipped, strict=True):
        print(_describe(score.trace, score.variant, [score], [ours]))
    print(_describe("all", "", held_out, shipped))


def _describe(trace: str, variant: str, found: Sequence[Score], shipped: Sequence[Score]) -> str:
    reached, trials, ours, our_trials = (
        statistics.fmean(values)
        for values in (
            [score.share for score in found],
            [score.trials for score in found],
            [score.share for score in shipped],
            [score.trials for score in shipped],
        )
    )
    return f"{trace:12} {variant:22} {reached:8.1%} {trials:7.1f}   {ours:10.1%} {our_trials:7.1f}"


def main() -> None:
    """Hold every grid out once, print the table and store the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    scores = score_variants(options.seeds)
    print_table(scores, hold_out(scores))
    options.results.write_text(json.dumps([score.model_dump() for score in scores]) + "\n")


if __name__ == "__main__":
    main()
