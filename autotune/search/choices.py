"""What is searched: the choices of each knob, as far as request, machine and workload leave them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from pydantic import ValidationError

from autotune.errors import NoFeasibleConfigError, UsageError
from autotune.request import DENSE_RANGE_WIDTH, TuningRequest
from autotune.search.cost_model import max_useful_workers
from autotune.search.demand import ResourceModel
from autotune.search.space import SearchSpace
from autotune.settings import Choice, RANGES, SETTINGS, config_from_values
from autotune.system.machine import MachineProfile
from autotune.trial.budgets import Budgets
from autotune.trial.workload_profile import WorkloadProfile
from autotune.units import format_bytes

THREADED_CPU: Final = 0.25  # CPU time of a worker's other threads over that of the one that loads; more is libraries'
WITHOUT_EFFECT: Final[dict[str, str]] = {
    "pin_memory": "pinning has no effect on this device or these samples; leave it out",
    "device_prefetch": "there is nothing to copy ahead on this device; leave it out",
}  # what is said of a switch that is fixed to on where it can only be off


def plan_space(
    request: TuningRequest, machine: MachineProfile, workload: WorkloadProfile, budgets: Budgets
) -> SearchSpace:
    """Decide what is searched for this request, machine and workload.

    Raises:
        UsageError: A pinned or narrowed knob leaves nothing that is legal here.
        NoFeasibleConfigError: Not even the smallest batch fits the memory budget.
    """
    notes: list[str] = []
    batch_sizes = _plan_batch_sizes(request, workload, budgets, notes)
    choices: dict[str, tuple[Choice, ...]] = {knob.name: knob.choices for knob in SETTINGS.values()} | {
        "batch_size": batch_sizes,
        "num_workers": _plan_workers(request, machine, workload, budgets, batch_sizes, notes),
        "prefetch_factor": _plan_prefetching(workload),
        "pin_memory": _plan_pinning(workload, notes),
        "persistent_workers": _plan_persistence(request, notes),
        "worker_threads": (None, 1) if workload.worker_threads_cpu >= THREADED_CPU else (None,),
        "device_prefetch": (False, True) if workload.h2d is not None and workload.pinning else (False,),
    }
    choices |= {name: (value,) for name, value in workload.fixed_settings.items()}
    _refuse_what_is_decided(request, workload)
    for name, (low, high) in request.ranges.items():
        if name not in workload.fixed_settings:
            choices[name] = _narrow(name, choices[name], low, high)
    for name, value in request.fixed.items():
        choices[name] = (_check_fixed(name, value, choices[name]),)
    if choices["num_workers"] == (0,):
        choices |= {knob.name: (knob.default,) for knob in SETTINGS.values() if knob.needs == "num_workers"}
    own = request.workload.knobs
    usual = {name: workload.knobs.get(name, found[0]) for name, found in own.items()}
    return SearchSpace({**_check_choices(choices), **own}, workload.multiprocessing_context, usual, tuple(notes))


def _refuse_what_is_decided(request: TuningRequest, workload: WorkloadProfile) -> None:
    """Refuse another value of a knob that the user's loader or dataset decides by itself."""
    asked: dict[str, Collection[Any]] = {name: (value,) for name, value in request.fixed.items()}
    asked |= {name: range(low, high + 1) for name, (low, high) in request.ranges.items()}
    if request.batch_sizes is not None:
        asked["batch_size"] = request.batch_sizes
    if request.max_workers is not None:
        asked["num_workers"] = range(request.max_workers + 1)
    for name, value in workload.fixed_settings.items():
        if name in asked and value not in asked[name]:
            owner = workload.loader_class or f"the dataset ({workload.description})"
            raise UsageError(f"{name} is {value}, as {owner} decides: it cannot be set from outside. Change it there.")


def _check_choices(choices: dict[str, tuple[Choice, ...]]) -> dict[str, tuple[Choice, ...]]:
    try:
        return {name: tuple(SETTINGS[name].check(choice) for choice in found) for name, found in choices.items()}
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = next(name for name, found in choices.items() if problem["input"] in found)
        raise UsageError(f"{name}={problem['input']} is not possible: {problem['msg']}.") from None


def _plan_batch_sizes(
    request: TuningRequest, workload: WorkloadProfile, budgets: Budgets, notes: list[str]
) -> tuple[int | None, ...]:
    if "batch_size" in workload.fixed_settings:
        notes.append("batch_size is not tuned: the dataset or its loader has one of its own, and would not be told")
        return (workload.fixed_settings["batch_size"],)
    if workload.batching == "user":
        notes.append("batch_size is not tuned: the batches are made by the workload's own batch_sampler or dataset")
        return (None,)
    wanted = _list_wanted_sizes(request, workload, notes)
    fitting = [
        size
        for size in sorted(set(wanted))
        if 2 * size * workload.sample_bytes + workload.rss_bytes <= budgets.memory_bytes
    ]
    if not fitting:
        need = format_bytes(2 * min(wanted) * workload.sample_bytes + workload.rss_bytes)
        raise NoFeasibleConfigError(
            f"A batch of {min(wanted)} samples needs about {need} of host memory and the budget is "
            f"{format_bytes(budgets.memory_bytes)}. Give more with --max-memory, or a smaller --batch-size."
        )
    if workload.drop_last and workload.samples is not None:
        fitting = [size for size in fitting if size <= workload.samples]
        if not fitting:
            raise UsageError(
                f"drop_last leaves no batch: the dataset has {workload.samples} samples, the smallest batch "
                f"{min(wanted)}. Give a smaller --batch-size."
            )
    if request.batch_sizes is None and workload.samples:
        fitting = [size for size in fitting if size <= workload.samples] or fitting[:1]
    return tuple(fitting)


def _list_wanted_sizes(request: TuningRequest, workload: WorkloadProfile, notes: list[str]) -> tuple[int, ...]:
    """List the batch sizes that the user asked for: a ready DataLoader's own is one, since another changes training."""
    fixed = request.fixed.get("batch_size")
    if isinstance(fixed, int):
        return (fixed,)
    if request.batch_sizes is not None:
        return request.batch_sizes
    own = workload.baseline.dataloader.batch_size if workload.baseline is not None else None
    if own is None or "batch_size" in request.ranges:
        return SETTINGS["batch_size"].choices if own is None else (*SETTINGS["batch_size"].choices, own)
    notes.append(
        f"batch_size stays at {own}, that of your DataLoader: another one changes training, not only its speed. "
        "List sizes with --batch-size to have them searched"
    )
    return (own,)


def _plan_prefetching(workload: WorkloadProfile) -> tuple[int, ...]:
    """List the batches ahead of the grid, and those of a ready DataLoader: its settings must be among the choices."""
    own = workload.baseline.dataloader.prefetch_factor if workload.baseline is not None else None
    return (
        SETTINGS["prefetch_factor"].choices
        if own is None
        else tuple(sorted({*SETTINGS["prefetch_factor"].choices, own}))
    )


def _plan_workers(
    request: TuningRequest,
    machine: MachineProfile,
    workload: WorkloadProfile,
    budgets: Budgets,
    batch_sizes: Sequence[int | None],
    notes: list[str],
) -> tuple[int, ...]:
    if (ruled_out := _rule_workers_out(request, machine, workload, budgets)) is not None:
        notes.append(ruled_out[1])
        return ruled_out[0]
    size = batch_sizes[0] or workload.probe_batch_size
    most = min(budgets.max_workers, max_useful_workers(workload, size, machine.usable_cpus))
    if request.max_workers is not None or "num_workers" in request.ranges:
        most = budgets.max_workers
    if workload.shards is not None and workload.shards < most:
        most = workload.shards
        notes.append(
            f"num_workers stays at {most} or below: the dataset has {most} shards to share out, and a worker without "
            "one delivers nothing. Write more files, or shards, to use more workers"
        )
    counts = [count for count in (*SETTINGS["num_workers"].choices, most) if count <= most]
    feasible = counts + _list_own_workers(request, workload)
    model = ResourceModel.from_workload(workload)
    fitting = [count for count in feasible if _fits_smallest(count, batch_sizes, model, budgets)]
    if max(fitting) < max(feasible):
        notes.append(
            f"more than {max(fitting)} workers would break a limit even with the smallest batch "
            f"(/dev/shm budget {format_bytes(budgets.shm_bytes)}, memory budget {format_bytes(budgets.memory_bytes)}, "
            f"{budgets.nofile} files)"
        )
    return tuple(sorted(set(fitting)))


def _rule_workers_out(
    request: TuningRequest, machine: MachineProfile, workload: WorkloadProfile, budgets: Budgets
) -> tuple[tuple[int, ...], str] | None:
    """Give the numbers of workers that are left where more are out of the question, and why; else None."""
    if workload.workers_duplicate_data:
        return (0, 1)[: 1 + budgets.max_workers], (
            "num_workers stays at 0 or 1: the iterable dataset does not shard itself by get_worker_info(), "
            "so every further worker delivers all the data once more"
        )
    is_asked = request.max_workers is not None or "num_workers" in {*request.ranges, *request.fixed}
    if workload.differing_samples and not is_asked:
        return (0,), (
            "num_workers stays at 0: what workers deliver is not what the training process would. --max-workers, or "
            "--fix or --range of num_workers, has them searched all the same"
        )
    if not machine.shm_writable:
        return (0,), (
            "num_workers stays at 0: /dev/shm cannot be written, and workers hand their batches over through it"
        )
    return None


def _list_own_workers(request: TuningRequest, workload: WorkloadProfile) -> list[int]:
    """List the workers of a ready DataLoader, as far as the user allows them, whatever the probe thinks useful."""
    own = workload.baseline.dataloader.num_workers if workload.baseline is not None else 0
    return [own] if request.max_workers is None or own <= request.max_workers else []


def _fits_smallest(workers: int, batch_sizes: Sequence[int | None], model: ResourceModel, budgets: Budgets) -> bool:
    if workers == 0:
        return True
    usual: dict[str, Choice] = {knob.name: knob.default for knob in SETTINGS.values()}
    least: dict[str, Choice] = {"prefetch_factor": 1, "sharing_strategy": "file_system"}
    smallest = config_from_values({**usual, **least, "batch_size": batch_sizes[0], "num_workers": workers})
    return not model.predict(smallest).find_violations(budgets)


def _plan_pinning(workload: WorkloadProfile, notes: list[str]) -> tuple[bool, ...]:
    if workload.on_accelerator:
        notes.append("pin_memory stays off: the samples are on the accelerator already, only host memory can be pinned")
    elif not workload.pinning:
        notes.append("pin_memory stays off: it has no effect on this device")
    return (False, True) if workload.pinning and not workload.on_accelerator else (False,)


def _plan_persistence(request: TuningRequest, notes: list[str]) -> tuple[bool, ...]:
    if request.epochs == 1:
        notes.append("persistent_workers stays on: with --epochs 1 it has no effect")
        return (True,)
    return (False, True)


def _narrow(name: str, choices: tuple[Choice, ...], low: int, high: int) -> tuple[Choice, ...]:
    if not SETTINGS[name].is_range:
        ranged = ", ".join(knob.name for knob in RANGES)
        raise UsageError(f"--range {name}: only {ranged} have a range; use --fix {name}=VALUE.")
    numbers = [choice for choice in choices if isinstance(choice, int)]
    inside = {choice for choice in numbers if low <= choice <= high}
    if name != "batch_size":
        top = min(high, max(numbers)) if name == "num_workers" else high
        inside |= set(range(low, top + 1)) if top - low <= DENSE_RANGE_WIDTH else {low, top}
    if not inside:
        possible = ", ".join(str(choice) for choice in choices)
        raise UsageError(f"--range {name}={low}:{high} leaves none of the possible values {possible}.")
    return tuple(sorted(inside))


def _check_fixed(name: str, value: Any, choices: tuple[Choice, ...]) -> Choice:
    if value is True and choices == (False,) and name in WITHOUT_EFFECT:
        raise UsageError(f"--fix {name}=true: {WITHOUT_EFFECT[name]}.")
    if name == "batch_size" and choices == (None,):
        raise UsageError("--fix batch_size: the workload brings its own batches, so batch_size cannot be set.")
    return value  # type: ignore[no-any-return]  # checked beside all other choices


def choose_probe_sizes(request: TuningRequest) -> tuple[int, int]:
    """Choose the usual and the largest batch size that the search will meet."""
    fixed, knob = request.fixed.get("batch_size"), SETTINGS["batch_size"]
    sizes = (fixed,) if isinstance(fixed, int) else request.batch_sizes or knob.choices
    return min(sizes, key=lambda size: abs(size - knob.recommended)), max(sizes)
