"""What would help beyond the settings of a loader, where the probe shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from autotune.config import LoaderConfig
from autotune.profiles.schema import Bottleneck
from autotune.search.cost_model import max_useful_workers
from autotune.search.demand import describe_violations
from autotune.search.plan import Plan
from autotune.settings import SETTINGS, describe_config
from autotune.trial.workload_profile import CostlyLine
from autotune.units import format_bytes, format_percent, format_seconds

WAITING_CPU_SHARE: Final = 0.5  # CPU share below which a sample mostly waits
COLLATE_SHARE: Final = 0.25  # of loading; a collate_fn that takes less is not worth a look
WORTHWHILE_GAIN: Final = 1.05  # predicted gain that makes a larger budget worth mentioning
MAX_LINES_NAMED: Final = 3
THREADED_LOADING_CPUS: Final = 1.3  # kept busy by loading in one process; above it, it must have threads of its own
THREADED_STEP_CPUS: Final = 1.2  # CPUs kept busy by the step, above which its threads get in the way of workers


def suggest_improvements(plan: Plan, config: LoaderConfig, bottleneck: Bottleneck) -> tuple[str, ...]:
    """List in sentences what the user could change outside the loader's settings, the most useful first."""
    found = (
        _suggest_fetching(plan, bottleneck),
        _suggest_collate(plan, config, bottleneck),
        _suggest_lines(plan, bottleneck),
        _suggest_decoder(plan, bottleneck),
        _suggest_budget(plan, config, bottleneck),
        _suggest_loading_threads(plan),
        _suggest_step_threads(plan, bottleneck),
        _suggest_epochs(plan, config, bottleneck),
        _suggest_copies(plan, config, bottleneck),
    )
    return tuple(sentence for sentence in found if sentence is not None)


def _suggest_fetching(plan: Plan, bottleneck: Bottleneck) -> str | None:
    workload = plan.workload
    is_slow = workload.cpu_share < WAITING_CPU_SHARE and bottleneck in ("io", "epoch", "cpu")
    if workload.kind != "map" or workload.has_getitems or not is_slow or workload.batching == "user":
        return None
    return (
        f"Samples are fetched one by one, and each waits {format_seconds(workload.load_cost.per_item_seconds)} "
        f"(CPU {format_percent(workload.cpu_share)}): a dataset with __getitems__(indices) that asks for a whole "
        "batch at once waits once instead."
    )


def _suggest_collate(plan: Plan, config: LoaderConfig, bottleneck: Bottleneck) -> str | None:
    size = config.dataloader.batch_size or plan.workload.probe_batch_size
    collate, load = plan.workload.collate_cost.per_batch(size), plan.workload.load_cost.per_batch(size)
    if bottleneck not in ("cpu", "transfer") or collate < COLLATE_SHARE * load:
        return None
    return (
        f"Collating takes {format_percent(min(1.0, collate / load))} of loading a batch "
        f"({format_seconds(collate)} of {format_seconds(load)}): a cheaper collate_fn, or smaller samples "
        "(uint8 instead of float32, converted in the step), would pay."
    )


def _suggest_lines(plan: Plan, bottleneck: Bottleneck) -> str | None:
    """Name the lines of code that take most of loading, where loading is what bounds the run."""
    lines = plan.workload.costly_lines
    if bottleneck not in ("io", "cpu") or not lines:
        return None
    named = ", ".join(f"{format_percent(one.share)} in {_describe_line(one)}" for one in lines[:MAX_LINES_NAMED])
    return f"Of loading a sample in one process, {named}."


def _suggest_decoder(plan: Plan, bottleneck: Bottleneck) -> str | None:
    return plan.workload.faster_decoder or None if bottleneck in ("io", "cpu") else None


def _describe_line(one: CostlyLine) -> str:
    source = f" (`{one.source}`)" if one.source else ""
    return f"{Path(one.file).name}:{one.line}{source}"


def _suggest_budget(plan: Plan, config: LoaderConfig, bottleneck: Bottleneck) -> str | None:
    """Name the limit that keeps a configuration with more workers out, if the model expects a gain from it."""
    if bottleneck not in ("io", "cpu") or not config.dataloader.num_workers:
        return None
    size = config.dataloader.batch_size or plan.workload.probe_batch_size
    most = max_useful_workers(plan.workload, size, plan.local_machine.usable_cpus)
    for workers in (
        count for count in SETTINGS["num_workers"].choices if config.dataloader.num_workers < count <= most
    ):
        larger = config.model_copy(update={"dataloader": config.dataloader.model_copy(update={"num_workers": workers})})
        violations = plan.resource_model().predict(larger).find_violations(plan.budgets)
        gain = plan.predict(larger) / plan.predict(config)
        if violations and gain >= WORTHWHILE_GAIN:
            needs = describe_violations(violations)
            return f"{describe_config(larger)} is expected to be {gain - 1:.0%} faster, and is over a limit: {needs}."
    return None


def _suggest_loading_threads(plan: Plan) -> str | None:
    if plan.workload.cpu_share < THREADED_LOADING_CPUS:
        return None
    return (
        f"Loading keeps {plan.workload.cpu_share:.1f} CPUs busy in one process, so it starts threads of its own, "
        "and each worker does the same: limit them in worker_init_fn, as with cv2.setNumThreads(0), or by "
        "OMP_NUM_THREADS=1."
    )


def _suggest_step_threads(plan: Plan, bottleneck: Bottleneck) -> str | None:
    if bottleneck != "cpu" or plan.workload.step_cpus < THREADED_STEP_CPUS:
        return None
    return (
        f"The step computes on {plan.workload.step_cpus:.1f} CPUs, which the workers need as well: try fewer threads "
        "for it, as with torch.set_num_threads(1)."
    )


def _suggest_epochs(plan: Plan, config: LoaderConfig, bottleneck: Bottleneck) -> str | None:
    if bottleneck != "epoch":
        return None
    keep = "" if config.dataloader.persistent_workers else "persistent_workers=True or "
    return (
        f"Epochs are short, and filling the queue anew takes much of each: {keep}a sampler that goes through the data "
        "several times in one epoch would spread that cost."
    )


def _suggest_copies(plan: Plan, config: LoaderConfig, bottleneck: Bottleneck) -> str | None:
    copies = plan.workload.h2d
    if bottleneck != "copy" or copies is None:
        return None
    rate = format_bytes(copies.of(pinned=config.dataloader.pin_memory))
    return (
        f"Copying to the device bounds the run, at {rate}/s: send smaller samples (uint8 or float16 instead of "
        "float32, converted on the device), or fewer of their features."
    )
