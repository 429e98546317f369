"""The training code that puts a tuned configuration in force."""

from __future__ import annotations

from autotune.knobs import KNOBS, WORKER_SETTINGS
from autotune.profiles.schema import TunedProfile


def describe_use_in_code(profile: TunedProfile, kind: str, output: str) -> str:
    """Write it in one line; only a dataset of kind `map` can be shuffled by a loader."""
    if profile.dataloader.batch_size is None:
        own = "**your_own_batching, "
    else:
        own = "shuffle=True, " if kind == "map" else ""
    plain = f'DataLoader(dataset, {own}**autotune.load("{output}").loader_kwargs())'
    if any(knob.read(profile.config) != knob.default for knob in WORKER_SETTINGS):
        plain = f'autotune.load("{output}").make_loader(dataset, {own}'.removesuffix(", ") + ")"
    return f"autotune.device_prefetch({plain}, device)" if profile.process.device_prefetch else plain


def usage_snippet(profile: TunedProfile, file: str) -> str:
    """Write the code that loads the answer from its file."""
    return f"import autotune\n\nloader = {describe_use_in_code(profile, profile.workload.kind or 'map', file)}"


def usage_snippet_without_dltune(profile: TunedProfile) -> str:
    """Write the code that says the answer without dltune."""
    lines = []
    if profile.process.sharing_strategy != KNOBS["sharing_strategy"].default:
        lines.append(f"torch.multiprocessing.set_sharing_strategy({profile.process.sharing_strategy!r})")
    arguments = ["dataset"]
    if profile.dataloader.batch_size is None:
        arguments.append("**your_own_batching")
    elif profile.workload.kind != "iterable":  # which DataLoader refuses to shuffle
        arguments.append("shuffle=True")
    arguments += [f"{name}={value!r}" for name, value in profile.config.loader_kwargs().items()]
    lines += ["loader = DataLoader(", *(f"    {argument}," for argument in arguments), ")"]
    if profile.process.device_prefetch:
        lines.append("loader = autotune.device_prefetch(loader, device)")
    return "\n".join(lines)
