"""The options of `dltune tune`: their parsers, their groups in the help, and the request that they make."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from autotune.errors import UsageError
from autotune.units import parse_seconds

if TYPE_CHECKING:
    from autotune.request import TuningRequest

TUNES: Final = "0 done; 1 failed; 2 usage or your code; 3 no configuration works; 130 interrupted, best so far saved"
FIELDS: Final = {"arg": "dataset_args", "set": "fixed", "timeout": "timeout_seconds"} | {
    f"{name}-time": f"{name}_seconds" for name in ("step", "trial", "stall")
}  # of a request, for the options that have other names
START_METHOD: Final = "multiprocessing_context"  # may be set, but is not searched


def epilog(*examples: str, codes: str = "", more: str = "") -> str:
    """Write what follows the options in a command's help; a backspace keeps click from wrapping the examples."""
    first = "\n".join(["\b", "Examples:", *(f"  {example}" for example in examples)])
    return "\n\n".join(filter(None, (first, more, codes and f"Exit codes: {codes}.")))


def seconds(text: str) -> float:
    """Parse a duration such as `35ms` or `10m`."""
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def processes(text: str) -> int:
    """Parse a number of training processes; `auto` is one for each visible GPU, at least one."""
    if text == "auto":
        from autotune.system.machine import read_gpus

        return max(1, len(read_gpus()))
    if not re.fullmatch("[0-9]{1,9}", text):
        raise click.BadParameter(f"{text[:80]!r} is neither a number of processes nor auto")
    return int(text)


def assignment(text: str) -> tuple[str, Any]:
    """Parse `KEY=VALUE`, with a value in JSON or a bare word."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise click.BadParameter(f"{text[:80]!r} is not of the form KEY=VALUE")
    return key.strip(), _parse_value(value)


def search_values(text: str) -> tuple[str, Any]:
    """Parse `NAME=LOW:HIGH`, with both ends included, or `NAME=VALUE,VALUE`."""
    key, _, values = text.partition("=")
    if found := re.fullmatch("([0-9]+):([0-9]+)", values.strip()):
        if max(map(len, found.groups())) > 9:
            raise click.BadParameter(f"{text[:40]!r}: a bound has more than 9 digits")
        return key.strip(), {"low": int(found[1]), "high": int(found[2])}
    is_other_range = ":" in values or re.fullmatch(r"[0-9]+(-|\.\.)[0-9]+", values.strip())
    if not key.strip() or not values.strip() or is_other_range:
        raise click.BadParameter(f"{text[:80]!r} is not of the form num_workers=0:16 or in_order=true,false")
    return key.strip(), tuple(_parse_value(value.strip()) for value in values.split(","))


def batch_sizes(text: str) -> Any:
    """Parse `64`, `32,64,128` or `16:128`."""
    return search_values(f"batch_size={text}")[1]


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if text[:1] + text[-1:] in ("[]", "{}") or text in ("True", "False", "None"):
            example = """write 'sizes=["a", "b"]' with quotes for the shell, true, false or null; or 'text="[a]"'"""
            raise click.BadParameter(f"{text[:80]!r} is not JSON: {example}") from None
        return text


TYPES: Final[Mapping[str, Any]] = {
    "N": int,
    "N|auto": processes,
    "N[,N...]": batch_sizes,
    "TIME": seconds,
    "KEY=VALUE": assignment,
    "NAME=VALUE": assignment,
    "NAME=VALUES": search_values,
}  # of options, by their metavar


def option(names: str, text: str, default: Any = None) -> click.Option:
    """Make an option of its names and metavar, as in `-o --output FILE`; without a metavar it is a flag."""
    flags = [word for word in names.split() if word.startswith("-")]
    metavar = next((word for word in names.split() if not word.startswith("-")), "")
    choice = click.Choice(metavar.split("|")) if "|" in metavar else None
    kind: dict[str, Any] = {"is_flag": not metavar, "multiple": "=" in metavar, "type": TYPES.get(metavar, choice)}
    return click.Option(flags, metavar=metavar or None, default=default if metavar else False, help=text, **kind)


OUTPUT: Final = (
    option("--json", "Print the profile as JSON on stdout."),
    option("-q --quiet", "Show only the result and errors."),
    option("-v --verbose", "Show phases, limits, predictions, memory and tracebacks of trials."),
)
FILE: Final = click.Argument(["file"], default="dltune.json", metavar="[FILE]")
PROFILE: Final = option("--profile NAME", "Label, workload or machine class of the profile. Default: this machine's.")
OPTIONS: Final[Mapping[str, tuple[click.Option, ...]]] = {
    "Workload": (
        option("--dataset MODULE:NAME", "Function that returns your Dataset, DataLoader or data module."),
        option("--loader MODULE:NAME", "Function that takes DataLoader settings and returns any loader (webdataset)."),
        option("--arg KEY=VALUE", "Argument of that function, in JSON or a bare word; repeatable."),
        option("--split NAME", "Which of several returned loaders or datasets to tune, e.g. train."),
        option("--step MODULE:NAME", "Function that returns your training step, a function of a batch."),
        option("--step-time TIME", "Simulate a training step of this length per batch, e.g. 35ms."),
        option(
            "--batch-size N[,N...]",
            "Batch size; a list or range (16:128) is searched. Default: your DataLoader's, or a search.",
        ),
        option("--device DEVICE", "auto, cpu, or a torch device such as cuda:0.", "auto"),
        option("--nproc-per-node N|auto", "Training processes on this host; auto starts one per GPU.", "1"),
    ),
    "Search": (
        option("--trials N", "Maximum number of trials; the search usually stops earlier.", 40),
        option("--timeout TIME", "Time limit for the whole run, e.g. 10m."),
        option("--epochs N", "Length of the training run to predict throughput for.", 10),
        option("--set NAME=VALUE", "Fix a setting, e.g. in_order=true; repeatable."),
        option("--search NAME=VALUES", "Restrict a setting: num_workers=0:16 or in_order=true,false; repeatable."),
        option("--max-workers N", "Maximum of num_workers. Default: as many as the cost model expects to help."),
        option("--fresh", "Ignore saved trials and results; tune from scratch."),
    ),
    "Limits": (
        option("--max-memory SIZE", "Host memory for trials: a percentage of what is free, or a size (24GiB).", "80%"),
        option("--max-shm SIZE", "/dev/shm for trials (same syntax).", "80%"),
        option("--max-gpu-memory SIZE", "GPU memory for trials: a percentage of all of it, or a size.", "90%"),
    ),
    "Output": (option("-o --output FILE", "File for the result.", "dltune.json"), *OUTPUT),
    "Advanced": (
        option("--trial-time TIME", "Time per validation trial; search trials use 60% of it.", "2s"),
        option("--stall-time TIME", "Stop a trial that makes no progress for this long.", "60s"),
        option("--seed N", "Seed of the sampler.", 0),
        option("--sampler model|gp|tpe|random", "Built-in cost model, or an Optuna sampler.", "model"),
        option("--storage URL", "Optuna storage of the study, or a journal file. Default: in memory."),
        option("--study-name NAME", "Name of the Optuna study."),
        option("--profile NAME", "Label of the profile in the file."),
    ),
}


class TuneCommand(click.Command):
    """A command whose help groups the options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups."""
        grouped = {option for options in OPTIONS.values() for option in options}
        rest = tuple(one for one in self.get_params(ctx) if isinstance(one, click.Option) and one not in grouped)
        for title, options in {**OPTIONS, "Help": rest}.items():
            with formatter.section(title):
                formatter.write_dl([record for one in options if (record := one.get_help_record(ctx)) is not None])


TARGET: Final = click.Argument(["target"], required=False, metavar="[TARGET]")
TUNE_PARAMS: Final = (TARGET, *(one for group in OPTIONS.values() for one in group))


def build_request(options: Mapping[str, Any]) -> TuningRequest:
    """Build the request from the values of all options; raise UsageError if one is missing or invalid."""
    from pydantic import ValidationError

    from autotune.request import TuningRequest, WorkloadRequest, explain_invalid
    from autotune.settings import SETTINGS

    if options["dataset"] and options["loader"]:
        raise UsageError("Pass either --dataset or --loader.")
    if not options["dataset"] and not options["loader"]:
        example = "a function that returns your Dataset or DataLoader, such as --dataset data:make"
        raise UsageError(f"Nothing to tune. Pass {example}.")
    fixed, search, sizes = dict(options["set"]), dict(options["search"]), options["batch_size"]
    if sizes is not None:
        if "batch_size" in {*fixed, *search}:
            raise UsageError("The batch size is given twice: pass it with --batch-size only.")
        (fixed if len(sizes) == 1 else search)["batch_size"] = sizes[0] if len(sizes) == 1 else sizes
    for option, given, known in (("set", fixed, (*SETTINGS, START_METHOD)), ("search", search, (*SETTINGS,))):
        if unknown := given.keys() - {*known}:
            raise UsageError(f"--{option} {min(unknown)}: no such setting. There are {', '.join(known)}.")
    fields = {FIELDS.get(name.replace("_", "-"), name): value for name, value in options.items()} | {
        "dataset": options["dataset"] or options["loader"],
        "is_loader": not options["dataset"],
        "dataset_args": dict(options["arg"]),
        "start_method": fixed.pop(START_METHOD, None),
        "fixed": fixed,
        "search": search,
    }
    try:
        workload = WorkloadRequest(**{name: fields[name] for name in WorkloadRequest.model_fields if name in fields})
        rest = {name: fields[name] for name in TuningRequest.model_fields if name in fields}
        return TuningRequest(workload=workload, **rest)
    except ValidationError as error:
        path, reason = explain_invalid(error)
        names = {name: option for option, name in FIELDS.items()} | {"start_method": f"set {START_METHOD}"}
        path[:1] = [f"--{names.get(name, name.replace('_', '-'))}" for name in path[:1]]
        raise UsageError(f"{' '.join(path[:2])}: {reason}.".removeprefix(": ")) from None
