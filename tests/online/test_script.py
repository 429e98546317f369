"""Training scripts run unchanged, with the autopilot on their loaders."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from click.testing import CliRunner
from torch.utils.data import DataLoader

from autotune.cli.main import cli
from autotune.errors import UsageError
from autotune.online.attach import autopilot
from autotune.online.autopilot import Options
from autotune.online.group import WorkerSettings
from autotune.online.script import describe_loaders, run_script, tune_all_loaders
from autotune.online.windows import Window
from tests.builders import write_files

ROOT = Path(__file__).parents[2]
WAITING = dedent("""
    import time
    from torch.utils.data import DataLoader, Dataset

    class Waiting(Dataset):
        def __init__(self, length, seconds=0.002):
            self.length, self.seconds = length, seconds

        def __len__(self):
            return self.length

        def __getitem__(self, index):
            time.sleep(self.seconds)
            return index
""")
SCRIPT = WAITING + dedent("""
    import sys

    class Doubling(DataLoader):
        def __iter__(self):
            return (2 * batch for batch in super().__iter__())

    def make_loader(length):
        return DataLoader(Waiting(length, 0.004), batch_size=8)

    if __name__ == "__main__":
        train, validation = make_loader(8000), make_loader(16)
        assert [value for batch in train for value in batch.tolist()] == list(range(8000))
        assert len(list(validation)) == 2
        assert sum(sum(batch.tolist()) for batch in Doubling(range(4))) == 12
        print(sys.argv[1:], __name__)
""")
LIKE_PYTHON = """
    import argparse, atexit, copy, multiprocessing, pickle, sys, threading, time, warnings
    from torch.utils.data import DataLoader, Dataset

    class Numbers(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return index

    def read(loader):
        return [batch.tolist() for batch in loader]

    def pickle_later():
        time.sleep(1)
        print("pickled after the end", len(pickle.dumps(Numbers())) > 0)

    if __name__ == "__main__":
        parser = argparse.ArgumentParser()
        parser.add_argument("--epochs", type=int)
        print(parser.parse_args().epochs, parser.prog, sys.path[0] == __file__.rpartition("/")[0], __package__)
        warnings.warn("a warning of the script")
        multiprocessing.set_start_method("spawn")
        print(read(DataLoader(Numbers(), batch_size=4, num_workers=1)))
        loader = DataLoader(Numbers(), batch_size=4)
        print(read(loader), [read(pickle.loads(pickle.dumps(loader))), read(copy.deepcopy(loader))])
        with multiprocessing.Pool(1) as pool:
            print(pool.map(read, [DataLoader(Numbers(), batch_size=4)]))
        threading.Thread(target=pickle_later).start()
        atexit.register(pickle_later)
        raise SystemExit(3)
"""

MODULE = dedent("""
    import multiprocessing, sys
    from .names import NAME
    {}
    if __name__ == "__main__":
        print(NAME, __package__, __spec__.name, __file__, sys.argv, sys.path[0])
        multiprocessing.set_start_method("spawn")
        print({}, flush=True)
        sys.exit(4)
""")
TRAINS = (
    "from torch.utils.data import DataLoader",
    "[batch.tolist() for batch in DataLoader(range(6), batch_size=3, num_workers=1)]",
)
AFTER_TRAINING = WAITING + dedent("""
    import os, multiprocessing, pickle, sys

    if __name__ == "__main__":
        loader = DataLoader(Waiting(4000), batch_size=8)
        for number, batch in enumerate(loader):
            if number == 300 and os.fork() == 0:
                sys.exit(0)
        os.wait()
        multiprocessing.set_start_method("spawn")
        print(number, b"autotune" in pickle.dumps(loader), hasattr(__builtins__, "print"))
""")
REMADE = WAITING + dedent("""
    for _ in range(10):
        loader = DataLoader(Waiting(1000), batch_size=8)
        assert sum(len(batch) for batch in loader) == 1000
""")
INTERRUPTED = WAITING + dedent("""
    for number, batch in enumerate(DataLoader(Waiting(10 ** 6, 0.01), batch_size=2, num_workers=4)):
        if number == 20:
            print("training", flush=True)
""")

ITERABLE = """
    import time
    from torch.utils.data import DataLoader, IterableDataset

    class Stream(IterableDataset):
        def __iter__(self):
            for number in range(120):
                time.sleep(0.002)
                yield number

    assert sum(len(batch) for batch in DataLoader(Stream(), batch_size=4)) == 120
"""

OWN = """
    import autotune
    from torch.utils.data import DataLoader, Dataset

    class Endless(Dataset):
        def __len__(self):
            raise NotImplementedError

        def __getitem__(self, index):
            return index

    own = autotune.autopilot(DataLoader(range(8)))
    others = DataLoader(Endless(), sampler=[3, 5])
    assert len(list(own)) == 8
    assert [batch.item() for batch in others] == [3, 5]
"""


@dataclass(frozen=True)
class Ended:
    """The end of a script: its exit code, and what it has printed."""

    returncode: int
    stdout: str
    stderr: str


RunHere = Callable[[str], Ended]


@pytest.fixture
def run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> RunHere:
    """Return a function that runs a script in this process, which has imported torch."""

    def run_here(code: str) -> Ended:
        (tmp_path / "train.py").write_text(dedent(code))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [])
        monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)  # torch.distributed replaces it
        monkeypatch.setattr(sys, "path", sys.path.copy())
        monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        returncode: Any = 0
        try:
            run_script("train.py", [], Options(max_workers=4))
        except SystemExit as error:
            returncode = error.code
        if isinstance(returncode, str):  # as Python does at the exit
            sys.stderr.write(f"{returncode}\n")
            returncode = 1
        return Ended(returncode, *capfd.readouterr())

    return run_here


def run(tmp_path: Path, code: str, *arguments: str, tuned: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    (tmp_path / "train.py").write_text(dedent(code))
    return run_python(tmp_path, "train.py", *arguments, tuned=tuned)


def run_python(tmp_path: Path, *arguments: str, tuned: bool = True) -> subprocess.CompletedProcess[str]:
    dltune = ["-m", "autotune", "run", "--max-workers", "4"] if tuned else []
    command = [sys.executable, *dltune, *arguments]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path / "site-packages")])}
    return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=120)


def test_the_last_lines_name_each_loader_with_the_arguments_to_change(tmp_path: Path) -> None:
    ended = run(tmp_path, SCRIPT, "--epochs", "3")
    assert (ended.returncode, ended.stdout) == (0, "['--epochs', '3'] __main__\n"), ended.stderr
    made, doubled = (find_line(SCRIPT, text) for text in ("return DataLoader(Waiting(length", "Doubling(range(4))"))
    assert f"dltune: train.py:{doubled}: not tuned: Doubling overrides __iter__." in ended.stderr
    result, change = ended.stderr.splitlines()[-2:]
    assert re.match(rf"dltune: train.py:{made} \(8,000 samples\): num_workers=\d+ \(was 0\): ", result)
    assert re.fullmatch(r" +Use it: DataLoader\(\.\.\., num_workers=\d+\)", change)


def find_line(code: str, text: str) -> int:
    return next(number for number, line in enumerate(dedent(code).splitlines(), 1) if text in line)


def test_a_script_runs_as_python_runs_it(tmp_path: Path) -> None:
    plain = run(tmp_path, LIKE_PYTHON, "--epochs", "3", tuned=False)
    ended = run(tmp_path, LIKE_PYTHON, "--epochs", "3")
    assert plain.returncode == 3, plain.stderr
    assert (ended.returncode, ended.stdout) == (3, plain.stdout), ended.stderr
    warned = [line for line in ended.stderr.splitlines() if not line.startswith("dltune: ")]
    assert warned == plain.stderr.splitlines()


@pytest.mark.parametrize("name", ["pkg.train", "pkg"])
def test_a_module_runs_as_python_runs_it(name: str, tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "names.py").write_text("NAME = 'a relative import'")
    (package / "train.py").write_text(MODULE.format(*TRAINS))
    (package / "__main__.py").write_text(MODULE.format("", "sys.flags"))  # one training is enough
    plain = run_python(tmp_path, "-m", name, "--epochs", "3", tuned=False)
    ended = run_python(tmp_path, "-m", name, "--epochs", "3")
    assert "a relative import" in plain.stdout, plain.stderr
    assert (ended.returncode, ended.stdout) == (plain.returncode, plain.stdout), ended.stderr


def test_a_loader_of_an_installed_package_is_named_by_its_line(tmp_path: Path) -> None:
    write_files(tmp_path, {"site-packages/pkg/__init__.py": "", "site-packages/pkg/train.py": SCRIPT})
    ended = run_python(tmp_path, "-m", "pkg.train", "--epochs", "3")
    made = find_line(SCRIPT, "return DataLoader(Waiting(length")
    assert f"dltune: train.py:{made} (8,000 samples): num_workers=" in ended.stderr


@pytest.mark.parametrize("name", ["nowhere.train", "json.nothing", "math", "..train"])
def test_a_module_that_does_not_exist_is_a_usage_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    with pytest.raises(UsageError, match=f"-m {re.escape(name)}: "):
        run_script(name, [], Options(), is_module=True)


def test_after_its_training_a_script_finds_its_process_as_without_dltune(tmp_path: Path) -> None:
    ended = run(tmp_path, AFTER_TRAINING)
    assert (ended.returncode, ended.stdout) == (0, "499 False True\n"), ended.stderr
    assert re.fullmatch(r"(dltune: .*\n)+ +Use it: .*\n", ended.stderr)


def test_a_loader_that_is_made_again_in_every_epoch_is_tuned_over_all_of_them(run_here: RunHere) -> None:
    ended = run_here(REMADE)
    made = find_line(REMADE, "DataLoader(Waiting(1000)")
    prefetch = r"( and prefetch_factor=4 \(was 2\))?"  # on a busy machine
    assert re.search(rf"train.py:{made} \(1,000 samples\): num_workers=\d \(was 0\){prefetch}: ", ended.stderr), (
        ended.stderr
    )


def test_a_result_that_cannot_be_saved_is_announced_before_the_training(tmp_path: Path, run_here: RunHere) -> None:
    (tmp_path / "dltune.json").write_text("{}}")
    ended = run_here("import sys; print('training', file=sys.stderr)")
    assert ended.stderr.startswith("dltune: the result will not be saved: "), ended.stderr
    assert ended.stderr.index("is not a tuned file") < ended.stderr.index("training\n")


@pytest.mark.parametrize(
    "code",
    [
        "def train():\n    raise ValueError('bad learning rate')\ntrain()",
        "train(:",
        "import sys; sys.exit('no data')",
        "raise OSError(32, 'Broken pipe')",
    ],
    ids=["error", "syntax", "message", "broken pipe"],
)
def test_a_script_that_fails_prints_and_exits_as_without_dltune(code: str, tmp_path: Path, run_here: RunHere) -> None:
    plain, ended = run(tmp_path, code, tuned=False), run_here(code)
    assert plain.returncode == 1
    assert (ended.returncode, ended.stderr) == (plain.returncode, plain.stderr)


def test_the_last_line_says_that_a_script_has_no_loader(run_here: RunHere) -> None:
    ended = run_here("print('trained')")
    assert (ended.returncode, ended.stdout) == (0, "trained\n")
    assert ended.stderr == (
        "dltune: nothing to tune: this process iterated over no DataLoader of PyTorch, or only over classes with an "
        "__iter__ of their own, such as StatefulDataLoader.\n"
    )


def test_a_loader_that_the_training_still_waits_for_is_named() -> None:
    loader: Any = autopilot(DataLoader([1.0] * 8), None, quiet=True)  # type: ignore[arg-type]
    list(loader)
    state = loader.autopilot_state
    state.controller.add(Window(batches=10, seconds=2.0, wait_seconds=1.9))
    (line,) = describe_loaders({"train.py:3": state})
    assert line == (
        "train.py:3: waits 95% of the time, but has too few batches to choose the workers. "
        "To tune it in trials: dltune --dataset MODULE:NAME, or --loader MODULE:NAME."
    )


@pytest.mark.parametrize(
    ("persistent", "epochs", "advice"),
    [
        (False, 3, ["Add persistent_workers=True: starting workers takes up to 50% of each epoch."]),
        (True, 3, []),  # they stay already
        (False, 1, []),  # an epoch that lasts
    ],
)
def test_workers_that_start_again_in_each_short_epoch_should_persist(
    persistent: bool, epochs: int, advice: list[str]
) -> None:
    loader: Any = autopilot(DataLoader([1.0] * 8, num_workers=2, persistent_workers=persistent), None, quiet=True)  # type: ignore[arg-type]
    list(loader)
    state = loader.autopilot_state
    window = Window(10.0, 1.0, 0.9, 0.0, worker_batches=10.0, worker_seconds=1.0)
    state.controller.add(window)  # of two workers that could load 20 batches
    state.controller.has_converged, state._windows.are_epochs = True, epochs > 1
    state.controller.settings = state.controller.own
    (text,) = describe_loaders({"train.py:3": state})
    assert [line.strip() for line in text.splitlines()[1:]] == advice


def test_loaders_of_parts_of_the_data_that_the_training_waits_for_are_named_once() -> None:
    loader: Any = autopilot(DataLoader([1.0] * 8), None, quiet=True)  # type: ignore[arg-type]
    list(loader)
    state = loader.autopilot_state
    state.controller.add(Window(batches=10, seconds=2.0, wait_seconds=1.9))
    parts = {f"train.py:3 ({samples} samples)": state for samples in (8, 9, 10)}
    (line,) = describe_loaders(parts)
    assert line.startswith("train.py:3 (8 samples): waits 95% of the time")


def test_two_loaders_of_one_line_are_two_if_one_shuffles(run_here: RunHere) -> None:
    ended = run_here("""
        from torch.utils.data import DataLoader
        loaders = [DataLoader(range(3), shuffle=shuffle) for shuffle in (True, False)]
        for loader in loaders:
            list(loader)
    """)
    assert ended.stderr == "dltune: 2 loaders: too few batches to choose the workers.\n"


def test_of_many_loaders_without_a_result_the_first_are_forgotten(
    run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.online.script.MAX_LOADERS", 3)
    ended = run_here("""
        from torch.utils.data import DataLoader
        for samples in range(1, 12):
            list(DataLoader(range(samples)))
    """)
    assert ended.stderr == "dltune: 3 loaders: too few batches to choose the workers.\n"


def test_without_workers_their_settings_are_to_be_left_out() -> None:
    loader: Any = autopilot(DataLoader([1.0] * 8, num_workers=2), None, quiet=True)  # type: ignore[arg-type]
    list(loader)
    controller = loader.autopilot_state.controller
    controller.windows = {WorkerSettings(0, 2): Window(batches=10, seconds=2.0)}
    controller.settings, controller.has_converged = WorkerSettings(0, 2), True
    (text,) = describe_loaders({"train.py:3": loader.autopilot_state})
    assert text.endswith("DataLoader(..., num_workers=0) without settings of workers, such as persistent_workers")


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_setting_of_an_earlier_run_is_named_although_too_few_batches_compare_it(is_complete: bool) -> None:
    loader: Any = autopilot(DataLoader([1.0] * 8), None, quiet=True)  # type: ignore[arg-type]
    list(loader)
    state = loader.autopilot_state
    earlier, state.controller.settings = Window(batches=10, seconds=2.0), WorkerSettings(8, 2)
    state.controller.known, state.unfinished = (earlier, None) if is_complete else (None, earlier)
    (text,) = describe_loaders({"train.py:3": loader.autopilot_state})
    line, advice = text.splitlines()
    assert line == "train.py:3: num_workers=8, as an earlier run (5.00 batches/s then); too few batches to compare."
    assert advice.endswith("DataLoader(..., num_workers=8)")


def test_a_loader_of_a_few_batches_gets_one_short_line(run_here: RunHere) -> None:
    training = "if __name__ == '__main__': print(len(list(DataLoader(range(3)))))"
    ended = run_here(f"from torch.utils.data import DataLoader\n{training}")
    assert ended.stdout == "3\n"
    assert ended.stderr == "dltune: train.py:2 (3 samples): too few batches to choose the workers.\n"


def test_the_last_line_names_the_wait_share_of_a_loader_that_cannot_be_tuned(run_here: RunHere) -> None:
    ended = run_here(ITERABLE)
    place = f"dltune: train.py:{find_line(ITERABLE, 'DataLoader(Stream()')}"
    refused, result = ended.stderr.splitlines()
    assert refused == f"{place}: not tuned: an IterableDataset divides its samples among the workers."
    assert re.fullmatch(rf"{place}: \S+ batches/s, waits \d+% of the time\. To tune it in trials: dltune .*", result)


def test_a_loader_that_the_script_tunes_itself_and_one_without_a_length_are_reported(
    run_here: RunHere,
) -> None:
    finished = run_here(OWN)
    assert finished.returncode == 0, finished.stderr
    assert "dltune: 2 loaders: too few batches to choose the workers." in finished.stderr


def test_libraries_read_the_arguments_of_a_loader_while_a_script_runs() -> None:
    plain = inspect.signature(DataLoader.__init__)
    with tune_all_loaders(Options(quiet=True)):
        assert inspect.signature(DataLoader.__init__) == plain


def test_an_interrupt_ends_the_script_with_its_own_traceback(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\nprint('training', flush=True)\ntime.sleep(60)")
    command = [sys.executable, "-m", "autotune", "run", "train.py"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environ, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "training\n"
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f'"{tmp_path}/train.py", line ' in printed
    assert "autotune" not in printed


def test_an_interrupt_leaves_no_file_of_a_worker(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(INTERRUPTED)
    command = [sys.executable, "-m", "autotune", "run", "train.py"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:  # sockets need a short path
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": scratch}
        with subprocess.Popen(command, cwd=tmp_path, env=environ, start_new_session=True, **pipes) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "training\n"
            os.killpg(process.pid, signal.SIGINT)
            process.communicate(timeout=60)
        assert process.returncode == 130
        assert list(Path(scratch).iterdir()) == []


@pytest.mark.usefixtures("workdir")
def test_a_script_that_does_not_exist_is_a_usage_error() -> None:
    Path("train.py").touch()
    ended = CliRunner().invoke(cli, ["run", "missing.py"])
    assert (ended.exit_code, "missing.py is not a file" in ended.stderr) == (2, True)


FORKING = WAITING + dedent("""
    import multiprocessing, os

    def train():
        assert type(iter(DataLoader(Waiting(64), batch_size=8))).__module__.startswith("torch")

    if __name__ == "__main__":
        child = multiprocessing.get_context("fork").Process(target=train)
        child.start()
        child.join()
        print(child.exitcode)
""")
HOSTILE_CLASS = WAITING + dedent("""
    class Base(DataLoader):
        def __init_subclass__(cls, *, key, **others):
            super().__init_subclass__(**others)

    class Keyed(Base, key="mine"):
        pass

    print(sum(len(batch) for batch in Keyed(Waiting(64), batch_size=8)))
""")
MADE_AGAIN = WAITING + dedent("""
    def make():
        return DataLoader(Waiting(800), batch_size=8)

    iterator = iter(make())
    for step in range(700):
        try:
            next(iterator)
        except StopIteration:
            iterator = iter(make())
""")


def test_a_process_that_the_script_forks_is_not_tuned(run_here: RunHere) -> None:
    assert run_here(FORKING).stdout == "0\n"


def test_a_class_of_loaders_that_cannot_be_derived_from_is_left_alone(run_here: RunHere) -> None:
    found = run_here(HOSTILE_CLASS)
    assert found.stdout == "64\n"
    reason = "TypeError: Base.__init_subclass__() missing 1 required keyword-only argument: 'key'"
    assert f"not tuned: Keyed cannot be derived from ({reason})." in found.stderr


def test_a_loader_that_is_made_again_while_its_iterator_is_held_is_tuned(run_here: RunHere) -> None:
    assert re.search(r"num_workers=\d+ \(was 0\)", run_here(MADE_AGAIN).stderr)


def test_the_folder_of_the_script_is_not_searched_if_python_is_told_not_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    code = "import sys; print(sys.path)"
    assert run(tmp_path, code).stdout == run(tmp_path, code, tuned=False).stdout
    write_files(tmp_path, {"site-packages/prints.py": code})
    module = [run_python(tmp_path, "-m", "prints", tuned=tuned) for tuned in (True, False)]
    assert module[0].stdout == module[1].stdout != ""
