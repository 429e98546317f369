"""What is answered where the confirmation confirms nothing, or less than it should."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.confirm.confirmation import ROUNDS, Confirmation
from autotune.confirm.decision import Decision, decide
from autotune.confirm.runs import ConfirmationRuns
from autotune.errors import NoFeasibleConfigError
from autotune.knobs import describe_config
from autotune.search.plan import Plan
from autotune.search.trial_record import TrialRecord, find_best


def disregard_failed_confirmation(plan: Plan, final: Confirmation) -> tuple[Confirmation, tuple[str, ...]]:
    """Forget a confirmation in which nothing ran, for it confirms nothing; give the warning that says so."""
    if not final.failed or not final.rounds or decide(final, plan.convention, plan.budgets) is not None:
        return final, ()
    failure = final.failed[0].failures[0]
    happened = f"{describe_config(failure.config)}: it {failure.message.rstrip('.')}"
    warning = (
        "This is the best of the search, unconfirmed: in fresh processes, as a training run starts, no configuration "
        f"ran to the end ({happened}). See to that first: a port, a lock or a download may be needed at each start."
    )
    return Confirmation(ConfirmationRuns(plan.baseline), entrants=final.entrants, noise=final.noise), (warning,)


def decide_unconfirmed(
    plan: Plan, records: Sequence[TrialRecord], final: Confirmation, cut_by: BaseException | None
) -> Decision:
    """Take the best of the search as it is; nothing was measured twice, so there is no interval.

    Raises:
        NoFeasibleConfigError: No configuration works within the limits; where the run was cut short, what cut it.
    """
    best = find_best(records)
    if best is None or best.result is None or (found := plan.estimate(best.result)) is None:
        raise cut_by or NoFeasibleConfigError(_explain_failures(records, final))
    base = next((record for record in records if record.config == plan.baseline and record.is_feasible), None)
    return Decision(
        config=best.config,
        verdict="keep" if best.config == plan.baseline else "faster",
        samples_per_second=best.score,
        ci95=None,
        wait_fraction=found.wait_fraction,
        speedup=best.score / base.score if base is not None else None,
        speedup_ci95=None,
    )


def describe_haste(rounds: int) -> str:
    """Say what of the confirmation --timeout left no time for."""
    if rounds:
        return f"--timeout left time for {rounds} of {ROUNDS} rounds in fresh processes"
    return "--timeout left no time to measure the answer again in fresh processes: its throughput was seen once"


def _explain_failures(records: Sequence[TrialRecord], final: Confirmation) -> str:
    failures = [failure for entrant in final.failed for failure in entrant.failures]
    failures += [record.result for record in records if record.result is not None and not record.is_feasible]
    examples = dict.fromkeys(f"{failure.kind}: it {failure.message}" for failure in failures)
    skipped = sum(record.fate == "skipped" for record in records)
    lines = [f"No configuration works within the limits: {len(records) - skipped} tried, {skipped} skipped."]
    return "\n".join([*lines, *(f"  {example}" for example in list(examples)[:5])])
