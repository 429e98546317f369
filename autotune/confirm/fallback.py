"""What is answered where the final confirms nothing."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.confirm.confirmation import Confirmation, ConfirmationRuns
from autotune.confirm.decision import Decision, decide
from autotune.errors import NoFeasibleConfigError
from autotune.knobs import describe_config
from autotune.search.plan import Plan
from autotune.search.trial_record import TrialRecord, find_best


def disregard_failed_final(plan: Plan, final: Confirmation) -> tuple[Confirmation, tuple[str, ...]]:
    """Forget a final in which nothing ran, for it confirms nothing; give the warning that says so."""
    failure = next((failure for entrant in final.entrants for failure in entrant.failures), None)
    if failure is None or not final.rounds or decide(final, plan.convention, plan.budgets) is not None:
        return final, ()
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

    Args:
        plan: What there was to work with.
        records: Every trial.
        final: What failed again, for the message.
        cut_by: What cut the run short, which is raised where nothing was measured.

    Returns:
        The decision.

    Raises:
        NoFeasibleConfigError: No configuration works within the limits.
    """
    best = find_best(records)
    if best is None or best.result is None or (found := plan.estimate(best.result)) is None:
        raise cut_by or NoFeasibleConfigError(_explain_failures(records, final))
    base = next((record for record in records if record.config == plan.baseline and record.is_feasible), None)
    return Decision(
        config=best.config,
        verdict="keep" if best.config == plan.baseline else "faster",
        samples_per_second=best.score,
        interval=None,
        wait_fraction=found.wait_fraction,
        speedup=best.score / base.score if base is not None else None,
        speedup_interval=None,
    )


def _explain_failures(records: Sequence[TrialRecord], final: Confirmation) -> str:
    failures = [failure for entrant in final.entrants for failure in entrant.failures]
    failures += [record.result for record in records if record.result is not None and not record.is_feasible]
    examples = dict.fromkeys(f"{failure.kind}: it {failure.message}" for failure in failures)
    skipped = sum(record.fate == "skipped" for record in records)
    lines = [f"No configuration works within the limits: {len(records) - skipped} tried, {skipped} skipped."]
    return "\n".join([*lines, *(f"  {example}" for example in list(examples)[:5])])
