"""`dltune run`: executes an unchanged script or module, with the autopilot on every DataLoader it iterates over."""

from __future__ import annotations

import builtins
import importlib.util
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import wraps
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from torch.utils.data import DataLoader, get_worker_info

from autotune.errors import DltuneError, UsageError
from autotune.online.attach import CHOOSERS, attach, detach, explain_refusal, is_switched_off, make_state
from autotune.online.autopilot import Autopilot, Options
from autotune.online.controller import MIN_WAIT_SHARE
from autotune.online.group import GroupLoader
from autotune.online.result import is_shuffled
from autotune.online.watch import MIN_SLOW_STEPS, WaitMeter
from autotune.profiles.store import check_writable
from autotune.system.software import is_library, is_stdlib
from autotune.units import format_rate

IN_TRIALS: Final = "To tune it in trials: dltune --dataset MODULE:NAME, or --loader MODULE:NAME."
MAX_LOADERS: Final = 100  # whose results are kept; of more, an earlier one without a result goes
MIN_START_SHARE: Final = 0.2  # of an epoch, above which persistent workers are advised
_PLACE: Final = "_dltune_place"  # attribute of a loader: the line of the user's code that made it


def run_script(script: str, arguments: Sequence[str], options: Options, *, is_module: bool = False) -> None:
    """Execute a script as `python script arguments` does, and report the result of each of its loaders.

    Args:
        script: Path of the script, or the name of a module.
        arguments: Arguments of the script.
        options: Options of the autopilot.
        is_module: Whether to execute a module, as `python -m script arguments` does.

    Raises:
        UsageError: There is no such file or module.
        SystemExit: The script failed or was interrupted, and its traceback is printed; or it raised this itself.
    """
    main = ModuleType("__main__")  # for good: threads and functions of `atexit` need it after the end of the script
    if is_module:
        if not sys.flags.safe_path:
            sys.path[0] = str(Path.cwd())
        main.__spec__ = _find_module(script)
        main.__package__, path = main.__spec__.parent, Path(main.__spec__.origin or "")
        script = str(path)
    else:
        path = Path(script).absolute()
        if not os.path.isfile(path):  # noqa: PTH113  # False, not an error, if its folder may not be read
            other = f"; to tune a dataset in trials: dltune --dataset {script}" if ":" in script else ""
            raise UsageError(f"{script} is not a file. Run: dltune run train.py ARGS{other}.")
        if not sys.flags.safe_path:
            sys.path[0] = str(path.resolve().parent)
    main.__file__, vars(main)["__builtins__"] = str(path), builtins
    sys.modules["__main__"], sys.argv[:] = main, [script, *arguments]
    with nullcontext() if is_switched_off() else tune_all_loaders(options):
        try:
            exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(main))  # noqa: S102  # the user's
        except SystemExit:
            raise
        except BaseException as error:  # print the traceback of `python script`, without our frames
            frames = error.__traceback__
            while frames is not None and frames.tb_frame.f_code.co_filename != str(path):
                frames = frames.tb_next
            sys.excepthook(type(error), error.with_traceback(frames), frames)
            traceback.clear_frames(frames)  # they hold an iterator: its workers end now, and remove their files
            raise SystemExit(128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1) from None


def _find_module(name: str) -> ModuleSpec:
    """Find a module, or the `__main__` of a package; its parent packages are imported."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError) as error:
        raise UsageError(f"-m {name}: {error}.") from None
    if spec is None or not (spec.origin or "").endswith(".py"):
        raise UsageError(f"-m {name}: no such module of Python code. Run: dltune run -m package.train ARGS.")
    return spec


@contextmanager
def tune_all_loaders(options: Options) -> Iterator[None]:
    """Attach the autopilot to each DataLoader when it is first iterated over; report all results at the end."""
    if options.profile is not None:
        try:
            check_writable(Path(options.profile))
        except DltuneError as error:
            options.show(f"the result will not be saved: {error}")
    init: Callable[..., None] = DataLoader.__init__
    iterate: Callable[[Any], Iterator[Any]] = DataLoader.__iter__
    tuned, refused, process = dict[str, Autopilot](), dict[str, WaitMeter](), os.getpid()

    @wraps(init)  # Lightning reads its signature
    def init_and_note(loader: Any, *arguments: Any, **kwargs: Any) -> None:
        init(loader, *arguments, **kwargs)
        loader.__dict__.setdefault(_PLACE, find_place())

    @wraps(iterate)
    def attach_and_iterate(loader: Any) -> Iterator[Any]:
        if get_worker_info() is not None or isinstance(loader, GroupLoader) or os.getpid() != process:
            return iterate(loader)  # of a process that the script has forked, too
        if hasattr(type(loader), "autopilot_options"):  # a method of the user's class calls this one
            return iter(loader)
        place = loader.__dict__.get(_PLACE) or find_place()  # a copy has none
        samples = ""
        with suppress(Exception):  # one line may make several loaders, and make each again in every epoch
            samples = f" ({len(loader.dataset):,} samples{', shuffled' * is_shuffled(loader)})"
        own = replace(options, place=place + samples)
        reason = explain_refusal(loader) or attach(loader, own) or make_state(loader)
        if not reason:
            return iter(loader)
        detach(loader)
        if place not in refused:
            refused[place] = WaitMeter(quiet=True)
            options.show(f"{place}: not tuned: {reason}.")
        return refused[place].iterate(lambda: iterate(loader))

    def choose_state(loader: Any, make: Callable[[], Autopilot]) -> Autopilot:
        place = loader.autopilot_options.place or loader.__dict__.get(_PLACE, type(loader).__name__)
        if place in tuned and tuned[place].continue_with(loader):  # it is made again in every epoch
            return tuned[place]
        state = make()
        if place not in tuned or not tuned[place].controller.has_converged:
            tuned[place] = state
        if len(tuned) > MAX_LOADERS:  # one for each part of the data, for example
            del tuned[next((one for one, old in tuned.items() if old.left_nothing), place)]
        return state

    CHOOSERS.append(choose_state)
    DataLoader.__init__ = init_and_note  # type: ignore[method-assign,assignment]  # of all classes of loaders
    DataLoader.__iter__ = attach_and_iterate  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        CHOOSERS.remove(choose_state)
        DataLoader.__init__ = init  # type: ignore[method-assign]
        DataLoader.__iter__ = iterate  # type: ignore[method-assign,assignment]
        if os.getpid() == process:  # not a child that the script has forked
            has_others = sys.exc_info()[0] is not None or bool(refused)  # a script that failed, or printed its help
            for sentence in (*describe_refused(refused), *describe_loaders(tuned, has_others=has_others)):
                options.show(sentence)


def find_place() -> str:
    """Return the nearest line of the user's own code that called this, such as `train.py:31`.

    An installed package is the user's if it has the training that is executed.
    """
    frame, main = sys._getframe(2), sys.modules["__main__"]
    file = (getattr(main, "__package__", None) and getattr(main, "__file__", None)) or ""
    own = f"{Path(file).parent}{os.sep}" if is_library(file) and not is_stdlib(file) else "\0"
    while frame.f_back is not None and is_library(file := frame.f_code.co_filename) and not file.startswith(own):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def describe_refused(refused: Mapping[str, WaitMeter]) -> Iterator[str]:
    """Yield how long the training waited for each loader that was not tuned, if it did for some time."""
    for place, meter in refused.items():
        if meter.batches >= MIN_SLOW_STEPS and meter.wait_share > MIN_WAIT_SHARE:
            rate, waits = format_rate(meter.batches / meter.seconds), f"{meter.wait_share:.0%}"
            yield f"{place}: {rate} batches/s, waits {waits} of the time. {IN_TRIALS}"


def describe_loaders(tuned: Mapping[str, Autopilot], *, has_others: bool = False) -> Iterator[str]:
    """Yield the result of each loader with the arguments to change, or one sentence that there is none.

    A loader with too few batches for a result is left out if the training does not wait for it.
    """
    is_empty, short = True, set[str]()
    for place, state in tuned.items():
        state.finish()
        controller = state.controller
        last = next(reversed(controller.windows.values()), None)
        if controller.final_window is not None or controller.failure:
            yield f"{place}: {state.describe()}{_describe_change(state)}"
        elif (known := controller.known or state.unfinished) is not None:
            workers, rate = f"num_workers={controller.settings.workers}", format_rate(known.rate)
            then = f"{workers}, as an earlier run ({rate} batches/s then)"
            yield f"{place}: {then}; too few batches to compare.{_describe_change(state)}"
        elif last is not None and last.wait_share > MIN_WAIT_SHARE:
            if (line := place.partition(" (")[0]) in short:  # which makes a loader for each part of the data
                continue
            short.add(line)
            waits = f"waits {last.wait_share:.0%} of the time"
            yield f"{place}: {waits}, but has too few batches to choose the workers. {IN_TRIALS}"
        else:
            continue
        is_empty = False
    if is_empty and tuned:
        yield f"{place if len(tuned) == 1 else f'{len(tuned)} loaders'}: too few batches to choose the workers."
    elif is_empty and not has_others:
        yield (
            "nothing to tune: this process iterated over no DataLoader of PyTorch, or only over classes with an "
            "__iter__ of their own, such as StatefulDataLoader."
        )


def _describe_change(state: Autopilot) -> str:
    if state.facts.is_evaluation:
        return ""
    now, own, lines = state.controller.settings, state.controller.own, list[str]()
    takes, prefix = "DataLoader", ""
    none = " without settings of workers, such as persistent_workers"
    if state.facts.workload.prepared_by == "transformers":
        takes, prefix = "TrainingArguments", "dataloader_"
    if now != own:
        prefetch = f", {prefix}prefetch_factor={now.prefetch}" if now.workers and now.prefetch != own.prefetch else ""
        others = "" if now.workers else none
        lines.append(f"Use it: {takes}(..., {prefix}num_workers={now.workers}{prefetch}){others}")
    rate, share, final = state.untried_rate, state.start_share, state.controller.final_window
    if share > MIN_START_SHARE and final is not None and state.controller.rate(final) / (1.0 - share) >= rate:
        lines.append(f"Add {prefix}persistent_workers=True: starting workers takes up to {share:.0%} of each epoch.")
    elif rate:
        lines.append(f"Try {prefix}num_workers=0{none}: {format_rate(rate)} batches/s are predicted.")
    if state.facts.workload.nproc_per_node > 1 and state.options.profile is not None and not state.controller.failure:
        lines.append(f"Other processes may need more workers: the most are saved in {state.options.profile}.")
    return "".join(f"\n        {one}" for one in lines)
