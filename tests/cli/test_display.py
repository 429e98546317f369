"""The display of a run: the table in a log, and the live line of a terminal."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from autotune.cli.console import RunDisplay
from autotune.config import LoaderConfig
from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import ProgressReport
from autotune.search.plan import Plan
from autotune.search.study import TrialRecord
from tests.builders import make_config, make_gpu_workload, make_profile, make_result, make_workload
from tests.search.formulas import make_test_plan


class TimedDisplay(RunDisplay):
    """A display that writes into memory, with a clock that the test sets."""

    def __init__(self, *, verbose: bool = False, quiet: bool = False, is_terminal: bool = False) -> None:
        self.stream = io.StringIO()
        self.now = 0.0
        self._clock = lambda: self.now
        console = Console(
            file=self.stream, force_terminal=is_terminal, width=400, color_system=None, soft_wrap=True, quiet=quiet
        )
        super().__init__(verbose=verbose, quiet=quiet, console=console)

    def read(self) -> str:
        """Return the text since the last call."""
        text = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return text


class FullDisk(io.StringIO):
    def write(self, _text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def plan_run(**changes: Any) -> Plan:
    request = {"fixed": {"batch_size": 32, "sharing_strategy": "file_descriptor"}, "search": {}} | changes
    return make_test_plan(**request)


@pytest.fixture
def display() -> Iterator[TimedDisplay]:
    with TimedDisplay() as display:
        yield display


def show(display: RunDisplay, number: int, result: TrialResult, *, is_best: bool = False) -> None:
    rate = 0.0 if result.measurement is None else 1000 / result.measurement.epochs[0].end_seconds
    display.show_trial_start(number, result.config)
    record = TrialRecord(config=result.config, samples_per_second=rate, predicted=950.0, result=result)
    display.show_trial(number, record.model_copy(update={"relative_error": 0.05}), is_best)


def test_the_head_names_the_gpu(display: TimedDisplay) -> None:
    display.show_plan(make_test_plan(make_gpu_workload()))
    assert " · NVIDIA H100 80GB HBM3 · " in display.read()


def test_a_failed_or_skipped_trial_is_a_row_with_the_reason(display: TimedDisplay) -> None:
    display.show_plan(plan_run())
    show(display, 3, make_result(make_config(8), status="shm_exhausted", message="filled /dev/shm: 64 MiB of 64 MiB"))
    assert display.read().endswith("           -            -  failed: filled /dev/shm: 64 MiB of 64 MiB\n")
    reasons = {"memory": "predicted to exceed the limit of host memory", "works": "workers fail"}
    for name, words in reasons.items():
        limits = {"shm": -0.5, name: 0.2}
        skipped = TrialRecord(config=make_config(8), samples_per_second=950.0, constraints=limits)
        display.show_trial(3, skipped, is_best=False)
        assert display.read().splitlines()[-1].endswith(f"skipped: {words}")


def test_a_first_trial_with_another_batch_size_than_the_users_says_so(display: TimedDisplay) -> None:
    own = make_workload(baseline=make_config(2, batch_size=32))
    display.show_plan(make_test_plan(own, fixed={}, search={"batch_size": (8, 64)}))
    show(display, 1, make_result(make_config(2, batch_size=8), 200.0))
    assert "baseline: your DataLoader's settings with batch_size=8" in display.read()


@pytest.mark.parametrize(("config", "rows"), [(make_config(2), 0), (make_config(8), 1)])
def test_the_recommended_configuration_is_a_row_of_the_table(
    display: TimedDisplay, config: LoaderConfig, rows: int
) -> None:
    display.show_plan(plan_run())
    show(display, 1, make_result(make_config(0), 200.0))
    show(display, 2, make_result(make_config(2), 400.0))
    display.read()
    profile = make_profile(dataloader=config.dataloader)
    search = profile.search.model_copy(update={"phase_seconds": {"validation": 11.0}})
    display.show_result(profile.model_copy(update={"search": search}))
    *added, validated, last = display.read().splitlines()
    assert [row.endswith("1,800         1.8x  measured in the validation") for row in added] == [True] * rows
    assert validated == "Validated the best against the baseline in 11.0 s, each run in a new process."
    assert last == ""


def test_details_are_shown_on_request() -> None:
    with TimedDisplay(verbose=True) as display:
        display.show_plan(plan_run())
        show(display, 1, make_result(make_config(2), 900.0, peak_host_bytes=2**30))
        show(display, 2, make_result(make_config(4), status="crashed", message="died", details="Traceback: line 1"))
        display.show_run(1, make_config(2), 901.0)
        display.show_result(make_profile())
    text = display.read()
    assert "Limits: memory 8.0 GiB, /dev/shm 4.0 GiB, 1,024 open files, 64 workers" in text
    assert "Search: prefetch_factor=1,2,4,8" in text
    assert "±5% · predicted 950/s · memory 1.0 GiB, /dev/shm 0 B" in text
    assert "Traceback: line 1" in text
    assert "Validation run 1: w=2 pf=2 bs=32  901/s" in text
    assert "Phases: profiling 5.0 s · search 20.0 s · validation 10.0 s" in text


@pytest.mark.parametrize(("quiet", "shown"), [(True, ""), (False, "Warning: [b]\\u001b[2J :smile:\n")])
def test_a_warning_does_not_control_the_terminal_and_a_quiet_display_shows_none(quiet: bool, shown: str) -> None:
    with TimedDisplay(quiet=quiet) as display:
        display.show_warning("[b]\x1b[2J :smile:")
    assert display.read() == shown


def test_a_full_disk_under_the_log_does_not_end_the_run() -> None:
    with RunDisplay(console=Console(file=FullDisk())) as display:
        display.show_warning("The machine is busy.")


def test_a_terminal_shows_one_live_line_which_is_removed_at_the_end() -> None:
    with TimedDisplay(is_terminal=True) as display:
        display.show_progress(ProgressReport(phase="timing samples"))
        display._live.refresh()
        assert "timing samples  " in display.read()
        display.show_plan(plan_run())
        show(display, 1, make_result(make_config(2), 900.0))
        display.show_progress(ProgressReport(phase="measuring"))
        display._live.refresh()
        last = display.read().splitlines()[-1]
        assert "trial 1: w=2 pf=2 bs=32  " in last
    assert display.read().endswith("\x1b[2K")
