"""The sandbox around a trial, entered by real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from autotune.protocol.process_spec import SandboxSpec
from autotune.runner.sandbox import SandboxSupport, detect_sandbox

PRIVATE = SandboxSpec(None, 2**20, 64, own_pids=True)

pytestmark = pytest.mark.skipif(not detect_sandbox().own_pids, reason=f"not here: {detect_sandbox().missing}")


def run_inside(sandbox: SandboxSpec, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a sandbox, as the first process in it."""
    enter = f"enter_sandbox(SandboxSpec.from_json({sandbox.to_json()!r}))"
    program = f"from autotune.child.namespaces import SandboxSpec, enter_sandbox; {enter}\n{code}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)


def test_what_lies_in_a_private_shm_is_neither_seen_outside_nor_left_behind() -> None:
    done = run_inside(PRIVATE, "import os; open('/dev/shm/torch_mine', 'w').write('x'); print(os.listdir('/dev/shm'))")
    assert done.stdout.strip() == "['torch_mine']"
    assert not os.path.exists("/dev/shm/torch_mine")  # noqa: PTH110  # one short look


def test_the_kernel_holds_a_private_shm_to_its_size() -> None:
    done = run_inside(PRIVATE, "open('/dev/shm/x', 'wb').write(bytes(2**21))")
    assert "No space left on device" in done.stderr


def test_processes_are_counted_anew_and_see_none_but_their_own() -> None:
    code = "import os; print(sorted(int(name) for name in os.listdir('/proc') if name.isdigit()), os.getpid())"
    assert run_inside(PRIVATE, code).stdout.strip() == "[1, 2] 2"


@pytest.mark.parametrize("status", [0, 3, 137])
def test_an_exit_code_comes_through(status: int) -> None:
    assert run_inside(PRIVATE, f"import os; os._exit({status})").returncode == status


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_death_by_signal_comes_through(number: signal.Signals) -> None:
    assert run_inside(PRIVATE, f"import os; os.kill(os.getpid(), {int(number)})").returncode == -number


def test_whatever_a_process_forked_ends_with_it() -> None:
    code = (
        "import os, subprocess, sys\n"
        "out = os.dup(1)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True, env={})\n"
        "os._exit(0)"
    )
    assert run_inside(PRIVATE, code).returncode == 0  # it would wait for the grandchild, which holds the pipe


def test_a_signal_to_the_group_does_not_reach_those_who_wait() -> None:
    code = "import os, signal; signal.signal(15, signal.SIG_IGN); os.killpg(0, 15); os._exit(7)"
    assert run_inside(PRIVATE, code).returncode == 7


def test_the_user_stays_who_they_are() -> None:
    done = run_inside(PRIVATE, "import os; print(os.getuid(), os.getgid())")
    assert done.stdout.split() == [str(os.getuid()), str(os.getgid())]


def test_an_empty_sandbox_changes_nothing() -> None:
    assert run_inside(SandboxSpec(), "import os; print(os.getppid())").stdout.strip() == str(os.getpid())


def test_a_sandbox_travels_as_json() -> None:
    sandbox = SandboxSpec("/sys/fs/cgroup/x", 5, 6, own_pids=True)
    assert SandboxSpec.from_json(sandbox.to_json()) == sandbox
    assert json.loads(sandbox.to_json())["shm_bytes"] == 5


def test_a_sandbox_that_cannot_be_set_up_is_an_error_with_its_place() -> None:
    done = run_inside(SandboxSpec(cgroup="/nowhere"), "print('went on')")
    assert "/nowhere/cgroup.procs" in done.stderr
    assert done.stdout == ""


def test_what_this_machine_allows_is_found_out_once() -> None:
    assert detect_sandbox() is detect_sandbox()
    assert SandboxSupport() != detect_sandbox()
