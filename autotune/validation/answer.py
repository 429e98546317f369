"""What a run answers: what the confirmation decides, or where it confirms nothing, the best of the search as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from autotune.errors import NoFeasibleConfigError, UsageError
from autotune.search.loop import SearchOutcome
from autotune.search.plan import Plan
from autotune.search.trial_record import TrialRecord, find_best
from autotune.settings import describe_config
from autotune.validation.decision import Decision, decide
from autotune.validation.rounds import ROUNDS, Validation
from autotune.validation.runs import CandidateRuns

PREDICTED: Final = "This is predicted from the probe alone, and nothing of it was measured: tune with --trials 40"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a run answers."""

    decision: Decision
    final: Validation  # nothing of it counts where nothing ran
    doubts: tuple[str, ...] = ()  # that it confirms nothing, where it should have


def settle_answer(plan: Plan, found: SearchOutcome, final: Validation) -> Answer:
    """Decide by the confirmation; where nothing ran in it, or it never began, take the best of the search.

    Raises:
        UsageError: --timeout left no time to try anything.
        NoFeasibleConfigError: No configuration works within the limits; where the run was cut short, what cut it.
    """
    decision = decide(final, plan.defaults, plan.budgets)
    if decision is not None:
        return Answer(decision, final)
    doubts: tuple[str, ...] = ()
    if final.failed and final.rounds:
        doubts = (_warn_of_failed_confirmation(final),)
        baseline = CandidateRuns(plan.baseline)
        final = Validation(baseline, entrants=final.entrants, noise=final.noise, interrupted_by=final.interrupted_by)
    best = _take_best(plan, found.records)
    if best is None:
        if not (found.records or found.interrupted_by or final.interrupted_by):
            raise UsageError("Nothing could be tried: the probe took all the time of --timeout. Allow more.")
        raise (
            found.interrupted_by
            or final.interrupted_by
            or NoFeasibleConfigError(_explain_failures(found.records, final))
        )
    return Answer(best, final, doubts)


def predict_answer(plan: Plan) -> Answer:
    """Take what the probe lets expect, where no trials were asked for: nothing of it was measured."""
    guess = plan.guess()
    predicted = Decision(
        config=guess.config,
        verdict="no_change" if guess.config == plan.baseline else "faster",
        samples_per_second=guess.samples_per_second,
        ci95=guess.ci95,
        wait_share=max(0.0, 1 - guess.samples_per_second / plan.upper_bound(guess.config.dataloader.batch_size)),
        speedup=None,
        speedup_ci95=None,
    )
    return Answer(predicted, Validation(CandidateRuns(plan.baseline)), (PREDICTED,))


def describe_haste(rounds: int) -> str:
    """Say what of the confirmation --timeout left no time for."""
    if rounds:
        return f"--timeout left time for {rounds} of {ROUNDS} rounds in fresh processes"
    return "--timeout left no time to measure the answer again in fresh processes: its throughput was seen once"


def _warn_of_failed_confirmation(final: Validation) -> str:
    failure = final.failed[0].failures[0]
    happened = f"{describe_config(failure.config)}: it {failure.message.rstrip('.')}"
    return (
        "This is the best of the search, unconfirmed: in fresh processes, as a training run starts, no configuration "
        f"ran to the end ({happened}). See to that first: a port, a lock or a download may be needed at each start."
    )


def _take_best(plan: Plan, records: Sequence[TrialRecord]) -> Decision | None:
    """Take the best of the search as it is; nothing was measured twice, so there is no interval."""
    best = find_best(records)
    if best is None or best.result is None or (found := plan.estimate(best.result)) is None:
        return None
    base = next((record for record in records if record.config == plan.baseline and record.is_feasible), None)
    return Decision(
        config=best.config,
        verdict="no_change" if best.config == plan.baseline else "faster",
        samples_per_second=best.score,
        ci95=None,
        wait_share=found.wait_share,
        speedup=best.score / base.score if base is not None else None,
        speedup_ci95=None,
    )


def _explain_failures(records: Sequence[TrialRecord], final: Validation) -> str:
    failures = [failure for entrant in final.failed for failure in entrant.failures]
    failures += [record.result for record in records if record.result is not None and not record.is_feasible]
    examples = dict.fromkeys(f"{failure.kind}: it {failure.message}" for failure in failures)
    skipped = sum(record.status == "skipped" for record in records)
    lines = [f"No configuration works within the limits: {len(records) - skipped} tried, {skipped} skipped."]
    return "\n".join([*lines, *(f"  {example}" for example in list(examples)[:5])])
