"""Search space: the choices of each setting that request, machine and workload allow."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from pydantic import ValidationError

from autotune.config import LoaderConfig, StartMethod
from autotune.errors import NoFeasibleConfigError, UsageError
from autotune.profiles.schema import Budgets
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import TuningRequest, ValueRange, Values, explain_invalid
from autotune.search.cost_model import is_limited_by_cpus, max_useful_workers
from autotune.settings import SETTINGS, Choice, config_from_values, setting_values
from autotune.system.machine import MachineProfile
from autotune.units import format_bytes

THREADED_CPU: Final = 0.25  # CPU time of a worker's library threads over that of its main thread; above it is limited
DENSE_RANGE_WIDTH: Final = 16  # up to this width every number of a range is searched


@dataclass(frozen=True)
class SearchSpace:
    """The search space. Every configuration that it builds is legal."""

    choices: Mapping[str, tuple[Any, ...]]  # values of each setting, ascending; a setting with one is not searched
    start_method: StartMethod | None = None  # of the workers; it is never searched
    notes: tuple[str, ...] = ()  # why a setting is not searched, or not in full

    def searched(self) -> dict[str, tuple[Any, ...]]:
        """Return the settings with more than one choice."""
        return {name: choices for name, choices in self.choices.items() if len(choices) > 1}

    def from_params(self, params: Mapping[Any, Any]) -> LoaderConfig:
        """Build a legal configuration; each value becomes the nearest choice."""
        picked = {name: nearest_choice(params.get(name), choices) for name, choices in self.choices.items()}
        return config_from_values(picked, self.start_method)

    def to_params(self, config: LoaderConfig) -> dict[str, Any]:
        """Return the values of the searched settings, from which `from_params` builds the configuration."""
        values = setting_values(config)
        return {name: nearest_choice(values[name], choices) for name, choices in self.searched().items()}

    def nearest(self, config: LoaderConfig) -> LoaderConfig:
        """Return the configuration of the space that is nearest to another one."""
        return self.from_params(self.to_params(config))

    @cached_property
    def configs(self) -> tuple[LoaderConfig, ...]:
        """Every distinct configuration."""
        combinations = itertools.product(*self.choices.values())
        values = (dict(zip(self.choices, combination, strict=True)) for combination in combinations)
        return tuple(dict.fromkeys(config_from_values(one, self.start_method) for one in values))


def nearest_choice(value: Any, choices: Sequence[Choice]) -> Any:
    """Return the nearest choice; the first one if the value is not comparable."""
    if value in choices:
        return value
    numbers = [choice for choice in choices if isinstance(choice, int | float)]
    if value is None or isinstance(value, str) or not numbers:
        return choices[0]
    return min(numbers, key=lambda choice: abs(choice - value))


def list_requested_sizes(request: TuningRequest) -> tuple[int, ...]:
    """Return the batch sizes that a request allows; empty if it leaves them open."""
    requested = _requested_values(request).get("batch_size", ())
    if isinstance(requested, ValueRange):
        return tuple(one for one in SETTINGS["batch_size"].choices if requested.low <= one <= requested.high)
    return tuple(size for size in requested if isinstance(size, int))


def _requested_values(request: TuningRequest) -> dict[str, Values]:
    """Return the restrictions of the request by setting; a fixed setting is a list of one value."""
    fixed: dict[str, Values] = {name: (value,) for name, value in request.fixed.items()}
    found = fixed | {str(name): values for name, values in request.search.items()}
    workers, most = found.get("num_workers", ()), request.max_workers
    if most is not None and workers and not isinstance(workers, ValueRange):
        found["num_workers"] = tuple(one for one in workers if isinstance(one, int) and one <= most)
        if not found["num_workers"]:
            raise UsageError(f"--max-workers {most} allows none of num_workers={','.join(map(str, workers))}.")
    return found


def plan_space(
    request: TuningRequest, machine: MachineProfile, workload: WorkloadProfile, budgets: Budgets
) -> SearchSpace:
    """Return the search space; raise UsageError if none is left, NoFeasibleConfigError if no batch fits into memory."""
    requested = _requested_values(request)
    for name, value in workload.fixed_settings.items():
        asked = requested.get(name, (value,))
        allows = asked.low <= (value or 0) <= asked.high if isinstance(asked, ValueRange) else value in asked
        most = request.max_workers if name == "num_workers" else None
        if not allows or (most is not None and (value or 0) > most):
            owner = workload.loader_class or f"the dataset ({workload.description})"
            raise UsageError(f"{name} is {value}, as {owner} sets it, and cannot be changed from outside.")
    sizes, size_note = _plan_batch_sizes(requested.get("batch_size"), workload, budgets)
    workers, worker_note = _plan_workers(request, machine, workload, budgets, sizes)
    choices: dict[str, tuple[Any, ...]] = {name: setting.choices for name, setting in SETTINGS.items()}
    choices |= {"batch_size": sizes, "num_workers": workers}
    if "num_workers" in requested:
        choices["num_workers"] = _restrict("num_workers", workers, requested.pop("num_workers"))
    own, notes = workload.baseline, [size_note, worker_note]
    if own is not None and own.dataloader.prefetch_factor is not None:
        choices["prefetch_factor"] = tuple(sorted({*choices["prefetch_factor"], own.dataloader.prefetch_factor}))
    if workload.worker_threads_cpu < THREADED_CPU:
        choices["worker_threads"] = (None,)
    if workload.h2d is None or not workload.pinning or not workload.step_takes_moved:
        choices["device_prefetch"] = (False,)
    if workload.h2d is not None and not workload.step_takes_moved:
        notes.append("device_prefetch is off: the step fails on a batch that is on the device in full")
    if workload.on_accelerator or not workload.pinning:
        notes.append("pin_memory is off: it has no effect on this device or these samples")
        choices["pin_memory"] = (False,)
    largest = config_from_values({name: values[-1] for name, values in choices.items()})
    if not request.is_asked("in_order") and is_limited_by_cpus(largest, workload, machine.usable_cpus):
        choices["in_order"] = (own is None or own.dataloader.in_order,)
        notes.append(f"in_order stays {choices['in_order'][0]}: the CPUs limit loading, so no worker waits for another")
    if workload.epoch_state is not None and not request.is_asked("persistent_workers"):
        keeps = own is not None and own.dataloader.persistent_workers
        choices["persistent_workers"] = (keeps,)
        notes.append(
            f"persistent_workers stays {keeps}: the dataset may change between epochs ({workload.epoch_state})"
        )
    elif request.epochs == 1 and not request.is_asked("persistent_workers") and choices["num_workers"] != (0,):
        notes.append("persistent_workers is on: it has no effect with --epochs 1")
        choices["persistent_workers"] = (True,)
    choices |= {name: _restrict(name, choices[name], requested[name]) for name in requested if name != "batch_size"}
    choices |= {name: (value,) for name, value in workload.fixed_settings.items()}
    if choices["num_workers"] == (0,):
        unused = {name: setting.default for name, setting in SETTINGS.items() if setting.needs == "num_workers"}
        choices |= {name: (default,) for name, default in unused.items()}
        notes += [f"{name} has no effect without workers" for name in unused if name in requested]
    return SearchSpace(choices, workload.multiprocessing_context, tuple(filter(None, notes)))


def _restrict(name: str, choices: tuple[Any, ...], values: Values) -> tuple[Any, ...]:
    """Return the values of a setting that the request asks for; raise UsageError if one is not possible."""
    setting, wanted = SETTINGS[name], set[Any]()
    if not isinstance(values, ValueRange):
        wanted = set(values)
    elif not setting.is_range:
        raise UsageError(f"--search {name} needs a list of values, not a range.")
    else:
        low, high = values.low, min(values.high, max(choices)) if name == "num_workers" else values.high
        wanted = {choice for choice in choices if low <= choice <= high}
        if name != "batch_size":
            wanted |= set(range(low, high + 1)) if high - low <= DENSE_RANGE_WIDTH else {low, high}
    try:
        wanted = set(map(setting.check, wanted))
    except ValidationError as error:
        raise UsageError(f"--search {name} is not possible: {explain_invalid(error)[1]}.") from None
    if setting.choices == (False, True) and choices == (False,):
        if wanted == {True}:
            raise UsageError(f"{name}=true has no effect on this device, or with this step or samples; leave it out.")
        wanted.discard(True)
    if not wanted:
        raise UsageError(f"--search {name} leaves none of the possible values {', '.join(map(str, choices))}.")
    return tuple(sorted(wanted, key=lambda value: (value is not None, value)))


def _plan_batch_sizes(
    requested: Values | None, workload: WorkloadProfile, budgets: Budgets
) -> tuple[tuple[int | None, ...], str]:
    fixed, usual = workload.fixed_settings, SETTINGS["batch_size"].choices
    if "batch_size" in fixed or workload.batching == "user":
        if "batch_size" not in fixed and requested is not None:
            raise UsageError("batch_size cannot be set: the workload makes its own batches.")
        return (fixed.get("batch_size"),), "batch_size is not tuned: the workload makes its own batches"
    own = workload.baseline.dataloader.batch_size if workload.baseline is not None else None
    sizes: tuple[int, ...] = usual if own is None else (own,)
    if requested is not None:
        sizes = _restrict("batch_size", tuple(sorted({*usual, *sizes})), requested)
    need_bytes = {size: 2 * size * workload.sample_bytes + workload.rss_bytes for size in sizes}
    fitting = [size for size in sizes if need_bytes[size] <= budgets.memory_bytes]
    if not fitting:
        raise NoFeasibleConfigError(
            f"A batch of {sizes[0]} samples needs about {format_bytes(need_bytes[sizes[0]])} of host memory and the "
            f"limit is {format_bytes(budgets.memory_bytes)}. Raise --max-memory, or give a smaller --batch-size."
        )
    inside = [size for size in fitting if not workload.samples or size <= workload.samples]
    if workload.drop_last and not inside:
        raise UsageError(
            f"drop_last leaves no batch: the dataset has {workload.samples} samples, the smallest batch {sizes[0]}. "
            "Give a smaller --batch-size."
        )
    if workload.drop_last or not isinstance(requested, tuple):
        fitting = inside or fitting[:1]
    hint = f"batch_size stays at {own}, that of your DataLoader: list sizes with --batch-size to search them"
    return tuple(fitting), hint if requested is None and own is not None else ""


def _plan_workers(
    request: TuningRequest,
    machine: MachineProfile,
    workload: WorkloadProfile,
    budgets: Budgets,
    sizes: Sequence[int | None],
) -> tuple[tuple[int, ...], str]:
    if workload.workers_duplicate_data:
        return (0, 1)[: 1 + budgets.max_workers], "num_workers is at most 1: each worker returns all the data"
    is_wrong = workload.differing_samples > 0 or workload.shared_by_workers is not None
    if is_wrong and request.max_workers is None and not request.is_asked("num_workers"):
        return (0,), "num_workers stays at 0: workers return different data (--max-workers searches them all the same)"
    if not machine.shm_writable:
        return (0,), "num_workers stays at 0: workers need /dev/shm, which is not writable"
    most, note = budgets.max_workers, ""
    asked = request.search.get("num_workers")
    if request.max_workers is None and isinstance(asked, ValueRange):
        most = asked.high
    elif request.max_workers is None:
        known = [size or workload.probe_batch_size for size in sizes]
        most = min(most, max(max_useful_workers(workload, size, machine.usable_cpus) for size in known))
    if workload.shards is not None and workload.shards < most:
        most = workload.shards
        note = f"num_workers is at most {most}: the dataset has {most} shards, and each worker needs one"
    own = workload.baseline.dataloader.num_workers if workload.baseline is not None else 0
    counts = {count for count in (*SETTINGS["num_workers"].choices, most) if count <= most}
    counts |= {own} if request.max_workers is None or own <= request.max_workers else set()
    return tuple(sorted(counts)), note
