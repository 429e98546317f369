"""What a child says is not trusted either: who does not keep to the protocol has crashed."""

from __future__ import annotations

import pytest

from autotune.config import MAX_TEXT_LENGTH
from autotune.protocol.messages import TrialRequest
from autotune.request import WorkloadRequest
from autotune.runner.runner import TrialRunner
from tests.builders import make_config
from tests.faults.hostile import LIES
from tests.faults.stage import LIMITS, ROOT
from tests.kept_launcher import keep_launcher

pytestmark = pytest.mark.fault("Hostile files", needs="plain")


@pytest.mark.parametrize("lie", LIES)
def test_a_child_that_sends_what_is_no_report_is_named_crashed(lie: str) -> None:
    workload = WorkloadRequest(
        dataset="tests.faults.hostile:make_liar",
        dataset_args={"lie": lie},
        step_seconds=1e-4,
        working_dir=str(ROOT),
    )
    with TrialRunner(workload, 30.0, launcher=keep_launcher()) as runner:
        runner.limit(LIMITS)
        result = runner.run(TrialRequest(config=make_config(0, batch_size=8), epochs=2, seconds=1.0))
    assert result.kind == "crashed"
    assert len(result.message) < 2 * MAX_TEXT_LENGTH
