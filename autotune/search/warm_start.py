"""Warm start: trials of an interrupted run, and first configurations from the profile of an earlier one."""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from autotune.config import MAX_WORKERS, LoaderConfig
from autotune.errors import ProfileError
from autotune.profiles.schema import TunedProfile
from autotune.request import TuningRequest
from autotune.search.plan import Plan
from autotune.search.trial_record import TrialRecord
from autotune.settings import config_from_values, setting_values
from autotune.trial.measurement import TrialResult

MAX_SEEDS: Final = 3  # configurations of an earlier run that are tried first
NOT_MEASURED: Final = frozenset({"trials", "timeout_seconds"})  # fields of a request that do not change measurements


def is_continued(earlier: TunedProfile, plan: Plan) -> bool:
    """Return whether a run continues an interrupted one: the same request, on the same machine."""
    asked = {name: value for name, value in plan.request.record().items() if name not in NOT_MEASURED}
    is_same = asked.items() <= earlier.request.items() and earlier.hardware == plan.hardware
    return is_same and not earlier.is_validated


def read_trials(earlier: TunedProfile | None, plan: Plan) -> list[TrialRecord]:
    """Return the completed trials of an earlier run as records, if this run continues it."""
    records: list[TrialRecord] = []
    if earlier is None or not is_continued(earlier, plan):
        return records
    for one in earlier.search.trials:
        if one.samples_per_second and one.outcome != "failed" and plan.space.nearest(one.config) == one.config:
            peaks = {"peak_host_bytes": one.peak_host_bytes, "peak_shm_bytes": one.peak_shm_bytes}
            record = TrialRecord(
                config=one.config,
                status="measured",
                samples_per_second=one.samples_per_second,
                predicted=one.predicted_samples_per_second,
                relative_error=one.relative_error,
                constraints=plan.resource_model().predict(one.config).constraints(plan.budgets) | {"works": -1.0},
                result=TrialResult(kind="completed", config=one.config, **peaks),
            )
            records.append(record)
    return records


def choose_seeds(earlier: TunedProfile | None, plan: Plan) -> tuple[list[LoaderConfig], bool]:
    """Return the configurations of an earlier run to try first, and whether it ran on the same class of machines.

    On the same class these are its result and its best trials; on another class its result, unchanged and with workers
    in proportion to the CPUs. There are none if this run continues the earlier one.
    """
    if earlier is None or is_continued(earlier, plan):
        return [], False
    here, there, seeds = plan.hardware, earlier.hardware, [earlier.config]
    is_same_class = there.machine_class == here.machine_class
    if is_same_class:
        completed = [one for one in earlier.search.trials if one.outcome == "completed" and one.samples_per_second]
        seeds += [one.config for one in sorted(completed, key=lambda one: one.samples_per_second or 0.0, reverse=True)]
    else:
        seeds.append(scale_workers(earlier.config, here.usable_cpus / there.usable_cpus))
    inside = map(plan.space.nearest, list(dict.fromkeys(seeds))[:MAX_SEEDS])
    fitting = [config for config in inside if plan.fits(config)]
    return fitting, is_same_class and bool(fitting)


def scale_workers(config: LoaderConfig, ratio: float) -> LoaderConfig:
    """Return a configuration with this multiple of its workers, at least one if it has any."""
    workers = config.dataloader.num_workers
    scaled = min(max(1, round(workers * ratio)), MAX_WORKERS) if workers else 0
    return config_from_values(setting_values(config) | {"num_workers": scaled}, config.process.multiprocessing_context)


def rebuild_request(profile: TunedProfile, output: str, trials: int | None = None) -> TuningRequest:
    """Return the request that a profile was tuned with, for another run in the current folder.

    Raises:
        ProfileError: The stored request is invalid.
    """
    changes = {"output": output} if trials is None else {"output": output, "trials": trials}
    try:
        return TuningRequest.model_validate(profile.request | changes).forget_folder()
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        what = f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
        raise ProfileError(f"Profile {profile.id}: its request is invalid ({what}). Tune again with dltune.") from None
