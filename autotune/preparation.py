"""What comes before the first trial: refusing what cannot be, probing the workload, planning budgets and space."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from autotune.errors import UsageError
from autotune.profiles.saving import check_writable
from autotune.progress import ProgressListener
from autotune.request import TuningRequest, check_names, lacks_password
from autotune.runner.runner import TrialRunner, start_runner
from autotune.scripts.importing import check_scripts
from autotune.search.choices import choose_probe_sizes
from autotune.search.plan import Plan, make_plan
from autotune.system.machine import MachineProfile, read_machine
from autotune.trial.budgets import plan_budgets
from autotune.trial.interruption import spawn_error
from autotune.trial.timetable import Timetable
from autotune.trial.workload_profile import WorkloadProfile
from autotune.validation.decision import FINALISTS
from autotune.validation.rounds import ROUNDS

MAX_CONFIRMING_TRIALS: Final = ROUNDS * (FINALISTS + 1)


def plan_only(request: TuningRequest, *, progress: ProgressListener | None = None) -> Plan:
    """Probe and plan as `tune` does, and stop before the first trial."""
    progress = progress or ProgressListener()
    check_request(request)
    with start_runner(request, progress) as runner:
        return prepare_run(request, read_machine(), None, runner, progress, Timetable(request))


def check_request(request: TuningRequest) -> None:
    """Refuse what can be seen to fail, before anything is started.

    Raises:
        UsageError: An import string is malformed, a script would train when it is imported, or the storage lacks
            its password.
        OutputError: The output path cannot be written.
        ProfileError: Something else than a tuned file lies at the output path.
    """
    check_names(request.workload)
    check_scripts(request.workload)
    if request.storage is not None and lacks_password(request.storage):
        raise UsageError(
            f"The storage {request.storage} was given with a password, which is not written down: give the whole URL "
            "again with --storage, or in DLTUNE_STORAGE."
        )
    check_writable(Path(request.output))


def prepare_run(
    request: TuningRequest,
    machine: MachineProfile,
    workload: WorkloadProfile | None,
    runner: TrialRunner,
    progress: ProgressListener,
    timetable: Timetable,
) -> Plan:
    """Probe the workload where its profile is not given; plan budgets and space.

    The timetable says how long the probe may take, and learns what a start takes.
    """
    budgets = plan_budgets(machine, request)
    progress.show_machine(machine, budgets)
    if workload is None:
        try:
            workload = runner.probe(choose_probe_sizes(request), budgets, machine.usable_cpus, timetable.left_seconds)
        except OSError as error:
            raise spawn_error(error) from None
    budgets = plan_budgets(machine, request, workload)
    runner.limit(budgets)
    plan = make_plan(request, machine, workload, budgets)
    progress.show_plan(plan)
    if runner.start_seconds is not None:
        timetable.note_start(runner.start_seconds)
    timetable.begin_search(MAX_CONFIRMING_TRIALS)
    return plan
