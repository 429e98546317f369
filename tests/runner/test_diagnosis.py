from __future__ import annotations

from typing import Any

import pytest

from autotune.errors import UsageError, WorkloadError
from autotune.protocol.measurement import TrialResult, TrialStatus
from autotune.protocol.messages import FailureReport, ReadyReport, Report, Stage, TrialReport, TrialRequest
from autotune.request import WorkloadRequest
from autotune.runner.diagnosis import (
    TrialFailure,
    diagnose_error,
    diagnose_exit,
    diagnose_stall,
    make_result,
    start_error,
)
from autotune.runner.hangs import HangReport
from autotune.runner.resources import ResourceUsage
from tests.builders import GIB, make_config, make_limits, make_measurement_of

# Texts of torch 2.13 on a CPU-only Linux machine
NO_SPACE = "RuntimeError: unable to allocate shared memory(shm) for file </torch_7_2_0>: No space left on device (28)"
NO_INODE = (
    "RuntimeError: unable to open shared memory object </torch_7> in read-write mode: No space left on device (28)"
)
BUS_ERROR = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's "
NO_FILES = "RuntimeError: Too many open files. Communication with the workers is no longer possible. Please increase"
NO_MEMORY = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)"
)
NO_PINNED_MEMORY = "RuntimeError: Caught RuntimeError in pin memory thread for device 0.\nCUDA error: out of memory"
PINNING_FRAME = '  File "/env/torch/utils/data/_utils/pin_memory.py", line 57, in pin_memory\n    return data\n'
ILLEGAL = "torch.AcceleratorError: CUDA error: device-side assert triggered\nCUDA kernel errors may be reported later"
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
CAUGHT = "KeyError: Caught KeyError in DataLoader worker process 1.\nOriginal Traceback (most recent call last):\n"
SOURCE_LINE = '  File "data.py", line 3, in load\n    except MemoryError as bus_error:  # Too many open files\n'
EXIT_ZERO = "DataLoader worker (pid 7) exited unexpectedly with exit code 0"


def judge(error: str, details: str = "", *, on_device: bool = True) -> TrialFailure:
    return diagnose_error(FailureReport(stage="trial", error=error, details=details, on_device=on_device))


DIAGNOSES: dict[TrialStatus, list[tuple[str, str]]] = {
    "shm_exhausted": [
        (NO_SPACE, "--shm-size"),
        (NO_INODE, "nr_inodes="),
        (BUS_ERROR, "SIGBUS"),
        ("OSError: [Errno 30] Read-only file system", "read-only"),
    ],
    "too_many_files": [
        (NO_FILES, "(limit "),
        ("OSError: [Errno 24] Trop de fichiers ouverts", "ulimit -n"),
        ("RuntimeError: unable to open shared memory object </torch_7>: Too many open files (24)", ""),
    ],
    "out_of_memory": [
        (NO_MEMORY, "it asked for 8.0 GiB more. Use a smaller --batch-size"),
        ("OSError: [Errno 12] Cannot allocate memory", ""),
        ("RuntimeError: can't start new thread", "reached the limit of processes and threads. Raise it (ulimit -u"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "2.00 GiB more"),
        ("torch.AcceleratorError: CUDA error: out of memory", "device memory"),
        ("RuntimeError: CUDA driver error: out of memory", "device memory"),
        ("RuntimeError: Triton Error [CUDA]: out of memory", "device memory"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "device memory"),
        ('RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "CUDACachingAllocator.cpp":1165', "device memory"),
        (NO_PINNED_MEMORY, "page-locked memory. Use fewer --max-workers"),
        (f"torch.AcceleratorError: CUDA error: out of memory\n{PINNING_FRAME}", "page-locked memory"),
    ],
    "device_failed": [
        (ILLEGAL, "CUDA error: device-side assert triggered. An index out of range in the step"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", ""),
        ("RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered", "only a new process clears"),
        ("RuntimeError: CUDA driver error: unspecified launch failure", "only a new process clears"),
        ("torch.AcceleratorError: CUDA error: hardware stack error", "only a new process clears"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "a build of torch"),
    ],
    "device_lost": [
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", "nvidia-smi"),
        ("RuntimeError: No CUDA GPUs are available", ""),
    ],
    "stalled": [("RuntimeError: DataLoader timed out after 3.0 seconds", "the DataLoader's own timeout=")],
    "crashed": [
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. ", ""),
        ("RuntimeError: DataLoader worker (pid(s) 7, 8) exited unexpectedly", ""),
        (RESET, "It was killed"),
        (f"FileNotFoundError: [Errno 2] No such file\n{EXIT_ZERO}", "Code of the dataset ended it"),
    ],
    "workload_failed": [
        (CAUGHT + "KeyError: 'label'", ""),
        (f"{RESET[:20]}: Caught {RESET[:20]} in DataLoader worker process 0.\nOriginal Traceback", ""),
        ("RuntimeError: CUDA error: invalid argument", ""),
        ("RuntimeError: CUDA error: invalid device ordinal", ""),
        ("RuntimeError: CUDA error: operation not permitted when stream is capturing", ""),
        (CAUGHT + "RuntimeError: CUDA error: initialization error", "multiprocessing_context=spawn"),
        ("OSError: [Errno 28] No space left on device: '/scratch/cache'", ""),
        ("OSError: [Errno 28] No space left on device: '/home/me/.cache/torch_extensions/x.so'", ""),
        ("OSError: [Errno 30] Read-only file system: '/data/cache'", ""),
        ("ValueError: uncorrectable errors in block 7 of shard 3", ""),
        ("RuntimeError: stack expects each tensor to be equal size, but got [3]", "collate_fn=..."),
        (
            "TypeError: ByStep.set_epoch() missing 1 required positional argument: 'step'",
            "dltune calls set_epoch(epoch), as trainers do: its other parameters need defaults",
        ),
        ("TypeError: default_collate: batch must contain tensors; found <class 'int'>", "collate_fn=..."),
        ("AttributeError: Can't pickle local object 'make.<locals>.<lambda>'", "by their names"),
        ("AttributeError: Can't get local object 'make.<locals>.<lambda>'", "by their names"),
        ("RuntimeError: Caught RuntimeError in pin memory thread for device 0.", "pin_memory=false"),
        ("RuntimeError: generator raised StopIteration", "silently ends an epoch"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "error", "message"), [(kind, *case) for kind, cases in DIAGNOSES.items() for case in cases]
)
def test_an_error_is_diagnosed_by_its_text_with_the_next_step(kind: TrialStatus, error: str, message: str) -> None:
    found = judge(error, error)
    assert found.status == kind
    assert message in found.message


def test_a_traceback_is_evidence_except_for_its_source_lines() -> None:
    assert (
        judge("RuntimeError: Caught RuntimeError in DataLoader worker process 0.", NO_SPACE).status == "shm_exhausted"
    )
    assert judge("ValueError: no label", f"Traceback:\n{SOURCE_LINE}ValueError: no label").status == "workload_failed"


@pytest.mark.parametrize("error", [case[0] for case in DIAGNOSES["device_lost"]])
def test_a_trial_without_a_device_cannot_lose_one(error: str) -> None:
    assert judge(error, on_device=False).status == "workload_failed"
    assert diagnose_exit(1, error).status == "crashed"
    assert diagnose_exit(1, error, on_device=True).status == "device_lost"


PYDANTIC = (
    "pydantic_core._pydantic_core.ValidationError: 2 validation errors for Row\nlabel\n  Field required\nsize\n  Bad"
)
SYNTAX = 'File "/x/data.py", line 1\n    def make(:\n             ^\nSyntaxError: invalid syntax'
NESTED = (
    f'{CAUGHT}  File "/x/data.py", line 7, in load\n    raise KeyError\nKeyError: 1\n\nDuring handling of the above '
    'exception, another exception occurred:\n\nTraceback (most recent call last):\n  File "/x/data.py", line 9, in f\n'
    "    raise error\ndata.RowError: row 7 is broken\nit has no label\n"
)
TORCH_FRAME = '  File "/env/site-packages/torch/utils/data/_utils/collate.py", line 272, in collate_tensor_fn\n'
USER_FRAME = '  File "/x/data.py", line 41, in __getitem__\n    raise\n'


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (CAUGHT + "KeyError: 'label'\n", "raised KeyError: 'label'"),
        (PYDANTIC, "raised pydantic_core._pydantic_core.ValidationError: 2 validation errors for Row"),
        (SYNTAX, "raised SyntaxError: invalid syntax"),
        (NESTED, "raised data.RowError: row 7 is broken"),
        ("SystemExit", "raised SystemExit"),
        ("RuntimeError: Caught Odd in DataLoader worker process 0.\nOriginal x", "raised RuntimeError: Caught Odd in"),
        (" \n\t\n", "raised an exception without a name"),
        ("autotune.child.sample_counts.SampleCountError: ended after 5 of 16. Do this", "ended after 5 of 16. Do this"),
    ],
)
def test_an_error_of_the_users_code_is_quoted_by_its_type_and_first_line(error: str, message: str) -> None:
    found = judge(error, "the whole traceback")
    assert found.message.startswith(message)
    assert found.details == "the whole traceback"


def result_of(answer: Report | TrialFailure, **usage: Any) -> TrialResult:
    request = TrialRequest(config=make_config(2, batch_size=8), epochs=1, seconds=1.0)
    return make_result(request, answer, ResourceUsage(**usage), make_limits(memory_bytes=GIB, gpu_bytes=GIB), 3, "", 2)


@pytest.mark.parametrize(
    ("error", "details", "cause"),
    [
        ("ValueError: no label", USER_FRAME + TORCH_FRAME, "ValueError at data.py:41"),
        ("RuntimeError: stack expects", TORCH_FRAME, "RuntimeError at collate.py:272"),
        (NESTED, TORCH_FRAME + NESTED, "RowError at data.py:9"),
        ("SystemExit", "", "SystemExit"),
        (NO_FILES, USER_FRAME, ""),
    ],
)
def test_a_result_has_type_and_place_of_an_error_of_the_users_code(error: str, details: str, cause: str) -> None:
    assert result_of(FailureReport(stage="trial", error=error, details=details, samples=9)).cause == cause


def test_a_result_has_the_samples_and_the_resources_of_one_training_process() -> None:
    died = result_of(TrialFailure("crashed", "was killed by SIGKILL"), host_bytes=200, shm_bytes=20)
    assert (died.samples, died.peak_host_bytes, died.peak_shm_bytes) == (32, 100, 10)
    failed = result_of(FailureReport(stage="running step", error="ValueError", samples=9, rank=1))
    assert (failed.samples, failed.in_step) == (9, True)
    assert failed.message == "in rank 1 raised ValueError"
    lost = result_of(FailureReport(stage="running step", error=f"RuntimeError: {EXIT_ZERO}"))
    assert (lost.status, lost.in_step) == ("crashed", False)
    assert result_of(ReadyReport()).message == "sent an unexpected reply (ReadyReport)"


def test_a_death_is_out_of_memory_if_the_kernel_counts_a_kill_for_it() -> None:
    result = result_of(FailureReport(stage="trial", error=RESET), oom_kills=1, host_bytes=GIB)
    assert result.status == "out_of_memory"
    assert "out-of-memory killer at 1.0 GiB of host memory, against a budget of 1.0 GiB" in result.message


@pytest.mark.parametrize(("used", "kind"), [(GIB, "completed"), (2 * GIB, "out_of_memory")])
def test_a_trial_over_the_budget_for_device_memory_is_out_of_memory(used: int, kind: str) -> None:
    measured = make_measurement_of(100.0).model_copy(update={"peak_gpu_bytes": used})
    result = result_of(TrialReport(measurement=measured))
    assert (result.status, result.measurement is None) == (kind, used > GIB)
    assert ("2.0 GiB of device memory against a budget of 1.0 GiB" in result.message) == (used > GIB)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-9, "SIGKILL: the kernel's out-of-memory killer does this"),
        (-7, "killed by SIGBUS: /dev/shm was full: 8.0 MiB used"),
        (-11, "killed by SIGSEGV: native code"),
        (-62, "killed by signal 62"),
        (3, "exited with code 3 without a result"),
        (None, "closed its connection"),
    ],
)
def test_an_exit_without_a_report_is_diagnosed_by_its_exit_status(status: int | None, words: str) -> None:
    found = diagnose_exit(status, "last words", ": 8.0 MiB used")
    assert (found.status, found.details) == ("crashed", "last words")
    assert words in found.message


@pytest.mark.parametrize(
    ("status", "kind", "output"),
    [
        *((-6, "shm_exhausted", NO_SPACE), (1, "too_many_files", NO_FILES), (-6, "out_of_memory", NO_MEMORY)),
        (1, "crashed", "ValueError: sensor 4: bus error on the CAN interface"),
        (-9, "crashed", NO_FILES),
        (-11, "crashed", "ERROR: Unexpected segmentation fault encountered in worker.\nConnectionResetError"),
    ],
)
def test_the_output_explains_an_exit_unless_its_signal_does(status: int, kind: TrialStatus, output: str) -> None:
    assert diagnose_exit(status, f"noise\n{output}\n", on_device=True).status == kind


@pytest.mark.parametrize(
    ("ending", "advice"),
    [
        ("is killed by signal: Killed", "--max-workers"),
        ("is killed by signal: Segmentation fault", "Native code"),
        ("is killed by signal: Terminated", "Another process ended it"),
        ("exited unexpectedly with exit code 1", "could not be started"),
    ],
)
def test_a_lost_worker_is_described_by_the_most_specific_line_of_the_chain(ending: str, advice: str) -> None:
    message = judge(RESET, f"RuntimeError: DataLoader worker (pid 7) {ending}. \n{RESET}").message
    assert message.startswith(f"lost a worker process: DataLoader worker (pid 7) {ending}. ")
    assert advice in message


@pytest.mark.parametrize("error", [RESET, "RuntimeError: ffmpeg exited unexpectedly"])
@pytest.mark.parametrize(("stage", "has_workers"), [("trial", False), ("running step", True)])
def test_without_workers_or_in_the_step_a_lost_connection_or_process_is_the_users(
    error: str, stage: Stage, has_workers: bool
) -> None:
    found = diagnose_error(FailureReport(stage=stage, error=error), has_workers=has_workers)
    assert (found.status, found.message) == ("workload_failed", f"raised {error}")


@pytest.mark.parametrize("has_workers", [True, False])
def test_a_worker_that_dies_during_the_step_is_lost_though_the_configuration_may_have_none(has_workers: bool) -> None:
    found = diagnose_error(FailureReport(stage="running step", error=f"{RESET}\n{EXIT_ZERO}"), has_workers=has_workers)
    assert (found.status, found.message[:21]) == ("crashed", "lost a worker process")


def test_the_output_of_the_processes_explains_why_a_worker_is_lost() -> None:
    output = "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory."
    found = diagnose_error(FailureReport(stage="trial", error=RESET), ": 8.0 MiB used of 8.0 MiB", output)
    assert found.status == "shm_exhausted"
    assert "8.0 MiB used of 8.0 MiB" in found.message
    assert output in found.details


@pytest.mark.parametrize(
    ("output", "evidence", "advice"),
    [
        ("x.py:1: waiting for the lock of the index", "waiting for the lock", "--stall-time"),
        ("x.py:1: UserWarning: too many workers\n  check()", "", "--set multiprocessing_context=spawn"),
        ("", "", "--stall-time"),
    ],
)
def test_a_stall_is_explained_by_the_output(output: str, evidence: str, advice: str) -> None:
    found = diagnose_stall("made no progress for 3.0 s (limit 3.0 s)", output, HangReport())
    assert found.status == "stalled"
    assert found.message.startswith("made no progress for 3.0 s (limit 3.0 s)")
    assert evidence in found.message
    assert ("last line of its output" in found.message) == bool(evidence)
    assert advice in found.message


WORKLOAD = WorkloadRequest(dataset="data:make", step="train:make_step")


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (TrialFailure("timed_out", "took 9 s"), WorkloadError, "its process took 9 s. If it needs longer"),
        (ReadyReport(), WorkloadError, "its process sent an unexpected reply (ReadyReport)"),
        (("dataset", "autotune.errors.UsageError: No x"), UsageError, "No x"),
        (("dataset", "click.exceptions.UsageError: no root"), WorkloadError, "The dataset factory data:make failed"),
        (("dataset", "ValueError: no"), WorkloadError, "The dataset factory data:make failed: ValueError: no"),
        (("step", "ValueError: no"), WorkloadError, "The step factory train:make_step failed"),
        (("running step", "ValueError"), WorkloadError, "(train:make_step) failed on a batch"),
        (("import", "SystemExit: 0"), WorkloadError, "called sys.exit()"),
        (("trial", "KeyError: 3"), WorkloadError, "return frame.iloc[index]"),
        (("import", "ModuleNotFoundError: No module named 'rows'"), WorkloadError, "add its folder to PYTHONPATH"),
        (("import", NO_FILES), WorkloadError, "\nRaise the limit (ulimit -n)."),
    ],
)
def test_a_workload_that_cannot_be_loaded_is_an_error_with_the_next_step(
    answer: Report | TrialFailure | tuple[str, str], error: type[Exception], text: str
) -> None:
    report = FailureReport(stage=answer[0], error=answer[1]) if isinstance(answer, tuple) else answer
    found = start_error(report, WORKLOAD)
    assert type(found) is error
    assert text in str(found)


def test_a_device_that_fails_after_the_step_is_not_an_error_of_loading() -> None:
    error = "torch.AcceleratorError: CUDA error: device-side assert triggered"
    found = start_error(FailureReport(stage="probe", error=error, on_device=True), WORKLOAD)
    assert "its process left the device in an error" in str(found)
    assert "Loading" not in str(found)
