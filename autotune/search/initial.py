"""What is tried first, before any trial has told anything."""

from __future__ import annotations

from typing import Final

from autotune.config import LoaderConfig
from autotune.search.cost_model import predict_samples_per_second
from autotune.search.demand import ResourceModel
from autotune.search.space import SearchSpace, nearest_choice
from autotune.settings import SETTINGS
from autotune.system.machine import MachineProfile, count_whole_cpus
from autotune.trial.budgets import Budgets
from autotune.trial.workload_profile import WorkloadProfile

INITIAL_WORKER_FACTORS: Final = (1.0, 0.5, 1.5)  # of the workers that the model thinks enough
NEAR_OPTIMAL_RATIO: Final = 0.98  # of the best prediction; more workers than it takes to reach that are not worth it


def initial_configs(
    space: SearchSpace, workload: WorkloadProfile, machine: MachineProfile, epochs: int, budgets: Budgets
) -> list[LoaderConfig]:
    """List what is worth trying first, as far as it is predicted to keep the budgets.

    The configuration that the model thinks enough comes first, then fewer and more workers, because the model may be
    wrong by a factor of two, then the conventional setting, then every other batch size.
    """
    model = ResourceModel.from_workload(workload)
    usual = {knob.name: knob.recommended for knob in SETTINGS.values() if knob.needs is not None} | {
        "pin_memory": workload.pinning
    }

    def predict(config: LoaderConfig) -> float:
        return predict_samples_per_second(config, workload, machine.usable_cpus, epochs)

    def list_fitting(workers: int, *sizes: int | None) -> list[LoaderConfig]:
        configs = [space.from_params({**usual, "num_workers": workers, "batch_size": size}) for size in sizes]
        return [config for config in configs if not model.predict(config).find_violations(budgets)]

    sizes = space.choices["batch_size"]
    by_workers = {
        workers: max(fitting, key=predict)
        for workers in space.choices["num_workers"]
        if (fitting := list_fitting(workers, *sizes))
    }
    conventional = list_fitting(count_whole_cpus(machine.usable_cpus), SETTINGS["batch_size"].recommended)
    if not by_workers:
        return conventional
    wanted = NEAR_OPTIMAL_RATIO * max(predict(config) for config in by_workers.values())
    enough = min(workers for workers, config in by_workers.items() if predict(config) >= wanted)
    around = [nearest_choice(round(enough * factor), tuple(by_workers)) for factor in INITIAL_WORKER_FACTORS]
    fastest = [by_workers[workers] for workers in around]
    return list(dict.fromkeys([*fastest, *conventional, *list_fitting(enough, *sizes)]))
