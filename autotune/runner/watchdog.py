"""Decides, from one reading, whether the trial under way must end. It touches nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autotune.protocol.budgets import HOST_MEMORY, SHARED_MEMORY, Budgets
from autotune.runner.resources import ResourceUsage
from autotune.units import format_bytes, format_seconds

Reason = Literal["stalled", "timed_out", "out_of_memory", "shm_exhausted", "too_many_files"]


@dataclass(frozen=True, slots=True)
class BudgetBreach:
    """Why a trial is ended, and the sentence that says so."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Watchdog:
    """What one command may take: budgets, seconds without progress, and seconds in all."""

    budgets: Budgets
    stall_seconds: float
    deadline_seconds: float

    def judge(self, usage: ResourceUsage, idle_seconds: float, running_seconds: float) -> BudgetBreach | None:
        """Decide whether a command breaks a limit; of several, name the one that harms others most."""
        return (
            self._judge_memory(usage)
            or self._judge_shm(usage.shm_bytes)
            or self._judge_time(idle_seconds, running_seconds)
        )

    def needs_exact_memory(self, usage: ResourceUsage) -> bool:
        """Tell whether the cheap upper bound is over the budget, so that exact numbers are worth their cost."""
        return not usage.exact and usage.host_bytes > self.budgets.memory_bytes

    def _judge_memory(self, usage: ResourceUsage) -> BudgetBreach | None:
        budgets = self.budgets
        if usage.available_bytes < budgets.reserve_bytes:
            left, reserve = format_bytes(usage.available_bytes), format_bytes(budgets.reserve_bytes)
            message = f"left the machine {left} of memory, less than the {reserve} kept for others"
            return BudgetBreach(HOST_MEMORY.outcome, message)
        if usage.exact and usage.host_bytes > budgets.memory_bytes:
            message = HOST_MEMORY.describe_excess(usage.host_bytes, budgets.memory_bytes)
            return BudgetBreach(HOST_MEMORY.outcome, message)
        return None

    def _judge_shm(self, used: int) -> BudgetBreach | None:
        budget = self.budgets.shm_bytes
        if used <= budget or not used:
            return None
        return BudgetBreach(SHARED_MEMORY.outcome, SHARED_MEMORY.describe_excess(used, budget))

    def _judge_time(self, idle_seconds: float, running_seconds: float) -> BudgetBreach | None:
        if idle_seconds > self.stall_seconds:
            idle, limit = format_seconds(idle_seconds), format_seconds(self.stall_seconds)
            return BudgetBreach("stalled", f"made no progress for {idle} (limit {limit})")
        if running_seconds > self.deadline_seconds:
            running, limit = format_seconds(running_seconds), format_seconds(self.deadline_seconds)
            return BudgetBreach("timed_out", f"was not done after {running} (limit {limit})")
        return None
