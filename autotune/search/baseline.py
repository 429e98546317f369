"""What the tuned configuration is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.config import DataLoaderSettings, LoaderConfig
from autotune.request import TuningRequest
from autotune.search.demand import ResourceModel
from autotune.search.space import SearchSpace, nearest_choice
from autotune.settings import SETTINGS, config_from_values, differing_settings, find_setting, setting_values
from autotune.trial.budgets import Budgets
from autotune.trial.workload_profile import WorkloadProfile


def choose_baseline(
    request: TuningRequest, workload: WorkloadProfile, space: SearchSpace, budgets: Budgets
) -> LoaderConfig:
    """Choose what the tuned configuration is compared with.

    That is the user's ready DataLoader, changed only as far as pins, ranges, --max-workers and budgets demand, because
    a baseline that is kept must honour them; else what is nearest to PyTorch's defaults, at a batch size of 32.
    """
    if workload.baseline is None:
        usual = nearest_choice(SETTINGS["batch_size"].recommended, space.choices["batch_size"])
        return space.from_params(setting_values(LoaderConfig(dataloader=DataLoaderSettings(batch_size=usual))))
    own = {**setting_values(workload.baseline), **space.usual}
    for knob in request.ranges:
        own[knob] = nearest_choice(own[knob], space.choices[knob])
    if len(space.choices["batch_size"]) == 1:
        own["batch_size"] = space.choices["batch_size"][0]
    if request.max_workers is not None:
        own["num_workers"] = min(own["num_workers"], request.max_workers)
    own |= {str(name): value for name, value in request.fixed.items()}
    return _fit_workers(own, workload, space, budgets)


def _fit_workers(
    values: Mapping[str, Any], workload: WorkloadProfile, space: SearchSpace, budgets: Budgets
) -> LoaderConfig:
    """Take as many workers away as the budgets demand; none where that would not help."""
    model = ResourceModel.from_workload(workload)
    fewer = [count for count in reversed(space.choices["num_workers"]) if count < values["num_workers"]]
    tried = [
        config_from_values({**values, "num_workers": count}, workload.multiprocessing_context)
        for count in (values["num_workers"], *fewer)
    ]
    return next((config for config in tried if not model.predict(config).find_violations(budgets)), tried[0])


def describe_changed_baseline(own: LoaderConfig, baseline: LoaderConfig) -> str | None:
    """Say where the baseline is not the user's own DataLoader; None where it is."""
    changes = [
        f"{name}={find_setting(name).read(baseline)} instead of {find_setting(name).read(own)}"
        for name in differing_settings(baseline, own)
    ]
    if not changes:
        return None
    return f"the baseline is your DataLoader with {', '.join(changes)}: pins and budgets hold for it, too"
