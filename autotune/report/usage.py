"""The training code that puts a tuned configuration in force."""

from __future__ import annotations

import json

from autotune.knobs import TABLE, WORKER_SETTINGS
from autotune.profiles.schema import TunedProfile


def describe_use_in_code(profile: TunedProfile, kind: str, output: str) -> str:
    """Write it in one line; only a dataset of kind `map` can be shuffled by a loader."""
    tuned, given = f'autotune.load("{output}")', _list_given(profile, kind)
    makes_dataset = profile.config.knobs and profile.workload.loader_class is None
    if makes_dataset:
        tuned, given[0] = f"(tuned := {tuned})", f"{_name_factory(profile)}(**tuned.knobs){_write_choice(profile)}"
    is_set_up = any(knob.read(profile.config) != knob.default for knob in WORKER_SETTINGS)
    if profile.workload.loader_class is not None:
        choice = _write_choice(profile) if profile.workload.is_function_made else ""
        plain = f"{tuned}.make_loader({', '.join([_name_maker(profile), *given])}){choice}"
    elif is_set_up or makes_dataset:
        plain = f"{tuned}.make_loader({', '.join(given)})"
    else:
        plain = f"DataLoader({', '.join([*given, f'**{tuned}.loader_kwargs()'])})"
    return f"autotune.device_prefetch({plain}, device)" if profile.process.device_prefetch else plain


def usage_snippet(profile: TunedProfile, file: str) -> str:
    """Write the code that loads the answer from its file."""
    return f"import autotune\n\nloader = {describe_use_in_code(profile, profile.workload.kind or 'map', file)}"


def usage_snippet_without_dltune(profile: TunedProfile) -> str:
    """Write the code that says the answer without dltune."""
    set_up = [(knob.setup, knob.read(profile.config)) for knob in TABLE if knob.read(profile.config) != knob.default]
    lines = [code.format(value=value) for code, value in set_up if code is not None]
    settings = profile.workload.leave_out_decided(profile.config.loader_kwargs())
    given = _list_given(profile, profile.workload.kind or "map")
    if profile.workload.is_function_made:
        settings |= profile.config.knobs
    elif profile.config.knobs and profile.workload.loader_class is None:
        own = ", ".join(f"{name}={value!r}" for name, value in profile.config.knobs.items())
        given[0] = f"{_name_factory(profile)}({own}){_write_choice(profile)}"
    arguments = [
        *given,
        *(f"{name}={value!r}" for name, value in settings.items()),
    ]
    end = f"){_write_choice(profile) if profile.workload.is_function_made else ''}"
    lines += [f"loader = {_name_maker(profile)}(", *(f"    {argument}," for argument in arguments), end]
    if profile.process.device_prefetch:
        lines.append("loader = autotune.device_prefetch(loader, device)")
    return "\n".join(lines)


def _list_given(profile: TunedProfile, kind: str) -> list[str]:
    """List what training code gives a loader beside the settings."""
    if profile.workload.loader_class is not None:
        is_told = profile.workload.is_function_made and not profile.workload.dataset_args
        return [] if is_told else ["**your_own_arguments"]
    if profile.dataloader.batch_size is None:
        return ["dataset", "**your_own_batching"]
    return ["dataset", "shuffle=True"] if kind != "iterable" else ["dataset"]  # which DataLoader refuses to shuffle


def _write_choice(profile: TunedProfile) -> str:
    """Write what takes the tuned one of several loaders or datasets that the factory returns."""
    name = profile.workload.split
    if name is None:
        return ""
    return f"[{name if name.isdecimal() else json.dumps(name)}]"


def _name_factory(profile: TunedProfile) -> str:
    """Name the factory of the dataset, without its module."""
    return profile.workload.dataset.replace(":", ".").rpartition(".")[2]


def _name_maker(profile: TunedProfile) -> str:
    """Name the class of the loader, or the function that makes it, without its module where that says who is meant."""
    name = profile.workload.loader_class or "DataLoader"
    short = name.replace(":", ".").rpartition(".")[2]
    return name if short == "DataLoader" else short
