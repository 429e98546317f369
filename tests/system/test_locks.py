from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autotune.system.locks import LockedError, hold

HOLDER = """
import sys, time
from pathlib import Path
from autotune.system.locks import hold
with hold(Path(sys.argv[1]), 10.0):
    print("held", flush=True)
    sys.stdin.readline()
"""
COUNTER = """
import sys
from pathlib import Path
from autotune.system.locks import hold
path = Path(sys.argv[1])
for _ in range(50):
    with hold(path.with_name("lock"), 60.0):
        path.write_text(str(int(path.read_text()) + 1))
"""


@contextmanager
def start_holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Have another process hold a lock until it is told to let go."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


def test_a_lock_that_another_process_holds_is_refused_with_its_number(tmp_path: Path) -> None:
    with start_holder(tmp_path / "lock") as other:
        with pytest.raises(LockedError) as caught, hold(tmp_path / "lock"):
            pass
        assert caught.value.holder == str(other.pid)
        other.communicate("\n")


def test_a_lock_is_free_again_when_its_holder_lets_go_and_leaves_no_file(tmp_path: Path) -> None:
    with start_holder(tmp_path / "lock") as other:
        other.communicate("\n")
    assert list(tmp_path.iterdir()) == []
    with hold(tmp_path / "lock"):
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_process_that_was_killed_blocks_nobody(tmp_path: Path) -> None:
    with start_holder(tmp_path / "lock") as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
    with hold(tmp_path / "lock"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_whoever_waits_gets_the_lock_when_it_is_let_go(tmp_path: Path) -> None:
    with start_holder(tmp_path / "lock") as other:
        assert other.stdin is not None
        other.stdin.close()
        with hold(tmp_path / "lock", 10.0):
            pass


def test_an_error_inside_lets_go_of_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), hold(tmp_path / "lock"):
        raise ValueError("inside")
    with hold(tmp_path / "lock"):
        pass


def test_a_lock_whose_file_was_deleted_does_not_take_the_next_ones_file_away(tmp_path: Path) -> None:
    with hold(tmp_path / "lock"):
        (tmp_path / "lock").unlink()
        (tmp_path / "lock").write_text("of somebody else")
    assert (tmp_path / "lock").read_text() == "of somebody else"


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refuse)
    with hold(tmp_path / "lock"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_no_reason_to_go_on_without_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(OSError, match="Read-only file system"), hold(tmp_path / "lock"):
        pass


def test_a_full_disk_keeps_nobody_from_a_lock_and_no_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.pwrite", refuse)
    with hold(tmp_path / "lock"), pytest.raises(LockedError, match="process unknown"), hold(tmp_path / "lock"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_of_processes_that_take_turns_none_works_beside_another(tmp_path: Path) -> None:
    """Removing the file of a lock while others wait for it must not give two of them the lock."""
    count = tmp_path / "count"
    count.write_text("0")
    workers = [subprocess.Popen([sys.executable, "-c", COUNTER, str(count)]) for _ in range(4)]
    assert [worker.wait() for worker in workers] == [0, 0, 0, 0]
    assert count.read_text() == "200"
    assert [path.name for path in tmp_path.iterdir()] == ["count"]
