"""Puts a sandbox around the process it runs in: a memory cgroup, a /dev/shm and process numbers of its own.

It runs in a trial's process before anything of the user's is imported, and needs the standard library only.
`python -m autotune.child.namespaces SANDBOX` enters it, looks whether it holds, and exits with 0 or the reason.

What it is for: a private /dev/shm tells exactly what the trial uses of it and vanishes with the trial; in a
process namespace nothing outlives its init, whatever it forks, ignores or renames; a cgroup holds the trial to its
memory, and the kernel's out-of-memory killer inside it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Final, NoReturn

from autotune.protocol.process_spec import SandboxSpec

CLONE_NEWNS: Final = 0x0002_0000
CLONE_NEWUSER: Final = 0x1000_0000
CLONE_NEWPID: Final = 0x2000_0000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x2, 0x4, 0x8
MS_REC, MS_SLAVE = 0x4000, 0x8_0000
PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
STATUS_BYTES: Final = 4

_libc = ctypes.CDLL(None, use_errno=True)


def enter_sandbox(sandbox: SandboxSpec, descriptor: int | None = None) -> None:
    """Put a sandbox around this process, or raise an OSError where the system does not allow it.

    With a process namespace the caller goes on in a grandchild, which alone keeps `descriptor` open: this process and
    the new init only wait, and end as the grandchild ends.
    """
    if sandbox.cgroup is not None:
        (Path(sandbox.cgroup) / "cgroup.procs").write_text("0")
    if sandbox.shm_bytes:
        _enter_namespaces(sandbox.own_pids)
        options = f"mode=1777,size={sandbox.shm_bytes},nr_inodes={sandbox.shm_names}"
        _mount("tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV, options)
    if sandbox.own_pids:
        run_in_pid_namespace(descriptor)


def _enter_namespaces(own_pids: bool) -> None:
    """Leave the mounts, and with `own_pids` the process numbers, of the rest of the machine."""
    flags = CLONE_NEWNS | (CLONE_NEWPID if own_pids else 0)
    if _libc.unshare(flags):  # not privileged: a user namespace, in which everybody stays who they are
        user, group = os.geteuid(), os.getegid()
        _call("unshare", _libc.unshare(flags | CLONE_NEWUSER))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _call("mount /", _libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None))


def _mount(kind: str, place: str, flags: int, options: str = "") -> None:
    name = kind.encode()
    _call(f"mount {place}", _libc.mount(name, place.encode(), name, flags, options.encode()))


def _call(what: str, result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def run_in_pid_namespace(descriptor: int | None) -> None:
    """Return in the first process after init; this one and init wait for it."""
    die_with_parent()  # again: a new user namespace may have cleared it
    ours, theirs = os.pipe()
    init = os.fork()
    if init:
        os.close(theirs)
        _close(descriptor)
        _end_after(init, ours)
    die_with_parent()
    os.close(ours)
    _mount("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    main = os.fork()
    if main:
        _close(descriptor)
        run_init(main, theirs)
    os.close(theirs)
    os.setsid()  # a signal to its group must not reach those that wait


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that forked it ends, or the thread of it that did."""
    signal_at_parents_end(signal.SIGKILL)


def signal_at_parents_end(number: signal.Signals) -> None:
    """Have the kernel signal this process when the one that forked it ends, or the thread of it that did."""
    _libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of all processes below this one whose own parents end."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def run_init(main: int, report: int) -> NoReturn:
    """Be init: reap whoever ends, and leave when the first child does, which ends all others."""
    while True:
        pid, status = os.wait()
        if pid == main:
            os.write(report, status.to_bytes(STATUS_BYTES, "little"))
            os._exit(0)


def _end_after(init: int, report: int) -> NoReturn:
    """Wait for init, then end as the process under it did: init itself cannot die by a signal."""
    told = os.read(report, STATUS_BYTES)
    _, status = os.waitpid(init, 0)
    exit_like(int.from_bytes(told, "little") if told else status)


def exit_like(status: int) -> NoReturn:
    """End this process as another one did, by its status from `os.wait`."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)


def _check(sandbox: SandboxSpec) -> None:
    """Raise OSError unless the sandbox holds."""
    status = os.statvfs("/dev/shm")
    if sandbox.shm_bytes and status.f_blocks * status.f_frsize > sandbox.shm_bytes + status.f_frsize:
        raise OSError("the private /dev/shm is not in force")
    if sandbox.own_pids and Path("/proc/self").readlink() != Path(str(os.getpid())):
        raise OSError("/proc does not show the process namespace")


def main() -> None:
    """Try the sandbox that the command line describes."""
    try:
        sandbox = SandboxSpec.from_json(sys.argv[1])
        enter_sandbox(sandbox)
        _check(sandbox)
    except OSError as error:
        sys.exit(error.strerror or str(error))


if __name__ == "__main__":
    main()
