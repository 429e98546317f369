"""Forks the processes of trials from one that has imported torch and nothing of the user's.

Importing torch takes a fresh process a second and a half; a fork of one that has done so takes a tenth of it. What is
forked begins as an interpreter does that has just imported: no thread is alive, no device was touched, and the memory
is made its own, so that neither later copies nor its accounts differ from those of a process that was started.

Messages in, a packet each: `{"trial": {...}}` with two descriptors, the line to the tuner and the log; `{"wait": pid}`.
Messages out: `{}` once, when it is ready; `{"pid": pid}`; `{"status": status}`, as `os.wait` gives it. It exits with 5
where forking from it would not be safe.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import json
import os
import random
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NoReturn

from autotune.child.namespaces import die_with_parent
from autotune.protocol.process_spec import SandboxSpec
from autotune.system.processes import PAGE_BYTES, count_threads

MAX_ORDER_BYTES: Final = 2**20
UNSAFE: Final = 5  # exit code

RunTrial = Callable[[int, int, SandboxSpec, Callable[[], None]], NoReturn]
ENTRY_BYTES: Final = 8  # of /proc/self/pagemap, for each page
PRESENT: Final = 1 << 63
OF_FILE: Final = 1 << 61  # not written to so far; its copy would be memory that a process of its own does not have
MADV_POPULATE_WRITE: Final = 23  # since Linux 5.14; earlier kernels refuse, and copy in their own time
_libc = ctypes.CDLL(None, use_errno=True)


def serve_forks(connection: socket.socket, tuner: int, run_trial: RunTrial) -> NoReturn:
    """Fork a process for each order until the tuner closes the line.

    Each goes on in `run_trial`, which is given the descriptor of its line, its parent, its sandbox, and what to call in
    the process that is left in the sandbox.
    """
    die_with_parent()
    if os.getppid() != tuner:
        os._exit(3)
    _import_what_trials_need()
    if not _is_safe():
        os._exit(UNSAFE)
    connection.send(b"{}")
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, MAX_ORDER_BYTES, 2)
        if not message:
            os._exit(0)
        order = json.loads(message)
        if "wait" in order:
            connection.send(json.dumps({"status": os.waitpid(order["wait"], 0)[1]}).encode())
            continue
        server = os.getpid()
        pid = _fork()
        if not pid:
            connection.close()
            _become_trial(order["trial"], *descriptors)
            run_trial(descriptors[0], server, SandboxSpec(**order["trial"]["sandbox"]), unshare_cow_pages)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(json.dumps({"pid": pid}).encode())


def _import_what_trials_need() -> None:
    """Import what every trial does, dltune's own part first: that is frozen out of garbage collection."""
    import autotune.child.server

    gc.freeze()  # as in a process that is started
    import autotune.child.probe
    import autotune.child.step
    import autotune.child.trial
    import autotune.child.workload  # noqa: F401


def _fork() -> int:
    with warnings.catch_warnings():  # Python counts threads before those that know of forks have ended
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _is_safe() -> bool:
    """Fork once for nothing, and tell whether it could have gone on.

    Threads that know of forks, such as OpenBLAS's, have let themselves be ended by it; others are left. And CUDA cannot
    be used in a process whose parent has touched it.
    """
    import torch

    pid = _fork()
    if not pid:
        os._exit(bool(torch.cuda._is_in_bad_fork()))
    return os.waitpid(pid, 0)[1] == 0 and count_threads() == 1


def _become_trial(trial: dict[str, Any], line: int, log: int) -> None:
    """Be what a process that is started would be: its session, folder, environment, output and chances."""
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.set_inheritable(line, False)
    os.chdir(trial["working_dir"])
    os.environ.update(trial["environment"])
    tempfile.tempdir = None
    reseed_rngs()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def unshare_cow_pages() -> None:
    """Copy every page in use that may be written to; what the kernel refuses stays shared."""
    with contextlib.suppress(OSError):
        for start, pages in list(_list_pages_in_use()):
            _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(pages * PAGE_BYTES), MADV_POPULATE_WRITE)


def _list_pages_in_use() -> Iterator[tuple[int, int]]:
    """List runs of pages, each by its address and length, of the private memory that may be written to."""
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for start, end in _list_private_ranges():
            pagemap.seek(start // PAGE_BYTES * ENTRY_BYTES)
            entries = array.array("Q", pagemap.read((end - start) // PAGE_BYTES * ENTRY_BYTES))
            place = start
            for is_own, run in groupby(entries, key=lambda entry: entry & (PRESENT | OF_FILE) == PRESENT):
                pages = sum(1 for _ in run)
                if is_own:
                    yield place, pages
                place += pages * PAGE_BYTES


def _list_private_ranges() -> list[tuple[int, int]]:
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, *_ = line.split()
        if permissions == "rw-p":
            start, end = (int(address, 16) for address in addresses.split("-"))
            ranges.append((start, end))
    return ranges


def reseed_rngs() -> None:
    """Seed Python's generator and numpy's global one from the system; torch's begins alike in every process."""
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
