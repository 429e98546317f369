"""A fresh process is forked from one that has imported torch, and is as fresh as one that is started."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from autotune.errors import TrialError, UsageError
from autotune.progress import ProgressListener
from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import LoadCommand, ReadyReport
from autotune.request import WorkloadRequest
from autotune.runner.diagnosis import TrialFailure
from autotune.runner.resources import Limits
from autotune.runner.runner import TrialProcess, TrialRunner
from autotune.runner.supervisor_client import SupervisorClient
from autotune.system.procfs import TRIAL_VARIABLE
from tests.builders import make_gpu_workload
from tests.kept_supervisor import keep_supervisor
from tests.runner.trials import LIMITS, ROOT, make_request, open_runner

pytestmark = pytest.mark.usefixtures("leaves_nothing")
AddModule = Callable[[str, str], None]
THREADED = "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"


@pytest.fixture
def add_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AddModule:
    """Add a module of this name and code to those that trials can import."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def add(name: str, code: str) -> None:
        (tmp_path / f"{name}.py").write_text(code)

    return add


def run_fresh(runner: TrialRunner) -> TrialResult:
    return runner.run(make_request(0, new_process=True))


def read_note(note: Path) -> dict[str, str]:
    """Read what `make_telling` has found around it."""
    return dict(line.split("=", 1) for line in note.read_text().splitlines())


def start_process(client: SupervisorClient, tmp_path: Path) -> tuple[object, dict[str, str]]:
    """Load a dataset whose factory writes what it finds around it, and return that."""
    note = tmp_path / "note"
    request = WorkloadRequest(
        dataset="tests.misbehaving:make_telling", dataset_args={"note": str(note)}, step_seconds=1e-4, working_dir=ROOT
    )
    process = TrialProcess(client, ROOT, ProgressListener())
    try:
        report = process.command(LoadCommand(workload=request), Limits(LIMITS, 60.0, 60.0))
    finally:
        process.end()
    return report, read_note(note)


def check_environment(found: dict[str, str]) -> None:
    """Check what a trial finds around it, however it was started."""
    assert found["folder"] == ROOT
    assert found["tempdir"] == found["TMPDIR"]
    assert found["session"] == "own"
    assert found["argv"] == "1"
    assert found["torch is collected"] == "True"  # by the garbage collector, in workers as well


def test_a_process_is_forked_with_the_environment_of_a_trial_and_the_libraries_that_were_imported_once(
    tmp_path: Path,
) -> None:
    with SupervisorClient(WorkloadRequest(dataset="m:f", step_seconds=0.01)) as client:  # it needs no optimizer
        report, first = start_process(client, tmp_path)
        client.import_once(["torch._dynamo"])
        _, second = start_process(client, tmp_path)
    assert isinstance(report, ReadyReport)
    check_environment(first)
    assert [found["torch's compiler is imported"] for found in (first, second)] == ["False", "True"]


def test_what_an_imported_library_removes_at_exit_is_there_for_all_trials(
    add_module: AddModule, tmp_path: Path
) -> None:
    add_module("library", f"import atexit, pathlib; atexit.register(pathlib.Path({str(tmp_path / 'shared')!r}).unlink)")
    (tmp_path / "shared").touch()
    with SupervisorClient() as client, open_runner("make_telling", supervisor=client) as runner:
        client.import_once(["library"])
        assert run_fresh(runner).status == "completed"
        runner.close()
        assert (tmp_path / "shared").exists()


def test_what_optimizers_import_is_imported_once_for_a_real_step(tmp_path: Path) -> None:
    with SupervisorClient(WorkloadRequest(dataset="m:f", step="m:s")) as client:
        _, found = start_process(client, tmp_path)
    assert found["torch's compiler is imported"] == "True"


READS_VARIABLE = """import os
assert os.environ["READ_AT_IMPORT"] == "set by the user's code"
"""


def test_a_library_is_imported_with_the_variables_that_the_users_code_has_set(add_module: AddModule) -> None:
    add_module("reads_variable", READS_VARIABLE)
    with SupervisorClient() as client, open_runner("make_telling", supervisor=client) as runner:
        before = client.supervisor_pid
        client.import_once(["reads_variable"], {"READ_AT_IMPORT": "set by the user's code"})
        assert run_fresh(runner).status == "completed"
        assert client.supervisor_pid == before


def test_a_trial_starts_no_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRIAL_VARIABLE, "/tmp/of-a-trial")
    with pytest.raises(UsageError, match=r"imported a module that tunes: put the call under if __name__"):
        SupervisorClient().prepare()


MAKES_LOADER = """from tests.custom_loaders import Doubling, Numbers
loader = Doubling(Numbers(), batch_size=8)
"""


def test_a_loader_that_an_imported_library_made_is_rebuilt_by_its_constructor(add_module: AddModule) -> None:
    add_module("makes_loader", MAKES_LOADER)
    with SupervisorClient() as client, open_runner("", supervisor=client, dataset="makes_loader:loader") as runner:
        client.import_once(["makes_loader"])
        assert run_fresh(runner).status == "completed"


class NotesEnvironment(SupervisorClient):
    def import_once(self, modules: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.noted = dict(environment or {})
        super().import_once(modules, environment)


SETS_VARIABLES = """import os, tempfile
os.environ |= {"CUDA_VISIBLE_DEVICES": "", "OTHER": "1"}
os.environ |= {"BYTES": os.fsdecode(bytes([233])), "FOLDER": tempfile.mkdtemp()}
from tests.misbehaving import make_honest
"""


def test_variables_of_the_users_code_are_set_once_but_those_that_choose_a_device_or_that_no_other_process_can_use(
    add_module: AddModule,
) -> None:
    add_module("sets_variables", SETS_VARIABLES)
    client, dataset = NotesEnvironment(), "sets_variables:make_honest"
    with client, open_runner("make_honest", supervisor=client, dataset=dataset) as runner:
        before = client.supervisor_pid
        runner.probe((8, 8), LIMITS)
        assert runner.run(make_request(0)).status == "completed"
        assert client.supervisor_pid == before  # torch reads none of them
        assert "OTHER" not in psutil.Process(client.supervisor_pid).environ()
    assert client.noted["OTHER"] == "1"
    assert not {"CUDA_VISIBLE_DEVICES", "BYTES", "FOLDER"} & client.noted.keys()


@pytest.mark.slow
def test_variables_of_the_ranks_are_not_those_of_the_users_code() -> None:
    client = NotesEnvironment()
    with client, open_runner("make_honest", supervisor=client, nproc_per_node=2) as runner:
        runner.probe((8, 8), LIMITS)
    assert not {"RANK", "WORLD_SIZE", "MASTER_PORT"} & client.noted.keys()


def test_torch_is_imported_again_with_its_variables_that_the_users_code_has_set(add_module: AddModule) -> None:
    assignment = 'import os\nos.environ["TORCH_HOME"] = "here"\n'
    add_module("sets_variable", f"{assignment}from tests.misbehaving import make_honest")
    client = SupervisorClient()
    with client, open_runner("make_honest", supervisor=client, dataset="sets_variable:make_honest") as runner:
        before = client.supervisor_pid
        runner.probe((8,), LIMITS.model_copy(update={"max_workers": 0}))
        assert runner.run(make_request(0)).status == "completed"
        assert client.supervisor_pid != before
        assert "TORCH_HOME" in psutil.Process(client.supervisor_pid).environ()


@pytest.mark.parametrize(
    "code",
    [
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "import subprocess; process = subprocess.Popen(['sleep', '60'])",
        "raise ImportError",
    ],
    ids=["thread", "process", "error"],
)
def test_a_library_that_disturbs_the_supervisor_is_left_to_the_trials(code: str, add_module: AddModule) -> None:
    add_module("disturbing", code)
    with SupervisorClient() as client, open_runner("make_telling", supervisor=client) as runner:
        before = psutil.Process(client.supervisor_pid)
        client.import_once(["torch._dynamo", "disturbing"])
        assert run_fresh(runner).status == "completed"
        assert not before.is_running()
        assert psutil.Process(client.supervisor_pid).num_threads() == 1
        assert psutil.Process(client.supervisor_pid).create_time() > before.create_time()


def test_chances_differ_from_fork_to_fork(tmp_path: Path) -> None:
    notes = []
    with open_runner("make_telling", dataset_args={"note": str(tmp_path / "note")}) as runner:
        for _ in range(2):
            run_fresh(runner)
            notes.append((tmp_path / "note").read_text())
    drawn = [{line for line in note.splitlines() if line.startswith("drawn")} for note in notes]
    assert len(drawn[0]) == 3
    assert not drawn[0] & drawn[1]


def test_a_supervisor_that_still_imports_torch_is_not_waited_for() -> None:
    with SupervisorClient() as client:
        process = client._supervisor
    assert process is not None
    assert process.returncode == -signal.SIGKILL


def test_a_supervisor_that_was_killed_is_replaced() -> None:
    with open_runner("make_telling") as runner:
        run_fresh(runner)
        os.kill(runner._supervisor.supervisor_pid, signal.SIGKILL)
        assert run_fresh(runner).status == "completed"


def test_a_supervisor_that_does_not_reply_in_time_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.runner.supervisor_client.MAX_END_SECONDS", 0.1)
    client = keep_supervisor()
    with open_runner("make_telling") as runner:
        run_fresh(runner)
        before = client.supervisor_pid
        os.kill(before, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            client._ask({"status": before}, seconds=0.1)
        assert run_fresh(runner).status == "completed"
        assert client.supervisor_pid != before


def test_an_interrupt_before_a_reply_does_not_leave_it_to_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    client = keep_supervisor()
    with open_runner("make_telling") as runner:
        run_fresh(runner)
        with monkeypatch.context() as patched:
            patched.setattr("autotune.runner.supervisor_client.wait", raise_interrupt)
            with pytest.raises(KeyboardInterrupt):
                client.read_status()
        assert client.end_trial([]) == []
        assert run_fresh(runner).status == "completed"


def raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_trials_are_interpreters_with_the_same_environment_where_a_fork_would_lose_a_thread_and_end_with_the_tuner(
    add_module: AddModule, tmp_path: Path
) -> None:
    add_module("sitecustomize", THREADED)
    arguments = {"note": str(tmp_path / "note")}
    client = SupervisorClient()
    with client, open_runner("make_telling", supervisor=client, dataset_args=arguments) as runner:
        assert run_fresh(runner).status == "completed"
        check_environment(read_note(tmp_path / "note"))
        supervisor = psutil.Process(client.supervisor_pid)
        (child,) = supervisor.children()
        assert len(child.cmdline()) == len(supervisor.cmdline()) - 1
    assert not supervisor.is_running()


def test_several_processes_compute_on_one_thread_each_and_caches_stay_where_training_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    environment = SupervisorClient(WorkloadRequest(dataset="m:f", nproc_per_node=2))._make_environment()
    assert environment["OMP_NUM_THREADS"] == "1"
    assert Path(environment["TORCHINDUCTOR_CACHE_DIR"]).parent == Path(tempfile.gettempdir())
    assert "OMP_NUM_THREADS" not in SupervisorClient()._make_environment()


def test_a_machine_without_a_folder_for_temporary_files_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", tempfile.mkdtemp(dir="/tmp"))
    with SupervisorClient() as client, open_runner("make_telling", supervisor=client) as runner:
        run_fresh(runner)
        runner.close()
        Path(os.environ["TMPDIR"]).rmdir()
        with pytest.raises(TrialError, match=r"No such file or directory \(/tmp/"):
            run_fresh(runner)


def test_a_working_directory_that_is_gone_is_in_the_output_of_the_trial(tmp_path: Path) -> None:
    process = TrialProcess(keep_supervisor(), str(tmp_path / "gone"), ProgressListener())
    found = process.command(LoadCommand(workload=WorkloadRequest(dataset="m:f")), Limits(LIMITS, 60.0, 60.0))
    assert isinstance(found, TrialFailure)
    assert "No such file or directory" in found.details


def test_a_new_process_that_finds_no_accelerator_has_lost_it() -> None:
    accelerator = make_gpu_workload().accelerator
    with open_runner("make_telling") as runner:
        profile = runner.probe((), LIMITS)
        runner._profile = profile.model_copy(update={"accelerator": accelerator})
        runner.close()
        with pytest.raises(TrialError, match="Trials can no longer be run: the last one lost its device"):
            run_fresh(runner)


def test_a_killed_supervisor_is_reported_with_the_next_step() -> None:
    with SupervisorClient() as client:
        os.kill(client.supervisor_pid, signal.SIGKILL)
        with pytest.raises(BrokenPipeError, match="was killed, as the kernel does if memory runs out: allow more"):
            client._ask({"status": 1})
