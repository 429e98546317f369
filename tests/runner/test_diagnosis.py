from __future__ import annotations

import pytest

from autotune.protocol.measurement import TrialKind
from autotune.protocol.messages import FailureReport
from autotune.runner.diagnosis import TrialFailure, advice_for, diagnose_error, diagnose_exit, diagnose_stall

# What torch 2.13 was seen to say on a CPU-only Linux machine.
NO_SPACE = (
    "RuntimeError: unable to allocate shared memory(shm) for file </torch_71_204_0>: No space left on device (28)"
)
NO_INODE = (
    "RuntimeError: unable to open shared memory object </torch_7_1_2> in read-write mode: No space left on device (28)"
)
BUS_ERROR = (
    "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's "
    "workers are out of shared memory. Please try to raise your shared memory limit."
)
NO_FILES = (
    "RuntimeError: Too many open files. Communication with the workers is no longer possible. Please increase the "
    "limit using `ulimit -n` in the shell or change the sharing strategy by calling "
    "`torch.multiprocessing.set_sharing_strategy('file_system')` at the beginning of your code"
)
NO_MEMORY = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)"
)
CAUGHT = "KeyError: Caught KeyError in DataLoader worker process 1.\nOriginal Traceback (most recent call last):\n"


def judge(error: str, details: str = "", *, on_device: bool = True) -> TrialFailure:
    return diagnose_error(FailureReport(where="trial", error=error, details=details, on_device=on_device))


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("shm_exhausted", NO_SPACE),
        ("shm_exhausted", NO_INODE),
        ("shm_exhausted", BUS_ERROR),
        ("too_many_files", NO_FILES),
        ("too_many_files", "OSError: [Errno 24] Too many open files"),
        ("too_many_files", "OSError: [Errno 24] Trop de fichiers ouverts"),
        ("out_of_memory", NO_MEMORY),
        ("out_of_memory", "MemoryError: "),
        ("out_of_memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
        ("out_of_memory", "torch.AcceleratorError: CUDA error: out of memory"),
        ("device_failed", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
        ("device_failed", "torch.AcceleratorError: CUDA error: device-side assert triggered"),
        ("device_failed", "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        ("device_lost", "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"),
        ("device_lost", "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
        ("device_lost", "RuntimeError: No CUDA GPUs are available"),
        ("workload_failed", "RuntimeError: CUDA error: invalid argument"),
        ("crashed", "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. "),
        ("crashed", "RuntimeError: DataLoader worker (pid 7) is killed by signal: Aborted. "),
        ("crashed", "RuntimeError: DataLoader worker (pid(s) 7, 8) exited unexpectedly"),
        (
            "crashed",
            "RuntimeError: DataLoader worker (pid 7) exited unexpectedly with exit code 3. Details are lost due to "
            "multiprocessing. Rerunning with num_workers=0 may give better error trace.",
        ),
        ("crashed", "ConnectionResetError: [Errno 104] Connection reset by peer"),
        ("workload_failed", CAUGHT + "KeyError: 'label'"),
        ("workload_failed", "RuntimeError: Caught BadError in DataLoader worker process 0."),
        ("workload_failed", "RuntimeError: stack expects each tensor to be equal size, but got [3] at entry 0"),
        ("workload_failed", "TypeError: default_collate: batch must contain tensors; found <class 'NoneType'>"),
        ("workload_failed", "RuntimeError: daemonic processes are not allowed to have children"),
        ("workload_failed", "FileNotFoundError: [Errno 2] No such file or directory"),
        ("workload_failed", "OSError: [Errno 28] No space left on device: '/scratch/cache'"),
    ],
)
def test_an_error_is_named_by_what_its_text_says(kind: TrialKind, error: str) -> None:
    assert judge(error).kind == kind


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: uncorrectable errors in block 7 of shard 3",
        "ValueError: sensor 4: bus error on the CAN interface",
        "KeyError: 'the robot has fallen off the bus'",
    ],
)
def test_words_of_the_users_own_are_no_symptom_of_the_machine(error: str) -> None:
    assert judge(error).kind == "workload_failed"
    assert diagnose_exit(1, error, on_device=True).kind == "crashed"


@pytest.mark.parametrize(
    "error",
    ["RuntimeError: No CUDA GPUs are available", "RuntimeError: CUDA error: uncorrectable ECC error encountered"],
)
def test_where_no_device_is_in_use_none_can_be_lost(error: str) -> None:
    assert judge(error, on_device=False).kind == "workload_failed"
    assert diagnose_exit(1, error).kind == "crashed"
    assert diagnose_exit(1, error, on_device=True).kind == "device_lost"


def test_a_tensor_that_cannot_be_opened_for_want_of_descriptors_is_no_want_of_shm() -> None:
    error = (
        "RuntimeError: unable to open shared memory object </torch_7_1_2> in read-write mode: Too many open files (24)"
    )
    assert judge(error).kind == "too_many_files"


def test_a_connection_that_the_users_own_dataset_lost_is_the_workloads_failure() -> None:
    error = "ConnectionResetError: Caught ConnectionResetError in DataLoader worker process 0.\nOriginal Traceback"
    assert judge(error).kind == "workload_failed"


def test_a_full_shm_is_recognised_without_the_number_of_the_error() -> None:
    assert judge(NO_SPACE.replace(" (28)", "").replace("No space left on device", "")).kind == "shm_exhausted"


def test_a_symptom_that_stands_only_in_the_traceback_counts() -> None:
    assert judge("RuntimeError: Caught RuntimeError in DataLoader worker process 0.", NO_SPACE).kind == "shm_exhausted"


@pytest.mark.parametrize(
    ("error", "advice"), [(NO_SPACE, "--shm-size"), (NO_FILES, "ulimit -n"), (NO_MEMORY, "--batch-size")]
)
def test_a_resource_that_ran_out_comes_with_the_next_step(error: str, advice: str) -> None:
    assert advice in judge(error).message


def test_an_error_of_the_users_code_is_quoted_by_its_last_line_and_keeps_its_traceback() -> None:
    death = judge(CAUGHT + "KeyError: 'label'\n", "the whole traceback")
    assert death.message == "raised KeyError: 'label'"
    assert death.details == "the whole traceback"


@pytest.mark.parametrize("error", ["", " \n\t\n"])
def test_an_error_without_words_is_still_put_into_a_sentence(error: str) -> None:
    assert judge(error).message == "raised an exception without a name"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-9, "SIGKILL (the kernel's out-of-memory killer does this)"),
        (-7, "killed by SIGBUS"),
        (-11, "killed by SIGSEGV"),
        (-62, "killed by signal 62"),
        (0, "exited with code 0 without a result"),
        (3, "exited with code 3 without a result"),
        (None, "closed its line"),
    ],
)
def test_a_silent_death_is_named_by_its_wait_status(status: int | None, words: str) -> None:
    death = diagnose_exit(status, "last words")
    assert death.kind == "crashed"
    assert words in death.message
    assert death.details == "last words"


@pytest.mark.parametrize(
    ("kind", "output"), [("shm_exhausted", NO_SPACE), ("too_many_files", NO_FILES), ("out_of_memory", NO_MEMORY)]
)
def test_a_silent_death_is_named_by_the_resource_its_output_complains_of(kind: TrialKind, output: str) -> None:
    assert diagnose_exit(-6, f"noise\n{output}\n").kind == kind


def test_a_lost_worker_in_the_output_does_not_hide_how_the_child_itself_died() -> None:
    death = diagnose_exit(-11, "ERROR: Unexpected segmentation fault encountered in worker.\x00\nConnectionResetError")
    assert "SIGSEGV" in death.message


def test_a_source_line_that_a_traceback_quotes_is_no_evidence() -> None:
    details = (
        'Traceback:\n  File "data.py", line 3, in load\n    except MemoryError as bus_error:  # Too many open files\n'
    )
    assert judge("ValueError: no label", f"{details}ValueError: no label").kind == "workload_failed"


def test_a_limit_or_an_amount_is_named_where_the_system_tells() -> None:
    assert "(limit " in judge(NO_FILES).message
    assert "it asked for 8.0 GiB more" in judge(NO_MEMORY).message
    assert "it asked for 2.00 GiB more" in judge("torch.OutOfMemoryError: Tried to allocate 2.00 GiB.").message


def test_memory_that_cannot_be_pinned_is_told_from_memory_of_the_device() -> None:
    error = "RuntimeError: Caught RuntimeError in pin memory thread for device 0.\nCUDA error: out of memory"
    death = judge(error)
    assert death.kind == "out_of_memory"
    assert "page-locked" in death.message
    assert "--set pin_memory=false" in death.message


def test_a_device_in_error_is_quoted_with_the_next_step() -> None:
    error = "torch.AcceleratorError: CUDA error: device-side assert triggered\nCUDA kernel errors may be reported later"
    message = judge(error).message
    assert "CUDA error: device-side assert triggered. An index out of range in the step does this" in message


def test_names_that_ran_out_are_not_blamed_on_the_size() -> None:
    assert "nr_inodes=" in judge(NO_INODE).message


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("shm_exhausted", "OSError: [Errno 30] Read-only file system"),
        ("workload_failed", "OSError: [Errno 30] Read-only file system: '/data/cache'"),
        ("too_many_files", "RuntimeError: received 0 items of ancdata"),
        ("stalled", "RuntimeError: DataLoader timed out after 3.0 seconds"),
        ("out_of_memory", "OSError: [Errno 12] Cannot allocate memory"),
        (
            "crashed",
            "FileNotFoundError: [Errno 2] No such file\nDataLoader worker (pid 7) exited unexpectedly with exit code 0",
        ),
    ],
)
def test_an_error_is_told_from_one_that_looks_like_it(kind: TrialKind, error: str) -> None:
    assert judge(error).kind == kind


def test_a_missing_socket_of_a_worker_is_told_from_a_missing_file_of_the_dataset() -> None:
    where = (
        '  File "multiprocessing/resource_sharer.py", line 57, in detach\n    with _resource_sharer.get_connection()\n'
    )
    assert judge("FileNotFoundError: [Errno 2] No such file or directory", where).kind == "crashed"


@pytest.mark.parametrize(
    ("ending", "advice"),
    [
        ("is killed by signal: Killed", "--max-workers"),
        ("is killed by signal: Segmentation fault", "Native code"),
        ("is killed by signal: Terminated", "told it to end"),
        ("exited unexpectedly with exit code 1", "could not be started"),
    ],
)
def test_a_lost_worker_is_named_by_the_most_telling_line_of_the_chain(ending: str, advice: str) -> None:
    error = "ConnectionResetError: [Errno 104] Connection reset by peer"
    message = judge(error, f"RuntimeError: DataLoader worker (pid 7) {ending}. \n{error}").message
    assert message.startswith(f"lost a worker process: DataLoader worker (pid 7) {ending}. ")
    assert advice in message


def test_what_the_processes_printed_tells_why_a_worker_is_lost() -> None:
    failed = FailureReport(where="trial", error="ConnectionResetError: [Errno 104] Connection reset by peer")
    output = (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm)."
    )
    death = diagnose_error(failed, ": 8.0 MiB used of 8.0 MiB", output)
    assert death.kind == "shm_exhausted"
    assert "8.0 MiB used of 8.0 MiB" in death.message
    assert output in death.details


def test_an_error_of_our_own_continues_the_sentence() -> None:
    error = "autotune.child.sample_checks.SampleCountError: ended an epoch after 5 of 16 batches. Do this instead"
    assert judge(error).message == "ended an epoch after 5 of 16 batches. Do this instead"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("RuntimeError: stack expects each tensor to be equal size, but got [3] at entry 0", "--collate"),
        ("TypeError: default_collate: batch must contain tensors; found <class 'NoneType'>", "--collate"),
        ("AttributeError: Can't pickle local object 'make.<locals>.<lambda>'", "imported by their names"),
        ("RuntimeError: Caught RuntimeError in pin memory thread for device 0.", "--set pin_memory=false"),
        ("RuntimeError: generator raised StopIteration", "ends an epoch without a word"),
        ("ValueError: no label", ""),
    ],
)
def test_a_common_error_comes_with_the_way_out(error: str, advice: str) -> None:
    assert advice in advice_for(error)
    assert bool(advice) == bool(advice_for(error))


@pytest.mark.parametrize(
    ("output", "evidence", "advice"),
    [
        ("TypeError: cannot pickle 'generator' object", "cannot pickle", "pytorch/pytorch#142884"),
        (NO_SPACE, "unable to allocate shared memory", "--shm-size"),
        ("OSError: AF_UNIX path too long", "AF_UNIX", "shorter one"),
        ("x.py:1: UserWarning: too many workers\n  check()", "", "--set multiprocessing_context=spawn"),
        ("", "", "--stall-time"),
    ],
)
def test_a_stall_is_explained_by_what_was_printed(output: str, evidence: str, advice: str) -> None:
    death = diagnose_stall("made no progress for 3.0 s (limit 3.0 s)", output)
    assert death.kind == "stalled"
    assert death.message.startswith("made no progress for 3.0 s (limit 3.0 s)")
    assert evidence in death.message
    assert ("last line of its output" in death.message) == bool(evidence)
    assert advice in death.message


def test_a_signal_that_nothing_else_sends_outweighs_what_was_printed() -> None:
    assert "SIGKILL" in diagnose_exit(-9, NO_FILES).message
    assert "8.0 MiB used" in diagnose_exit(-7, "", ": 8.0 MiB used of 8.0 MiB").message
