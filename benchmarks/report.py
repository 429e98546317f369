"""Turns what the suite wrote down into tables: fidelity, regret, time, peers, footprint, each against its target.

python -m benchmarks.report [--results FOLDER]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from autotune.confirming import Contestant
from autotune.deciding import decide
from autotune.report import describe_config
from autotune.schema import Interval, Value
from benchmarks.footprint import FOOTPRINT_FILE, read_verdicts
from benchmarks.records import (
    Entrant,
    TunerName,
    Tuning,
    WorkloadResult,
    list_own_costs,
    read_results,
    write_text,
)
from benchmarks.verdicts import Verdict, format_table, format_value, format_verdicts
from benchmarks.workloads import WORKLOADS

FEWEST_PAIRS: Final = 40
MEDIAN_ERROR: Final = 0.02
TAIL_ERROR: Final = 0.06  # at the 90th percentile
COVERAGE: Final = 0.90
WORST_SHARE: Final = 0.97  # of the grid's best, on every workload
MEDIAN_SHARE: Final = 0.99
TIE_COST: Final = 0.02
TUNING_SECONDS: Final = 100.0
EARLY_SECONDS: Final = 30.0
EARLY_SHARE: Final = 0.97
OWN_SECONDS: Final = 0.1  # a trial
TIMED_WORKLOAD: Final = "tutorial"  # the one whose time has a target
PEERS: Final[tuple[TunerName, ...]] = ("dltune", "random", "loadtune", "hand")


class Pair(Value):
    """A configuration's predictions beside its whole runs.

    Attributes:
        workload: Name of the workload.
        config: The configuration, in words.
        labels: Why it was measured.
        epochs: Length of the whole runs.
        true: Samples per second, median of the whole runs.
        spread: Largest less smallest whole run, as a share of the median.
        predicted: Samples per second, median of the trials.
        interval: 95 % interval that dltune states for that many rounds; None for a single one.
        trial_errors: Relative error of each trial on its own.
        trials_covered: For each trial that knew its error, whether its own interval holds the truth.
    """

    workload: str
    config: str
    labels: tuple[str, ...]
    epochs: int
    true: float
    spread: float
    predicted: float
    interval: Interval | None
    trial_errors: tuple[float, ...]
    trials_covered: tuple[bool, ...]

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.true - 1

    @property
    def is_covered(self) -> bool | None:
        """Whether the stated interval holds the truth; None where none is stated."""
        return None if self.interval is None else self.interval[0] <= self.true <= self.interval[1]


class Regret(Value):
    """What the choice gives against the best of the grid.

    Attributes:
        workload: Name of the workload.
        choice: The choice, in words.
        share: Its throughput as a share of the best of the grid.
        best: The configuration that won the rounds, in words.
        share_of_winner: Its throughput as a share of that one's median, which won by luck as well.
        tie_cost: What is lost against the best of the search; None where that was not measured.
        promise_error: Relative error of what dltune promised for it.
        is_promise_kept: Whether the promised interval holds the truth; None where there is none.
    """

    workload: str
    choice: str
    share: float
    best: str
    share_of_winner: float
    tie_cost: float | None
    promise_error: float | None
    is_promise_kept: bool | None


class Pace(Value):
    """How long dltune took.

    Attributes:
        workload: Name of the workload.
        seconds: Wall time of the run.
        trials: Configurations that it measured.
        early_share: What the best it knew after 30 s gives, as a share of the best of the grid; None for nothing.
        own_seconds: Its own cost a trial after the first, mean.
        ending_seconds: Part of it that passes inside the trial: messages, taking the workers down.
    """

    workload: str
    seconds: float
    trials: int
    early_share: float | None
    own_seconds: float | None
    ending_seconds: float | None


class Comparison(Value):
    """What each tuner's choice gives on a workload.

    Attributes:
        workload: Name of the workload.
        shares: Throughput by tuner, as a share of the best of the grid.
        seconds: Time taken, by tuner.
    """

    workload: str
    shares: dict[str, float]
    seconds: dict[str, float]


def find_quantile(values: Sequence[float], share: float) -> float:
    """Give the value below which a share of the values lies, by linear interpolation.

    Args:
        values: At least one value.
        share: Between 0 and 1.

    Returns:
        The quantile.
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def pair_up(result: WorkloadResult) -> list[Pair]:
    """Set predictions beside whole runs; configurations whose trials failed are left out."""
    return [_pair(result.workload, entrant) for entrant in result.entrants if entrant.runs and entrant.predicted_rates]


def _pair(workload: str, entrant: Entrant) -> Pair:
    true = statistics.median(entrant.rates)
    predicted = entrant.predicted_rates
    return Pair(
        workload=workload,
        config=describe_config(entrant.config),
        labels=entrant.labels,
        epochs=entrant.epochs,
        true=true,
        spread=(max(entrant.rates) - min(entrant.rates)) / true,
        predicted=statistics.median(predicted),
        interval=state_interval(entrant),
        trial_errors=tuple(rate / true - 1 for rate in predicted),
        trials_covered=tuple(
            abs(true / prediction.samples_per_second - 1) <= prediction.relative_error
            for prediction in entrant.predictions
            if prediction.relative_error is not None
        ),
    )


def state_interval(entrant: Entrant) -> Interval | None:
    """Give the interval that dltune would write down, had these predictions been the rounds of its confirmation."""
    contestant = Contestant(entrant.config)
    contestant.scores = entrant.predicted_rates
    contestant.waits = [0.0] * len(contestant.scores)
    decision = decide(contestant, ())
    return decision.interval if decision is not None else None


def judge_fidelity(pairs: Sequence[Pair]) -> list[Verdict]:
    """Hold the predictions against their targets.

    Args:
        pairs: At least one pair.

    Returns:
        The verdicts, those on medians of rounds first.
    """
    errors = [abs(pair.error) for pair in pairs]
    singles = [abs(error) for pair in pairs for error in pair.trial_errors]
    covered = [pair.is_covered for pair in pairs if pair.is_covered is not None]
    singles_covered = [held for pair in pairs for held in pair.trials_covered]
    spread = statistics.median(pair.spread for pair in pairs)
    rounds = f"whole runs spread by {spread:.1%} in the median"
    single = f"{len(singles)} single trials"
    return [
        Verdict(what="pairs", value=len(pairs), unit="", target=FEWEST_PAIRS, sense="at least"),
        Verdict(what="median error", value=statistics.median(errors), unit="%", target=MEDIAN_ERROR, detail=rounds),
        Verdict(what="error, 90th percentile", value=find_quantile(errors, 0.9), unit="%", target=TAIL_ERROR),
        _cover("stated interval holds the truth", covered, COVERAGE),
        Verdict(what="one trial: median error", value=statistics.median(singles), unit="%", detail=single),
        Verdict(what="one trial: error, 90th percentile", value=find_quantile(singles, 0.9), unit="%"),
        _cover("one trial: its own interval holds the truth", singles_covered, None),
    ]


def _cover(what: str, held: Sequence[bool], target: float | None) -> Verdict:
    share = sum(held) / len(held) if held else None
    detail = f"{sum(held)} of {len(held)}"
    return Verdict(what=what, value=share, unit="%", target=target, sense="at least", detail=detail)


def measure_share(entrant: Entrant, finalists: Sequence[Entrant]) -> float:
    """Compare a configuration with the best of others, round by round.

    In each round the best is the one that was best in the screening and the *other* rounds: whoever is picked for its
    luck has to do without it where it counts.

    Args:
        entrant: The configuration.
        finalists: The others; it may be among them.

    Returns:
        Median of the ratios.
    """
    ratios = []
    for number, rate in enumerate(entrant.rates):
        rivals = [rival for rival in finalists if len(rival.runs) > number]
        picked = max(rivals, key=lambda rival: _recall(rival, number))
        ratios.append(rate / picked.rates[number])
    return statistics.median(ratios)


def _recall(entrant: Entrant, left_out: int) -> float:
    others = [rate for number, rate in enumerate(entrant.rates) if number != left_out]
    return statistics.median([*others, entrant.screened])


def list_finalists(result: WorkloadResult) -> list[Entrant]:
    """List the best of the grid, with their whole runs."""
    return [entrant for entrant in result.entrants if entrant.runs and any("grid" in label for label in entrant.labels)]


def measure_regret(result: WorkloadResult) -> Regret | None:
    """Compare dltune's choice with the best of the grid; None where one of them has no whole run."""
    choice, tuning, finalists = result.find_entrant("dltune"), result.find_tuning("dltune"), list_finalists(result)
    if choice is None or tuning is None or not finalists:
        return None
    true = statistics.median(choice.rates)
    winner = max(finalists, key=lambda entrant: statistics.median(entrant.rates))
    top = result.find_entrant("search")
    return Regret(
        workload=result.workload,
        choice=describe_config(choice.config),
        share=measure_share(choice, finalists),
        best=describe_config(winner.config),
        share_of_winner=true / statistics.median(winner.rates),
        tie_cost=None if top is None else max(0.0, 1 - measure_share(choice, [top])),
        promise_error=None if tuning.promise is None else tuning.promise / true - 1,
        is_promise_kept=None if tuning.interval is None else tuning.interval[0] <= true <= tuning.interval[1],
    )


def judge_regret(regrets: Sequence[Regret]) -> list[Verdict]:
    """Hold the choices against their targets.

    Args:
        regrets: At least one.

    Returns:
        The verdicts.
    """
    worst = min(regrets, key=lambda regret: regret.share)
    costs = [regret for regret in regrets if regret.tie_cost is not None]
    dearest = max(costs, key=lambda regret: regret.tie_cost or 0.0, default=None)
    return [
        Verdict(
            what="choice against the grid's best, worst workload",
            value=worst.share,
            unit="%",
            target=WORST_SHARE,
            sense="at least",
            detail=worst.workload,
        ),
        Verdict(
            what="choice against the grid's best, median",
            value=statistics.median(regret.share for regret in regrets),
            unit="%",
            target=MEDIAN_SHARE,
            sense="at least",
            detail=f"{len(regrets)} workloads",
        ),
        Verdict(
            what="cost of taking the smallest of ties, worst workload",
            value=dearest.tie_cost if dearest is not None else None,
            unit="%",
            target=TIE_COST,
            detail=dearest.workload if dearest is not None else "",
        ),
        Verdict(
            what="promise of the tuning run, median error",
            value=_find_median([abs(regret.promise_error) for regret in regrets if regret.promise_error is not None]),
            unit="%",
            detail="taken minutes before the whole runs",
        ),
        _cover(
            "promised interval holds the truth",
            [regret.is_promise_kept for regret in regrets if regret.is_promise_kept is not None],
            None,
        ),
    ]


def _find_median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def measure_pace(result: WorkloadResult) -> Pace | None:
    """Tell how long dltune took; None where it was not run."""
    tuning, early, finalists = result.find_tuning("dltune"), result.find_entrant("early"), list_finalists(result)
    if tuning is None:
        return None
    costs = list_own_costs(tuning.lines)
    return Pace(
        workload=result.workload,
        seconds=tuning.seconds,
        trials=sum(line.fate == "measured" for line in tuning.lines),
        early_share=measure_share(early, finalists) if early is not None and finalists else None,
        own_seconds=statistics.fmean(own for own, _ in costs) if costs else None,
        ending_seconds=statistics.fmean(ending for _, ending in costs) if costs else None,
    )


def judge_pace(paces: Sequence[Pace]) -> list[Verdict]:
    """Hold the times against their targets, which are those of one workload."""
    pace = next((pace for pace in paces if pace.workload == TIMED_WORKLOAD), None)
    early = [pace for pace in paces if pace.early_share is not None and pace.early_share >= EARLY_SHARE]
    within = f"best known after {EARLY_SECONDS:.0f} s, as a share of the optimum"
    name = TIMED_WORKLOAD
    return [
        Verdict(
            what=f"{name}: time for --trials 40",
            value=pace.seconds if pace else None,
            unit="s",
            target=TUNING_SECONDS,
            detail=f"{pace.trials} trials until the search ended" if pace else "",
        ),
        Verdict(
            what=f"{name}: {within}",
            value=pace.early_share if pace else None,
            unit="%",
            target=EARLY_SHARE,
            sense="at least",
            detail=f"{len(early)} of {len(paces)} workloads reach it",
        ),
        Verdict(
            what=f"{name}: own cost of a trial after the first, mean",
            value=pace.own_seconds if pace else None,
            unit="s",
            target=OWN_SECONDS,
            detail=f"{pace.ending_seconds:.3f} s of it end the trial" if pace and pace.ending_seconds else "",
        ),
    ]


def compare_peers(result: WorkloadResult) -> Comparison:
    """Tell what each tuner's choice gives; a choice that was too slow for a whole run is told by its screening."""
    finalists = list_finalists(result)
    shares = {}
    for tuner in PEERS:
        entrant = result.find_entrant(tuner)
        if entrant is not None and finalists:
            shares[tuner] = measure_share(entrant, finalists)
        elif (tuning := result.find_tuning(tuner)) is not None and finalists:
            shares[tuner] = _share_screened(tuning, result, finalists)
    return Comparison(
        workload=result.workload,
        shares=shares,
        seconds={tuning.tuner: tuning.seconds for tuning in result.tunings},
    )


def _share_screened(tuning: Tuning, result: WorkloadResult, finalists: Sequence[Entrant]) -> float:
    seen = next((seen.samples_per_second for seen in result.grid if seen.config == tuning.config), 0.0)
    return seen / max(statistics.median(entrant.rates) for entrant in finalists)


def publish(folder: Path) -> None:
    """Print the tables of all results in a folder, and write them down as its summary.json.

    Args:
        folder: Where results lie.
    """
    results = read_results(folder, tuple(workload.name for workload in WORKLOADS))
    if not results:
        print(f"No results in {folder}.")
        return
    pairs = [pair for result in results for pair in pair_up(result)]
    regrets = [regret for result in results if (regret := measure_regret(result)) is not None]
    paces = [pace for result in results if (pace := measure_pace(result)) is not None]
    comparisons = [compare_peers(result) for result in results]
    verdicts = {
        "fidelity": judge_fidelity(pairs) if pairs else [],
        "regret": judge_regret(regrets) if regrets else [],
        "time": judge_pace(paces),
        "footprint": read_verdicts(folder / FOOTPRINT_FILE),
    }
    _print_tables(results, pairs, regrets, paces, comparisons)
    for topic, lines in verdicts.items():
        if lines:
            print(f"\n## Targets: {topic}\n\n{format_verdicts(lines)}")
    summary: dict[str, Any] = {
        "sittings": [result.model_dump(mode="json", exclude={"tunings", "grid", "entrants"}) for result in results],
        "verdicts": {topic: [_dump(line) for line in lines] for topic, lines in verdicts.items()},
        "fidelity": [pair.model_dump(mode="json") | {"error": pair.error} for pair in pairs],
        "regret": [regret.model_dump(mode="json") for regret in regrets],
        "time": [pace.model_dump(mode="json") for pace in paces],
        "peers": [comparison.model_dump(mode="json") for comparison in comparisons],
    }
    write_text(folder / "summary.json", json.dumps(summary, indent=1) + "\n")


def _dump(verdict: Verdict) -> dict[str, Any]:
    return verdict.model_dump(mode="json") | {"verdict": verdict.describe()}


def _print_tables(
    results: Sequence[WorkloadResult],
    pairs: Sequence[Pair],
    regrets: Sequence[Regret],
    paces: Sequence[Pace],
    comparisons: Sequence[Comparison],
) -> None:
    if rehearsed := [result.workload for result in results if result.quick]:
        print(f"\nRehearsals, whose numbers say nothing: {', '.join(rehearsed)}")
    print(f"\n## Predictions and whole runs, samples/s\n\n{tabulate_pairs(pairs)}")
    print(f"\n## Choices against the best of the grid\n\n{tabulate_regrets(regrets)}")
    print(f"\n## Time\n\n{tabulate_paces(paces)}")
    print(f"\n## Share of the optimum, and minutes of tuning\n\n{tabulate_comparisons(comparisons)}")


def tabulate_pairs(pairs: Sequence[Pair]) -> str:
    """Lay the pairs out, one a row."""
    head = (
        "workload",
        "configuration",
        "why",
        "epochs",
        "whole runs",
        "spread",
        "predicted",
        "error",
        "interval holds",
    )
    return format_table(
        head,
        [
            (
                pair.workload,
                pair.config,
                ", ".join(pair.labels),
                str(pair.epochs),
                f"{pair.true:,.0f}",
                f"{pair.spread:.1%}",
                f"{pair.predicted:,.0f}",
                f"{pair.error:+.1%}",
                _say(pair.is_covered),
            )
            for pair in pairs
        ],
    )


def tabulate_regrets(regrets: Sequence[Regret]) -> str:
    """Lay the choices out, one workload a row."""
    head = (
        "workload",
        "choice",
        "of the best",
        "best of the grid",
        "of that one's median",
        "tie cost",
        "promise",
        "kept",
    )
    return format_table(
        head,
        [
            (
                regret.workload,
                regret.choice,
                format_value(regret.share, "%"),
                regret.best,
                format_value(regret.share_of_winner, "%"),
                _share(regret.tie_cost),
                "-" if regret.promise_error is None else f"{regret.promise_error:+.1%}",
                _say(regret.is_promise_kept),
            )
            for regret in regrets
        ],
    )


def tabulate_paces(paces: Sequence[Pace]) -> str:
    """Lay the times out, one workload a row."""
    head = ("workload", "seconds", "trials", f"share after {EARLY_SECONDS:.0f} s", "own s/trial", "of it ending it")
    return format_table(
        head,
        [
            (
                pace.workload,
                f"{pace.seconds:.0f}",
                str(pace.trials),
                _share(pace.early_share),
                "-" if pace.own_seconds is None else f"{pace.own_seconds:.3f}",
                "-" if pace.ending_seconds is None else f"{pace.ending_seconds:.3f}",
            )
            for pace in paces
        ],
    )


def tabulate_comparisons(comparisons: Sequence[Comparison]) -> str:
    """Lay the tuners out beside each other, one workload a row, their medians last."""
    rows = [(comparison.workload, *(_compare(comparison, tuner) for tuner in PEERS)) for comparison in comparisons]
    return format_table(("workload", *PEERS), [*rows, ("median", *(_summarize(comparisons, tuner) for tuner in PEERS))])


def _compare(comparison: Comparison, tuner: TunerName) -> str:
    if tuner not in comparison.shares:
        return "-"
    return f"{comparison.shares[tuner]:.0%} in {comparison.seconds[tuner] / 60:.1f}"


def _summarize(comparisons: Sequence[Comparison], tuner: TunerName) -> str:
    found = [comparison for comparison in comparisons if tuner in comparison.shares]
    if not found:
        return "-"
    share = statistics.median(comparison.shares[tuner] for comparison in found)
    minutes = statistics.median(comparison.seconds[tuner] for comparison in found) / 60
    return f"{share:.0%} in {minutes:.1f}"


def _share(value: float | None) -> str:
    return "-" if value is None else format_value(value, "%")


def _say(held: bool | None) -> str:
    return "-" if held is None else "yes" if held else "no"


def main() -> None:
    """Print the tables of what was measured before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    publish(parser.parse_args().results)


if __name__ == "__main__":
    main()
