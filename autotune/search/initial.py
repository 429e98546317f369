"""What is tried first, before any trial has told anything."""

from __future__ import annotations

from typing import Final

from autotune.config import LoaderConfig
from autotune.knobs import KNOBS, TABLE, Choice
from autotune.search.cost_model import predict_samples_per_second
from autotune.search.demand import ResourceModel
from autotune.search.space import SearchSpace, nearest_choice
from autotune.system.machine import MachineProfile, count_whole_cpus
from autotune.trial.budgets import Budgets
from autotune.trial.workload_profile import WorkloadProfile

INITIAL_WORKER_FACTORS: Final = (1.0, 0.5, 1.5)  # of the workers that the model thinks enough
NEAR_OPTIMAL_RATIO: Final = 0.98  # of the best prediction; more workers than it takes to reach that are not worth it


def initial_configs(
    space: SearchSpace, workload: WorkloadProfile, machine: MachineProfile, epochs: int, budgets: Budgets
) -> list[LoaderConfig]:
    """List configurations worth trying first: a common hand setting and the cost model's best guesses.

    Args:
        space: The space.
        workload: What the probe measured.
        machine: What the machine allows.
        epochs: Length of the training run in epochs.
        budgets: Budgets; configurations predicted to break one are left out.

    Returns:
        Distinct configurations: the one the model thinks enough first, then with fewer and more workers, because
        the model may be wrong by a factor of two, then the hand setting, then every other batch size.
    """
    model = ResourceModel.from_workload(workload)

    def predict(config: LoaderConfig) -> float:
        return predict_samples_per_second(config, workload, machine.usable_cpus, epochs)

    def build(**values: Choice) -> LoaderConfig:
        usual = {knob.name: knob.convention for knob in TABLE if knob.needs is not None}
        return space.build({**usual, "pin_memory": workload.pinning, **values})

    by_workers = {}
    for workers in space.choices["num_workers"]:
        sizes = [build(num_workers=workers, batch_size=size) for size in space.choices["batch_size"]]
        fitting = [config for config in sizes if not model.predict(config).find_violations(budgets)]
        if fitting:
            by_workers[workers] = max(fitting, key=predict)
    hand = build(num_workers=count_whole_cpus(machine.usable_cpus), batch_size=KNOBS["batch_size"].convention)
    hands = [] if model.predict(hand).find_violations(budgets) else [hand]
    if not by_workers:
        return hands
    best = max(by_workers.values(), key=predict)
    enough = min(
        workers for workers, config in by_workers.items() if predict(config) >= NEAR_OPTIMAL_RATIO * predict(best)
    )
    around = [nearest_choice(round(enough * factor), tuple(by_workers)) for factor in INITIAL_WORKER_FACTORS]
    sizes = [build(num_workers=enough, batch_size=size) for size in space.choices["batch_size"]]
    others = [config for config in sizes if not model.predict(config).find_violations(budgets)]
    return list(dict.fromkeys([*(by_workers[workers] for workers in around), *hands, *others]))
