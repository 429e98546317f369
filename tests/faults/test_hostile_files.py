"""Files and messages are not trusted: each is refused in a sentence or read as something valid."""

from __future__ import annotations

import json
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from autotune import load
from autotune.cli.main import cli
from autotune.cli.show import TARGETS
from autotune.config import ProcessSettings
from autotune.errors import DltuneError
from autotune.profiles.schema import TunedProfile
from autotune.profiles.store import format_file, read_file
from autotune.progress import ProgressListener
from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import REPORT, ProbeReport, TrialReport, TrialRequest
from autotune.protocol.throughput import estimate
from autotune.protocol.workload_profile import identify
from autotune.search.loop import Search
from autotune.search.plan import Plan, make_plan
from autotune.search.study import TrialRecord
from tests.builders import (
    make_config,
    make_full_profile,
    make_limits,
    make_machine,
    make_measurement,
    make_measurement_of,
    make_profile,
    make_request,
    make_result,
    make_trace,
    make_workload,
)
from tests.faults.hostile_json import TRAP, draw_files, draw_texts

pytestmark = [pytest.mark.fault("Hostile files"), pytest.mark.usefixtures("nothing_runs")]


def cases(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))


RUNNING: Final = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "pickle.find_class", "subprocess.Popen")
SEEN: list[str] = []


sys.addaudithook(lambda event, arguments: SEEN.append(event) if event in RUNNING else None)


@pytest.fixture
def nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail the test if anything is imported, unpickled or started."""
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / f"{TRAP}.py").write_text("def fire(): raise AssertionError('it was called')")
    monkeypatch.syspath_prepend(tmp_path / "trap")
    monkeypatch.chdir(tmp_path)
    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, _refuse_to_unpickle)
    SEEN.clear()
    yield
    assert SEEN == []
    assert TRAP not in sys.modules


def _refuse_to_unpickle(*_: Any) -> None:
    raise AssertionError("something was unpickled")


# dltune.json


def make_file(profile: TunedProfile) -> str:
    names = {"dataset": f"{TRAP}:fire", "dataset_args": {"root": "/data"}, "step": f"{TRAP}:fire"}
    workload = profile.workload.model_copy(update=names)
    request = profile.request and profile.request | {"workload": names, "storage": f"{TRAP}://host/db"}
    trapped = profile.model_copy(update={"workload": workload, "request": request}).model_dump_json()
    return f'{{"schema_version": 1, "profiles": [{trapped}]}}'


FILE: Final = make_file(make_profile())
FULL_FILE: Final = make_file(make_full_profile(process=ProcessSettings(device_prefetch=True)))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "dltune.json"


@cases(500)
@given(data=draw_files(FILE), on_mismatch=st.sampled_from(["warn", "error", "default"]))
def test_a_file_is_loaded_as_something_valid_or_refused(file: Path, data: bytes, on_mismatch: Any) -> None:
    file.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = load(file, on_mismatch=on_mismatch)
        except DltuneError:
            event("refused")
            return
        kept = read_file(file)
    event(found.fit)
    assert json.loads(format_file(kept)) is not None
    assert found.config.loader_kwargs()["num_workers"] <= 4096


COMMANDS: Final = [
    tuple(command.split())
    for command in (
        *("show {}", "show {} --json", "merge {}", "merge whole.json {}", "report {} --format md"),
        *("report {} -o page --force", *(f"export {{}} --force --to {target}" for target in TARGETS)),
        *(f"check {{}} --no-workload {option}" for option in ("--max-age 99999999999d", "--max-age 1us", "--json")),
    )
]


def test_every_command_that_takes_a_file_is_tried() -> None:
    others = {"tune", "retune", "doctor", "run"}  # of which retune runs the code that a file names
    assert {command for command, *_ in COMMANDS} == set(cli.commands) - others


@cases(500)
@given(data=draw_files(FULL_FILE), command=st.sampled_from(COMMANDS))
def test_a_command_says_what_a_file_holds_or_one_sentence_and_never_commands_the_terminal(
    file: Path, data: bytes, command: tuple[str, ...]
) -> None:
    Path("whole.json").write_text(FULL_FILE)
    file.write_bytes(data)
    file.chmod(0o666)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(cli, [word.format(file) for word in command])
    event(f"{command[0]} {result.exit_code}")
    assert isinstance(result.exception, SystemExit | None), (command, result.exception)
    assert result.exit_code in ((0, 1, 2) if command[0] == "check" else (0, 2)), result.output
    assert all(mark.isprintable() or mark in "\n\t" for mark in result.output)
    assert ("Error: " in result.stderr) == (result.exit_code == 2)
    assert "Traceback" not in result.stderr


def test_every_command_accepts_the_whole_file(file: Path) -> None:
    Path("whole.json").write_text(FULL_FILE)
    file.write_text(FULL_FILE)
    for command in COMMANDS:
        found = CliRunner().invoke(cli, [word.format(file) for word in command])
        assert found.exit_code == (1 if command[0] == "check" else 0), (command, found.stderr)


# Trials of an interrupted run


PLAN: Final[Plan] = make_plan(
    make_request(search={"batch_size": (32,)}, trials=9),
    make_machine(affinity_cpus=2),
    make_workload(),
    make_limits(max_workers=2),
)
INTERRUPTED: Final = make_full_profile(
    hardware=PLAN.hardware,
    workload=identify(PLAN.request.workload, PLAN.workload),
    request=PLAN.request.record(),
    is_complete=False,
).model_dump_json()


def answer(request: TrialRequest) -> TrialResult:
    return make_result(request.config, 500.0 * (request.config.dataloader.num_workers + 1))


@cases(300)
@given(text=draw_texts(INTERRUPTED))
def test_a_run_starts_from_a_hostile_profile_or_refuses_it(text: str) -> None:
    try:
        earlier = TunedProfile.model_validate_json(text)
    except ValidationError:
        event("refused")
        return
    event("continued")
    found = Search(PLAN, answer, ProgressListener(), earlier=earlier).run()
    assert any(record.is_feasible for record in found.records)


# Messages


REPORTS: Final = (
    TrialReport(
        measurement=make_measurement(
            make_trace([0.01] * 12, 0.02, closed_after=9), make_trace([0.01] * 8), epoch_batches=20
        )
    ).model_dump_json(),
    TrialReport(measurement=make_measurement_of(100.0)).model_dump_json(),
    ProbeReport(profile=make_workload()).model_dump_json(),
    '{"op": "failed", "where": "trial", "error": "ValueError: no", "details": "Traceback"}',
    '{"op": "progress", "phase": "measuring", "batches": 3}',
    '{"op": "ready"}',
)


@cases(500)
@given(text=st.sampled_from(REPORTS).flatmap(draw_texts))
def test_a_message_of_a_child_is_refused_or_leads_to_a_plan_and_a_score(text: str) -> None:
    try:
        report = REPORT.validate_json(text.replace("\n", " "))
    except ValidationError:
        event("refused")
        return
    event(report.op)
    if isinstance(report, TrialReport):
        found = estimate(report.measurement, make_config(2), epochs=10)
        assert TrialRecord(
            config=make_config(2),
            samples_per_second=found.samples_per_second,
            constraints={},
        )
    elif isinstance(report, ProbeReport):
        try:
            plan = make_plan(PLAN.request, PLAN.machine, report.profile, PLAN.budgets)
        except DltuneError:
            event("no plan")
            return
        assert plan.best_upper_bound >= 0
        assert all(plan.predict(config) >= 0 for config in plan.initial_configs())
