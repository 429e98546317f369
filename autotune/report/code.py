"""Code to paste: the loader with the recommended settings."""

from __future__ import annotations

import json

from autotune.profiles.schema import TunedProfile
from autotune.settings import SETTINGS


def plain_code(profile: TunedProfile) -> str:
    """Write the loader in plain PyTorch, with the lines that other settings need."""
    config, workload = profile.config, profile.workload
    kwargs = workload.accepted(config.loader_kwargs())
    if workload.loader_class is None:  # a loader of the user's own may have other defaults than PyTorch's
        off = {name for name, setting in SETTINGS.items() if not setting.is_range}
        kwargs = {name: v for name, v in kwargs.items() if name not in off or v != SETTINGS[name].default}
    arguments = _data_arguments(profile)
    arguments[1:1] = [f"batch_size={kwargs.pop('batch_size')}"] if "batch_size" in kwargs else []
    arguments += [f"{name}={value!r}" for name, value in kwargs.items()]
    changed = ((setting, setting.read(config)) for setting in SETTINGS.values())
    lines = [one.setup.format(value=value) for one, value in changed if one.setup and value != one.default]
    lines += ["import autotune"] if config.process.device_prefetch else []
    return "\n".join([*lines, _loader_line(profile, "", arguments)])


def load_code(profile: TunedProfile, file: str, name: str | None = None) -> str:
    """Write the code that loads the recommended settings from a file; `name` is the profile to load."""
    label = name or profile.label
    tuned = f"autotune.load({json.dumps(file)}{'' if label is None else f', profile={json.dumps(label)}'})"
    return f"import autotune\n{_loader_line(profile, f'{tuned}.make_loader', _data_arguments(profile))}"


def _data_arguments(profile: TunedProfile) -> list[str]:
    """Return the arguments of the loader that are not settings."""
    workload = profile.workload
    if workload.loader_class is not None:
        known = [f"{name}={value!r}" for name, value in workload.dataset_args.items() if name.isidentifier()]
        return known if workload.has_loader_function else ["**your_arguments"]
    if profile.dataloader.batch_size is None:
        return ["dataset", "batch_size=None" if workload.kind == "iterable" else "batch_sampler=batch_sampler"]
    if workload.kind == "iterable":  # DataLoader refuses to shuffle it
        return ["dataset"]
    return ["dataset", "shuffle=True" if workload.nproc_per_node == 1 else "sampler=DistributedSampler(dataset)"]


def _loader_line(profile: TunedProfile, make_loader: str, arguments: list[str]) -> str:
    """Write the call that makes the loader, and how batches are copied to the device if that is a setting."""
    workload, process = profile.workload, profile.process
    maker = (workload.loader_class or "DataLoader").replace(":", ".")
    short = maker.rpartition(".")[2]
    if short != "DataLoader":
        maker = short if short.isidentifier() else "make_loader"  # no expression from a file becomes code to paste
    given = [maker, *arguments] if make_loader and workload.loader_class is not None else arguments
    split = workload.split if workload.has_loader_function else None
    choice = "" if split is None else f"[{split if split.isdecimal() else repr(split)}]"
    line = f"loader = {make_loader or maker}({', '.join(given)}){choice}"
    if process.device_prefetch:
        return f"{line}\nloader = autotune.device_prefetch(loader, device)"
    is_asynchronous = process.non_blocking and profile.hardware.gpu is not None
    return f"{line}\n# copy batches with batch.to(device, non_blocking=True)" if is_asynchronous else line
