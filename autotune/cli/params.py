"""What options mean: how their values are read, which of them commands share, and the request they add up to."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from autotune.errors import UsageError
from autotune.units import parse_budget, parse_seconds

if TYPE_CHECKING:
    from pydantic import ValidationError

    from autotune.request import TuningRequest

FLOAT_STEPS: Final = 4  # of a range of numbers that are not whole
MAX_SHOWN_CHARACTERS: Final = 80  # of a value that is refused
_SAME_NAMES: Final = (
    *("trials", "epochs", "seed", "sampler", "max_memory", "max_shm", "max_gpu_memory", "max_workers"),
    *("explain", "isolation", "output", "profile", "storage", "study_name", "resume"),
)  # options that are called in TuningRequest as on the command line

FILE: Final = click.argument("file", type=click.Path(path_type=Path), default=Path("dltune.json"))
TRUST: Final = click.option(
    "--trust", is_flag=True, help="I have read FILE: import what it names even if others may have written it."
)
AS_JSON: Final = click.option(
    "--json", "as_json", is_flag=True, envvar="DLTUNE_JSON", help="Print the profile as one JSON document on stdout."
)
QUIET: Final = click.option("-q", "--quiet", is_flag=True, help="Show nothing but the result and errors.")
TIMINGS: Final = click.option("--timings", is_flag=True, help="Say where the time of the run went.")
VERBOSE: Final = click.option(
    "-v", "--verbose", is_flag=True, help="Show phases, skipped configurations and tracebacks of trials."
)


def read_seconds(value: Any) -> float:
    """Read a length of time such as `35ms`, `3s` or `10m`, in seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    try:
        return parse_seconds(value)
    except (ValueError, AttributeError, TypeError) as error:
        raise click.BadParameter(str(error)) from None


def check_budget(value: Any) -> str:
    """Check a share such as `80%` or an amount such as `24GiB`; the share is taken of the machine later."""
    text = str(value).strip()
    try:
        parse_budget(text, whole=1 << 50)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text


def read_batch_sizes(value: Any) -> tuple[int, ...]:
    """Read one batch size that is pinned, or a list to choose from: `64` or `32,64,128`."""
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    try:
        sizes = tuple(int(part) for part in parts)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a number or a list such as 32,64,128") from None
    if not sizes or min(sizes) < 1:
        raise click.BadParameter(f"{value!r}: a batch holds at least one sample")
    return sizes


def read_ranks(value: Any) -> int:
    """Read a number of training processes; `auto` is one for each accelerator that is visible, at least one."""
    if value == "auto":
        from autotune.system.gpus import read_gpus

        return max(1, len(read_gpus()))
    try:
        ranks = int(value)
    except (ValueError, TypeError):
        raise click.BadParameter(f"{_shorten(value)} is neither a number nor auto") from None
    if ranks < 1:
        raise click.BadParameter(f"{value}: training takes at least one process")
    return ranks


def read_assignment(value: Any) -> tuple[str, Any]:
    """Read `KEY=VALUE`, where the value is JSON or a bare word."""
    if isinstance(value, tuple):
        return value
    key, separator, text = str(value).partition("=")
    if not separator or not key.strip():
        raise click.BadParameter(f"{value!r} is not of the form KEY=VALUE")
    try:
        return key.strip(), json.loads(text)
    except ValueError:
        return key.strip(), text
    except RecursionError:
        raise click.BadParameter(f"{_shorten(value)} is nested too deeply for JSON") from None


def read_range(value: Any) -> tuple[str, tuple[int, int]]:
    """Read `KNOB=LOW:HIGH`, both ends included."""
    if isinstance(value, tuple):
        return value
    key, _, text = str(value).partition("=")
    low, _, high = text.partition(":")
    try:
        bounds = int(low), int(high)
    except ValueError:
        raise click.BadParameter(f"{_shorten(value)} is not of the form num_workers=0:16") from None
    if not 0 <= bounds[0] <= bounds[1]:
        hint = "the lower end is above the upper one or below 0, give num_workers=0:16"
        raise click.BadParameter(f"{value!r}: {hint}")
    return key.strip(), bounds


def read_choices(value: Any) -> tuple[str, tuple[Any, ...]]:
    """Read the choices of a knob of the user's own: `NAME=1,2,4`, `NAME=LOW:HIGH`, or a list in JSON."""
    if isinstance(value, tuple):
        return value
    key, _, text = str(value).partition("=")
    low, separator, high = text.partition(":")
    try:
        if separator and not text.startswith("["):
            return key.strip(), _spread(json.loads(low), json.loads(high))
        parts = (
            json.loads(text) if text.startswith("[") else [read_assignment(f"_={part}")[1] for part in text.split(",")]
        )
    except (ValueError, TypeError, RecursionError):
        raise click.BadParameter(
            f"{_shorten(value)} is not of the form cache_size=64:4096 or decoder=pil,cv2"
        ) from None
    if not text or not all(isinstance(part, str | int | float) for part in parts):
        raise click.BadParameter(f"{_shorten(value)}: the choices are numbers, words, true or false: threads=0,1,2")
    return key.strip(), tuple(parts)


def _spread(low: float, high: float) -> tuple[float, ...]:
    """Spread choices over a range: every whole number of a short one, doublings of a long one, else five steps."""
    from autotune.request import DENSE_RANGE_WIDTH

    if not low < high:
        raise click.BadParameter(f"{low}:{high}: the lower end is not below the upper one, give cache_size=64:4096")
    if not isinstance(low, int) or not isinstance(high, int):
        return tuple(low + (high - low) * step / FLOAT_STEPS for step in range(FLOAT_STEPS + 1))
    if high - low <= DENSE_RANGE_WIDTH:
        return tuple(range(low, high + 1))
    if low < 0:
        raise click.BadParameter(f"{low}:{high} is a long range with negative numbers: list the choices instead")
    doublings = itertools.takewhile(lambda value: value < high, (max(low, 1) << power for power in itertools.count()))
    return tuple(sorted({low, *doublings, high}))


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}..."


def build_request(options: dict[str, Any]) -> TuningRequest:
    """Make a request of the values that click gives; raises UsageError where one is missing or makes no sense."""
    from pydantic import ValidationError

    from autotune.request import TuningRequest, WorkloadRequest

    if bool(options["dataset"]) is bool(options["loader"]):
        given = "exclude each other" if options["loader"] else "are both missing"
        raise UsageError(
            f"--dataset PKG.MOD:ATTR and --loader PKG.MOD:FN {given}: name the factory of your dataset or DataLoader, "
            "or a function that makes a loader of the settings."
        )
    fixed = dict(options["fix"])
    start_method = _settle_start_method(options["start_method"], fixed.pop("multiprocessing_context", None))
    try:
        return TuningRequest(
            workload=WorkloadRequest(
                dataset=options["dataset"] or options["loader"],
                is_loader=not options["dataset"],
                dataset_args=dict(options["dataset_args"]),
                split=options["split"],
                knobs=_collect_choices(options["knobs"]),
                collate=options["collate"],
                step=options["step"],
                step_seconds=options["step_time"],
                device=options["device"],
                main=options["main"],
                ranks=options["ranks"],
                cold=options["cold"],
                start_method=start_method,
            ),
            batch_sizes=options["batch_size"],
            fixed=fixed,
            ranges=dict(options["ranges"]),
            timeout_seconds=options["timeout"],
            trial_seconds=options["trial_time"],
            stall_seconds=options["stall_time"],
            **{name: options[name] for name in _SAME_NAMES},
        )
    except ValidationError as error:
        raise UsageError(_explain(error)) from None


def _settle_start_method(asked: str | None, fixed: Any) -> Any:
    """Give the start method that an option asks for, or --fix by DataLoader's name for it; UsageError for two."""
    if asked is not None and fixed not in (None, asked):
        raise UsageError(
            f"--start-method {asked} and --fix multiprocessing_context={fixed} are the same setting: leave one out."
        )
    return asked if fixed is None else fixed


def _collect_choices(given: Sequence[tuple[str, tuple[Any, ...]]]) -> dict[str, tuple[Any, ...]]:
    """Collect the choices of each knob; raises UsageError where one is given twice."""
    names = [name for name, _ in given]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"--knob {twice[0]} is given twice: list all of its choices in one, as in {twice[0]}=1,2.")
    return dict(given)


def _explain(error: ValidationError) -> str:
    """Say the first of the problems in the words of the command line."""
    problem = error.errors(include_url=False)[0]
    place = [str(part) for part in problem["loc"]]
    if place and place[0] == "knobs":
        what = problem["msg"].removeprefix("Value error, ")
        return f"--knob {place[1]}: {what[:1].lower()}{what[1:]}."
    if place and place[0] in ("fixed", "ranges"):
        from autotune.settings import SETTINGS

        option = "--fix" if place[0] == "fixed" else "--range"
        known = len(place) > 1 and place[1] in SETTINGS and place[-1] != "[key]"
        hint = "the value does not suit it" if known else f"the knobs are {', '.join(SETTINGS)}"
        return f"{option} {place[1]}: {hint}." if len(place) > 1 else f"{option}: {hint}."
    return f"{' '.join(place)}: {problem['msg'].removeprefix('Value error, ')}.".removeprefix(": ")
