"""Processes as /proc describes them: descendants, threads, memory, tensors in /dev/shm, and what they leave.

A file that cannot be read counts as empty. Folders are parameters for tests. Only the standard library is imported.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
CGROUP: Final = Path("/sys/fs/cgroup")
SHM: Final = Path("/dev/shm")
TRIAL_VARIABLE: Final = "DLTUNE_TRIAL"  # in the environment of every process of a trial: its temporary folder
STACK_SIGNAL: Final = signal.SIGRTMIN + 10  # at which a process of a trial dumps its stacks; no other code uses it
PF_EXITING: Final = 4  # a flag in /proc/PID/stat
EMPTY_SECONDS: Final = 0.5  # a new segment of shared memory has no content for some microseconds
LOG_FILE: Final = ".dltune-log"  # of a trial, in its temporary folder
STACKS_FILE: Final = ".dltune-stacks"
THREADS_AWARE_OF_FORKS: Final = ("jemalloc_bg_thd",)  # of pyarrow: jemalloc ends it in the child, and starts it again

RECEIVED_BYTES: Final = struct.Struct("128xQ")  # `tcpi_bytes_received` of the kernel's struct tcp_info
SENT_BYTES: Final = struct.Struct("200xQ")  # `tcpi_bytes_sent`, since Linux 4.19
_SEGMENT: Final = re.compile(rf"{SHM}/(torch_\d+_\d+(?:_\d+)?)")  # not `torch_train.npy`, a file of the user

_libc = ctypes.CDLL(None, use_errno=True)


def read_text(path: Path) -> str:
    """Read a file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def list_folder(path: Path) -> list[Path]:
    """List a folder; empty if it cannot be read."""
    try:
        return list(path.iterdir())
    except OSError:
        return []


def read_numbers(path: Path) -> dict[str, int]:
    """Read a file of lines such as `nr_periods 12`."""
    pairs = (line.split() for line in read_text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isascii() and pair[1].isdigit()}


def read_field(path: Path, name: str) -> str | None:
    """Return a value of a file of lines such as `MemTotal:  12 kB`; None if it is missing or empty."""
    pairs = (line.partition(":") for line in read_text(path).splitlines())
    return next((value.strip() for key, _, value in pairs if key.strip() == name), None) or None


def list_tree(pid: int, proc: Path = PROC) -> list[int]:
    """List a process and its living descendants, the root first."""
    found = [pid]
    if not (proc / str(pid) / "task" / str(pid) / "children").exists():  # a kernel without CONFIG_PROC_CHILDREN
        children = _list_children(proc)
        for parent in found:
            found += children[parent]
        return found
    for parent in found:
        for thread in list_folder(proc / str(parent) / "task"):
            found += map(int, read_text(thread / "children").split())
    return found


def _list_children(proc: Path) -> defaultdict[int, list[int]]:
    """List the children of each process; reading all processes takes much longer than files of children."""
    children = defaultdict[int, list[int]](list)
    for folder in list_folder(proc):
        if folder.name.isdigit() and (fields := _read_stat(int(folder.name), proc)):
            children[int(fields[1])].append(int(folder.name))
    return children


def _read_stat(pid: int, proc: Path) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; the command before them may contain anything."""
    return read_text(proc / str(pid) / "stat").rpartition(")")[2].split()


def count_threads() -> int:
    """Count the threads of this process, including those of native libraries that forks disturb; 0 if unknown."""
    names = (read_text(thread / "comm").strip() for thread in list_folder(PROC / "self" / "task"))
    return sum(name not in THREADS_AWARE_OF_FORKS for name in names)


def is_cleaner(pid: int, proc: Path = PROC) -> bool:
    """Return whether a process removes the names that dead processes leave in /dev/shm."""
    command = read_text(proc / str(pid) / "cmdline")
    return any(cleaner in command for cleaner in ("torch_shm_manager", "resource_tracker import main"))  # also loky's


def is_exiting(pid: int, proc: Path = PROC) -> bool:
    """Return whether the kernel is ending a process, which may still free memory and release devices."""
    fields = _read_stat(pid, proc)
    return len(fields) > 6 and bool(int(fields[6]) & PF_EXITING)


def read_smaps(pid: int | str, proc: Path = PROC) -> Counter[str]:
    """Return the sizes in a process's `smaps_rollup`, in bytes; empty if it has ended. Takes about 2 ms."""
    lines = read_text(proc / str(pid) / "smaps_rollup").splitlines()
    pairs = (line.split() for line in lines if line.endswith("kB"))
    return Counter({key.rstrip(":"): int(size) * 1024 for key, size, _ in pairs})


def measure_pss(pids: Iterable[int], proc: Path = PROC) -> int:
    """Return the exact memory of processes in bytes, with the shared memory that they have mapped.

    Pages of mapped files are left out: the kernel reclaims them, as it does other file cache.
    """
    sizes = [read_smaps(pid, proc) for pid in pids]
    return sum(size["Pss_Anon"] + size["Pss_Shmem"] if "Pss_Anon" in size else size["Pss"] for size in sizes)


def memory_upper_bound(pids: Iterable[int | str], proc: Path = PROC) -> int:
    """Return a cheap upper bound of the memory of processes without files: pages shared by a fork count once each.

    Shared memory counts once for all. It is also the kind of memory that CUDA pins, in the training process.
    """
    lines = [read_text(proc / str(pid) / "status").splitlines() for pid in pids]
    sizes = [{key: int(size) for key, size, _ in (one.split() for one in of if one.startswith("Rss"))} for of in lines]
    private_kib, shared_kib = ([one.get(key, 0) for one in sizes] for key in ("RssAnon:", "RssShmem:"))
    return 1024 * (sum(private_kib) + max(shared_kib, default=0))


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes, some of which may have ended."""
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread ends that started it."""
    _libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


def become_subreaper() -> None:
    """Make this process the parent of all its descendants whose own parents end."""
    _libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


# Tensors in /dev/shm. Process IDs repeat across containers that share it (`--ipc=host`), and torch's names contain
# nothing else: a name is removed only if a process of this run has mapped or opened it, or if it has no content.


def list_used_segments(pid: int | str = "self", proc: Path = PROC) -> set[str]:
    """Return torch's names in /dev/shm that a process has mapped or opened."""
    lines = (line for line in read_text(proc / str(pid) / "maps").splitlines() if "/torch_" in line)
    paths = [line.split(maxsplit=5)[5] for line in lines]
    paths += map(_read_link, list_folder(proc / str(pid) / "fd"))
    found = (_SEGMENT.fullmatch(path.removesuffix(" (deleted)")) for path in paths)
    return {one[1] for one in found if one}


def _read_link(path: Path) -> str:
    with suppress(OSError):
        return str(path.readlink())
    return ""


def list_empty_segments(pids: Collection[int], shm: Path = SHM) -> set[str]:
    """Return names of these processes that stay without content: torch leaves them where /dev/shm is full."""

    def is_empty(name: str) -> bool:
        with suppress(OSError):
            return not (shm / name).stat().st_blocks
        return False

    found = set(filter(is_empty, list_names(pids, shm=shm)))
    if found:
        time.sleep(EMPTY_SECONDS)  # a process of another container may have such a name, too
    return set(filter(is_empty, found))


def list_used_semaphores(pids: Iterable[int]) -> set[str]:
    """Return multiprocessing's names of semaphores in /dev/shm that these processes have mapped.

    Python removes a name at once, unless the process is killed before; a mapping has another name, that of sem_open.
    """
    lines = (line for pid in pids for line in read_text(PROC / str(pid) / "maps").splitlines() if f"{SHM}/sem." in line)
    inodes, found = {int(line.split(maxsplit=5)[4]) for line in lines}, set()
    for path in list_folder(SHM):
        with suppress(OSError):
            if path.name.startswith("sem.mp-") and path.stat().st_ino in inodes:
                found.add(path.name)
    return found


def remove_segments(names: Iterable[str], shm: Path = SHM) -> None:
    """Remove names in /dev/shm."""
    for name in names:
        with suppress(OSError):
            (shm / name).unlink()


def remove_folder(path: Path) -> None:
    """Remove a folder, also if folders in it are read-only; what cannot be removed stays."""
    try:
        shutil.rmtree(path, ignore_errors=True)
    except RecursionError:  # up to Python 3.12, if folders are nested too deeply
        with suppress(OSError):
            subprocess.run(["/bin/rm", "-rf", "--", path], check=False, stderr=subprocess.DEVNULL)
    for parent, folders, _ in os.walk(path):  # what is left
        for folder in (Path(parent, name) for name in folders):
            with suppress(OSError):
                if not folder.is_symlink():
                    folder.chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)


def measure_segments(pids: Iterable[int], names: Iterable[str], shm: Path = SHM) -> tuple[int, int]:
    """Return the bytes of files in /dev/shm that are mapped, open or named, and of those that are not mapped."""
    mapped: dict[int, int] = {}
    others: dict[int, int] = {}
    paths = [shm / name for name in names]
    for pid in pids:
        paths += [one for one in list_folder(PROC / str(pid) / "fd") if _read_link(one).startswith(f"{shm}/")]
        for line in read_text(PROC / str(pid) / "maps").splitlines():
            addresses, _, _, _, inode, *rest = line.split(maxsplit=5)
            if rest and rest[0].startswith(f"{shm}/"):
                first, last = (int(address, 16) for address in addresses.split("-"))
                mapped[int(inode)] = max(mapped.get(int(inode), 0), last - first)
    for path in paths:
        with suppress(OSError):
            status = path.stat()
            if status.st_dev == shm.stat().st_dev:
                others[status.st_ino] = status.st_blocks * 512
    unmapped = sum(size for inode, size in others.items() if inode not in mapped)
    return sum(others.get(inode, size) for inode, size in mapped.items()) + unmapped, unmapped


def list_names(pids: Collection[int], shm: Path = SHM) -> set[str]:
    """Return the names of the tensors of these processes in /dev/shm."""
    prefixes = tuple(f"torch_{pid}_" for pid in pids)
    return {path.name for path in list_folder(shm) if path.name.startswith(prefixes)}


def read_file_positions() -> dict[tuple[str, str], int]:
    """Return the positions of the files that this process has open to read, but stdin, by descriptor and path.

    -1 is the end of a file that is also open to write, such as a log.
    """
    found = {}
    for descriptor in list_folder(PROC / "self" / "fd"):
        if descriptor.name in ("0", "1", "2"):
            continue
        with suppress(OSError):
            path, info = _read_link(descriptor), PROC / "self" / "fdinfo" / descriptor.name
            flags = int(read_field(info, "flags") or "1", 8)
            is_read = flags & os.O_ACCMODE != os.O_WRONLY and not flags & os.O_APPEND
            status, position = descriptor.stat(), int(read_field(info, "pos") or "0")
            is_at_end = flags & os.O_ACCMODE == os.O_RDWR and position == status.st_size
            is_file = stat.S_ISREG(status.st_mode)  # which may have no name any more
            if is_file and is_read and not path.startswith(("/proc", "/sys")):
                found[descriptor.name, path] = -1 if is_at_end else position
    return found


def _copy_socket(descriptor: str) -> socket.socket:
    """Copy an open socket. Given this type, Python does not apply a default timeout, which would change both."""
    return socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK, fileno=os.dup(int(descriptor)))


def read_tcp_bytes(field: struct.Struct) -> dict[tuple[str, str], int]:
    """Return the bytes so far of the TCP connections of this process, such as SENT_BYTES, by descriptor and peer."""
    found = {}
    for descriptor in list_folder(PROC / "self" / "fd"):
        if _read_link(descriptor).startswith("socket:"):
            with suppress(OSError, struct.error), _copy_socket(descriptor.name) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    host, port, *_ = connection.getpeername()
                    state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, field.size)
                    found[descriptor.name, f"{host}:{port}"] = field.unpack(state)[0]
    return found
