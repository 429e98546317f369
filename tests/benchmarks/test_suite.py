"""The two suites as they are started, and what they print."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import report, session, suite
from benchmarks.gpu import GPU
from benchmarks.suite import CPU, Suite, parse_arguments
from benchmarks.training.trainer import Trainer
from benchmarks.tuners import dltune
from benchmarks.tuners.loadtune import is_loadtune_installed
from benchmarks.workloads.grid import list_grid
from tests.benchmarks.fakes import FakeClock, make_instruments, run_session


@pytest.mark.parametrize("which", [CPU, GPU], ids=["cpu", "gpu"])
def test_a_rehearsal_never_lands_among_the_results(which: Suite) -> None:
    assert parse_arguments(which, ["--quick"])[0].results != parse_arguments(which, [])[0].results


def test_a_rehearsal_is_small_and_a_full_run_takes_as_long_as_it_takes() -> None:
    _, workloads = parse_arguments(CPU, ["--quick", "--only", "memory"])
    assert [workload.name for workload in workloads] == ["memory"]
    assert len(list_grid(workloads[0], 2)) == 3
    assert parse_arguments(CPU, [])[0].minutes is None


def test_the_device_of_all_workloads_can_be_chosen_and_eight_minutes_are_usual() -> None:
    _, workloads = parse_arguments(GPU, ["--quick", "--device", "cpu", "--only", "tokens"])
    assert [(workload.name, workload.device) for workload in workloads] == [("tokens", "cpu")]
    assert parse_arguments(GPU, [])[0].minutes == 8


def test_tables_name_the_device_the_gain_and_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_session(tmp_path, minutes=6.5, rounds=3)
    report.publish(tmp_path)
    shown = capsys.readouterr().out
    assert "Test GPU, 16 CPUs, torch 2.11.0, CUDA 13.0, driver 580.1, Python 3.12.3" in shown
    assert "round 3: no time" in shown
    assert "loadtune: not installed" in shown
    assert "7.55x" in shown
    assert "60.0 %" in shown
    assert (tmp_path / "summary.json").exists()


def test_main_measures_and_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["gpu", "--quick", "--device", "cpu", "--results", str(tmp_path)])
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(suite, "make_instruments", lambda quick: make_instruments(FakeClock()))
    suite.main(GPU)
    assert "Rehearsals, whose numbers say nothing" in capsys.readouterr().out


def test_the_real_instruments_start_real_processes() -> None:
    real = session.make_instruments(quick=True)
    assert real.start is Trainer
    assert real.tune is dltune.tune
    assert (real.run_loadtune is not None) == is_loadtune_installed()
