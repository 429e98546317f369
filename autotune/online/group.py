"""Worker groups: the workers of one ordinary DataLoader iterator, whose batch sampler is the group itself."""

from __future__ import annotations

import atexit
import gc
import itertools
import multiprocessing
import multiprocessing.process
import os
import random
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling
from torch.utils.data._utils import worker as torch_worker

from autotune.online.worker import TimedIndices
from autotune.system.software import read_start_method_in_force

HANG_SECONDS: Final = 60.0  # after which added workers that return nothing have failed, if the loader has no `timeout`
END_SECONDS: Final = 5.0  # the longest that new workers wait for ending ones
SOON_SECONDS: Final = 0.5  # the longest that the training waits for workers that failed
_STARTING: Final = threading.RLock()  # one thread at a time
ITERATORS: Final[weakref.WeakSet[Any]] = weakref.WeakSet()  # of all groups that have workers
_DEFERRED: Final[list[dict[signal.Signals, Any]]] = []  # handlers of signals that are deferred
_ENDING: Final[dict[threading.Thread, object]] = {}  # iterators, whose copies no worker forked meanwhile may collect


class WorkerSettings(NamedTuple):
    """The settings that may change during an epoch."""

    workers: int
    prefetch: int

    @property
    def batches(self) -> int:
        """Batches that are under way at once."""
        return self.workers * self.prefetch


@dataclass(eq=False, slots=True)
class Slot:
    """One batch: its position in the epoch, its indices, and the group that loads it."""

    number: int
    indices: Any
    group: WorkerGroup | None = None


class WorkerGroup:
    """The workers of one DataLoader iterator, whose batch sampler is the group itself."""

    def __init__(self, settings: WorkerSettings, take: Callable[[WorkerGroup], Slot], *, is_own: bool) -> None:
        self.settings, self.is_own, self._take = settings, is_own, take  # own: the user's settings, whose errors count
        self.started = settings.workers  # of which some may be idle
        self.planned = deque[Slot]()  # taken before all others
        self.pending, self.last, self.is_open = 0, -1, True  # batches under way; number of the last slot that it took
        self.first_worker = 0  # the id of its first worker
        self.loader: DataLoader[Any] | None = None
        self.iterator: Any = None
        self._process = os.getpid()
        self._random: tuple[Any, ...] = ()  # states for batches that are loaded here, not by the user's workers
        self._training: tuple[Any, ...] = ()  # states of the training, during such a batch

    def __iter__(self) -> WorkerGroup:
        return self

    def __next__(self) -> Any:
        if self.pending > self.settings.batches:  # it had more workers, or a higher prefetch factor
            raise StopIteration
        slot = self.planned.popleft() if self.planned else self._take(self)
        self.last, slot.group = slot.number, self
        self.pending += 1
        if not (self.settings.workers or self.is_own):
            self._training = swap_random_states(self._random or self.iterator._base_seed)
        is_read_here = not self.settings.workers and isinstance(slot.indices, TimedIndices)
        return slot.indices.read() if is_read_here else slot.indices

    def load(self) -> Any:
        """Return the next batch, also if that raises an error after the batch was taken (`returned` shows it)."""
        try:
            return next(self.iterator)
        finally:
            if self._training:
                self._random, self._training = swap_random_states(self._training), ()

    @property
    def returned(self) -> int:
        """Batches that torch regards as returned; an error such as a timeout leaves the next one to be returned."""
        return int(self.iterator._rcvd_idx) if self.settings.workers else self.last

    def plan(self, slot: Slot) -> None:
        """Let the group take a slot before all others."""
        slot.group = self
        self.planned.append(slot)

    def change(self, settings: WorkerSettings) -> None:
        """Use this many of the started workers, with another prefetch factor; the others are idle."""
        idle, iterator = range(self.settings.workers, settings.workers), self.iterator
        self.settings = settings
        iterator._prefetch_factor = max(settings.prefetch, iterator._prefetch_factor)  # torch checks the upper bound
        cycle = itertools.cycle(range(settings.workers))
        iterator._worker_queue_idx_cycle = itertools.chain([*idle] * settings.prefetch, cycle)
        for _ in range(settings.batches - self.pending):
            iterator._try_put_index()

    def restart(self, take: Callable[[WorkerGroup], Slot]) -> None:
        """Begin another epoch with the same workers; torch discards what they still load."""
        self.pending = sys.maxsize  # so that torch gets no indices yet
        iterator, timeout = self.iterator, self.iterator._timeout
        if not self.is_own:  # batches of the epoch before may still be loaded
            iterator._timeout = HANG_SECONDS
            if ended := [str(one.pid) for one in iterator._workers if not one.is_alive()]:
                raise RuntimeError(f"DataLoader worker (pid(s) {', '.join(ended)}) exited unexpectedly")
        self.iterator = iter(self.loader)  # type: ignore[arg-type]  # its workers live
        iterator._timeout = timeout
        self.pending, self.last, self.is_open, self._take = 0, -1, True, take
        self.change(self.settings)

    def rest(self) -> None:
        """Keep the workers for another epoch, and nothing of this one."""
        del self._take  # it holds the epoch, and that the user's loader
        self.planned.clear()

    def end(self) -> None:
        """End the workers, in a thread: torch waits up to five seconds for each of them."""
        ending = [self.loader, self.iterator]
        self.is_open, self.loader, self.iterator = False, None, None
        if not self.settings.workers or os.getpid() != self._process:  # in a child that the training has forked
            return
        if threading.main_thread().is_alive():  # at exit, multiprocessing ends them
            thread = threading.Thread(target=_shut_down, args=(ending,))  # no daemon: Python waits for it at exit
            _ENDING[thread] = ending
            try:
                thread.start()
            except RuntimeError:  # no thread is left
                _shut_down(ending, thread)
            except BaseException:  # Ctrl-C
                _ENDING.pop(thread, None)
                raise


def _shut_down(ending: list[Any], thread: threading.Thread | None = None) -> None:
    try:
        ending[1]._shutdown_workers()  # letting go of it is not enough: the traceback of an error may hold it
        for worker in ending[1]._workers:
            worker.kill()  # torch asks it to terminate, which a stopped process does not
            worker.join(END_SECONDS)
    finally:
        ending.clear()
        _ENDING.pop(thread or threading.current_thread(), None)


def wait_for_ending_workers() -> None:
    """Wait until workers that load nothing more have ended, so that new ones do not need memory at the same time."""
    deadline = time.monotonic() + END_SECONDS
    for thread in [one for one in list(_ENDING) if one.ident is not None]:
        thread.join(max(0.0, deadline - time.monotonic()))


def swap_random_states(states: tuple[Any, ...] | int) -> tuple[Any, ...]:
    """Set the random states of this process, to those of a worker if given its seed; return those before."""
    numpy = sys.modules.get("numpy.random")
    before = random.getstate(), torch.get_rng_state(), numpy and numpy.get_state()
    if isinstance(states, int):
        random.seed(states)
        torch.default_generator.manual_seed(states)
        if numpy:
            numpy.seed(torch_worker._generate_state(states, 0))
        return before
    random.setstate(states[0])
    torch.set_rng_state(states[1])
    if states[2]:  # numpy may have been imported since
        sys.modules["numpy.random"].set_state(states[2])
    return before


class GroupLoader(DataLoader[Any]):
    """A loader without torch's warning of more workers than CPUs.

    `warnings.catch_warnings` would have Python print all warnings of the script again.
    """

    def check_worker_number_rationality(self) -> None:
        """Accept any number."""


def find_start_method(loader: DataLoader[Any]) -> str:
    """Return the start method of a loader's workers."""
    method: str = getattr(loader.multiprocessing_context, "get_start_method", read_start_method_in_force)()
    return method


def list_workers() -> list[Any]:
    """Return the living workers of all groups; the training may have other child processes."""
    started = {worker for iterator in ITERATORS for worker in iterator._workers}
    return [one for one in multiprocessing.active_children() if one in started]


def _disown() -> None:
    """Keep a process that the training forks from ending our workers, and give it the handlers of signals."""
    _STARTING._at_fork_reinit()  # type: ignore[attr-defined]  # another thread may hold it, which the child has not
    while _DEFERRED:
        _restore_handlers()
    children: set[Any] = multiprocessing.process._children  # type: ignore[attr-defined]
    for iterator in ITERATORS:
        iterator._shutdown = True
        children.difference_update(iterator._workers)


os.register_at_fork(after_in_child=_disown)


@atexit.register
def _end_at_exit() -> None:
    """Have the workers of iterators that the script still holds end themselves, and so remove their files."""
    end_soon(list(ITERATORS), END_SECONDS)


def end_soon(iterators: list[Any], seconds: float = SOON_SECONDS) -> None:
    """Have workers end themselves after the batch that they load, and so remove their files; then end the others."""
    deadline = time.monotonic() + seconds
    iterators = [one for one in iterators if not one._shutdown]  # ended, or of the process that forked this one
    for iterator in iterators:
        iterator._workers_done_event.set()
        for number in range(len(iterator._workers)):
            with suppress(Exception):  # it has ended
                iterator._mark_worker_as_unavailable(number, shutdown=True)
    for worker in (one for iterator in iterators for one in iterator._workers):
        while worker.exitcode is None and time.monotonic() < deadline:  # `join` hangs if a worker closes its sentinel
            time.sleep(0.005)
    for worker in (one for iterator in iterators for one in iterator._workers):
        worker.terminate()


def _restore_handlers() -> None:
    for number, handler in (_DEFERRED.pop() if _DEFERRED else {}).items():
        signal.signal(number, handler)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Call Python handlers of signals afterwards: what they raise is lost in a fork, or taken for another error."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = signal.valid_signals() - {signal.SIGCHLD}  # for which torch sets a handler meanwhile
    handlers = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    received = list[int]()
    _DEFERRED.append(handlers)
    for number in handlers:
        signal.signal(number, lambda number, _: received.append(number))
    try:
        yield
    finally:
        _restore_handlers()
        for one in dict.fromkeys(received):
            signal.raise_signal(one)


@contextmanager
def start_quietly(*, is_own: bool) -> Iterator[bool]:
    """Start workers that collect no garbage before `start_worker`: its copy of our iterator would end our workers.

    torch does not learn the process ids of added workers. It would raise an error wherever the training is when one of
    them dies, at worst between taking a lock and releasing it. `next` still raises that error.
    """
    signals: Any = signal_handling
    with _STARTING:
        register, is_collecting = signals._set_worker_pids, gc.isenabled()
        gc.disable()
        try:
            if not is_own:
                signals._set_worker_pids = lambda key, _: register(key, ())
            yield is_collecting
        finally:
            if is_collecting:
                gc.enable()
            signals._set_worker_pids = register
