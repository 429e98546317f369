"""Decides, from one reading, whether the trial under way must end. It touches nothing."""

from __future__ import annotations

from typing import Literal

from autotune.config import FrozenModel
from autotune.trial.budgets import Budgets
from autotune.trial.resources import HOST_MEMORY, SHARED_MEMORY
from autotune.units import format_bytes, format_seconds

Reason = Literal["stalled", "timed_out", "out_of_memory", "shm_exhausted", "too_many_files"]


class Reading(FrozenModel):
    """What was seen of a trial at one tick.

    Attributes:
        idle_seconds: Since the child last reported progress.
        running_seconds: Since the command was given.
        host_bytes: Memory of the process tree: an upper bound, or exact when `host_exact`.
        host_exact: Whether `host_bytes` is exact.
        shm_bytes: /dev/shm in use beyond what was in use before.
        available_bytes: Memory the machine or container can still give.
    """

    idle_seconds: float
    running_seconds: float
    host_bytes: int
    host_exact: bool
    shm_bytes: int
    available_bytes: int


class BudgetBreach(FrozenModel):
    """Why a trial is ended, and the sentence that says so."""

    reason: Reason
    message: str


class Watchdog(FrozenModel):
    """What one command may take.

    Attributes:
        budgets: Budgets.
        stall_seconds: Most seconds without progress.
        deadline_seconds: Most seconds in all.
    """

    budgets: Budgets
    stall_seconds: float
    deadline_seconds: float

    def judge(self, reading: Reading) -> BudgetBreach | None:
        """Decide whether a reading breaks a limit.

        Args:
            reading: One tick's reading.

        Returns:
            The breach, the most harmful first, or None.
        """
        return self._judge_memory(reading) or self._judge_shm(reading) or self._judge_time(reading)

    def needs_exact_memory(self, reading: Reading) -> bool:
        """Tell whether the cheap upper bound is over the budget, so that exact numbers are worth their cost."""
        return not reading.host_exact and reading.host_bytes > self.budgets.memory_bytes

    def _judge_memory(self, reading: Reading) -> BudgetBreach | None:
        if reading.available_bytes < self.budgets.reserve_bytes:
            return BudgetBreach(
                reason=HOST_MEMORY.outcome,
                message=f"left the machine {format_bytes(reading.available_bytes)} of memory, less than the "
                f"{format_bytes(self.budgets.reserve_bytes)} kept for others",
            )
        if reading.host_exact and reading.host_bytes > self.budgets.memory_bytes:
            return BudgetBreach(
                reason=HOST_MEMORY.outcome,
                message=HOST_MEMORY.describe_excess(reading.host_bytes, self.budgets.memory_bytes),
            )
        return None

    def _judge_shm(self, reading: Reading) -> BudgetBreach | None:
        if reading.shm_bytes <= self.budgets.shm_bytes or reading.shm_bytes == 0:
            return None
        return BudgetBreach(
            reason=SHARED_MEMORY.outcome,
            message=SHARED_MEMORY.describe_excess(reading.shm_bytes, self.budgets.shm_bytes),
        )

    def _judge_time(self, reading: Reading) -> BudgetBreach | None:
        if reading.idle_seconds > self.stall_seconds:
            return BudgetBreach(
                reason="stalled",
                message=f"made no progress for {format_seconds(reading.idle_seconds)} "
                f"(limit {format_seconds(self.stall_seconds)})",
            )
        if reading.running_seconds > self.deadline_seconds:
            return BudgetBreach(
                reason="timed_out",
                message=f"was not done after {format_seconds(reading.running_seconds)} "
                f"(limit {format_seconds(self.deadline_seconds)})",
            )
        return None
