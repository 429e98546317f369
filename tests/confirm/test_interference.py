from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.confirm.interference import (
    CpuCounters,
    CpuThrottling,
    Interference,
    InterferenceMonitor,
    describe_noise,
    measure_background_load,
    measure_drift,
    measure_stolen_share,
    measure_throttled_share,
    read_cpu_times,
    read_quota_uses,
)
from tests.builders import write_files

TICKS = os.sysconf("SC_CLK_TCK")
STAT = "cpu  100 10 50 700 40 5 15 80 60 6\ncpu0 50 5 25 350 20 2 8 40 30 3\nintr 1 2 3\n"
RATES = st.lists(st.lists(st.floats(1e-3, 1e6), max_size=6), max_size=6)


def write_root(root: Path, stat: str = STAT, cgroups: str = "0::/job\n", **groups: tuple[int, int]) -> Path:
    """Write a machine whose version 2 cgroups, named with `__` for `/`, have had so many periods and throttled ones."""
    files = {f"sys/fs/cgroup/{name.replace('__', '/')}/cpu.stat": cpu_stat(*use) for name, use in groups.items()}
    return write_files(root, {"proc/stat": stat, "proc/self/cgroup": cgroups, **files})


def cpu_stat(periods: int, throttled: int) -> str:
    return f"usage_usec 12345\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 7\n"


def make_times(
    busy: float = 0.0, total: float = 0.0, stolen: float = 0.0, quotas: Sequence[tuple[int, int]] = ()
) -> CpuCounters:
    """Build counters; each quota is given as periods and throttled periods."""
    uses = tuple(CpuThrottling(periods=periods, throttled_periods=throttled) for periods, throttled in quotas)
    return CpuCounters(busy_seconds=busy, total_seconds=total, stolen_seconds=stolen, quotas=uses)


def play(*readings: CpuCounters | None) -> Callable[[], CpuCounters | None]:
    """Build a reader that gives these readings one after another."""
    rest = iter(readings)
    return lambda: next(rest)


def be_still(seconds: float) -> None:
    """Sleep for no time at all."""


def need_times(times: CpuCounters | None) -> CpuCounters:
    assert times is not None
    return times


def list_quotas(root: Path) -> list[tuple[int, int]]:
    return [(use.periods, use.throttled_periods) for use in need_times(read_cpu_times(root)).quotas]


def test_idle_waiting_and_stolen_time_are_not_busy_and_guests_are_counted_once(tmp_path: Path) -> None:
    times = need_times(read_cpu_times(write_root(tmp_path)))
    assert times.busy_seconds == pytest.approx((100 + 10 + 50 + 5 + 15) / TICKS)
    assert times.total_seconds == pytest.approx((100 + 10 + 50 + 700 + 40 + 5 + 15 + 80) / TICKS)
    assert times.stolen_seconds == pytest.approx(80 / TICKS)


def test_columns_that_an_old_kernel_lacks_are_zero(tmp_path: Path) -> None:
    times = need_times(read_cpu_times(write_root(tmp_path, stat="cpu 1 2 3 4\n")))
    assert times.busy_seconds == pytest.approx(6 / TICKS)
    assert times.total_seconds == pytest.approx(10 / TICKS)
    assert times.stolen_seconds == 0


def test_this_machine_can_be_read() -> None:
    times = read_cpu_times()
    assert times is None or 0 <= times.busy_seconds <= times.total_seconds


def test_without_any_file_the_times_are_unknown(tmp_path: Path) -> None:
    assert read_cpu_times(tmp_path) is None


@pytest.mark.parametrize(
    "stat", ["", "\n", "cpu\n", "cpu 1 2 3\n", "cpu 1 2 3 x\n", "cpu0 1 2 3 4\n", "cpu 1 2 3 -4\n", "cpu 1 2 3 ²\n"]
)
def test_a_garbled_list_of_times_is_unknown_rather_than_an_error(tmp_path: Path, stat: str) -> None:
    assert read_cpu_times(write_root(tmp_path, stat=stat)) is None


@given(
    start=st.integers(0, len(STAT)),
    length=st.integers(0, 20),
    text=st.text(max_size=30) | st.text("0123456789 \ncpu", max_size=60),
)
def test_no_mutation_of_the_list_of_times_raises(start: int, length: int, text: str) -> None:
    stat = (STAT[:start] + text + STAT[start + length :]).encode(errors="replace")
    with TemporaryDirectory() as folder:
        root = write_root(Path(folder))
        (root / "proc" / "stat").write_bytes(stat)
        times = read_cpu_times(root)
    assert times is None or 0 <= times.busy_seconds <= times.total_seconds


@given(text=st.text(max_size=60) | st.text("0123456789 \nnr_periodsthled", max_size=60))
def test_no_mutation_of_the_use_of_a_quota_raises(text: str) -> None:
    with TemporaryDirectory() as folder:
        root = write_root(Path(folder), job=(1, 1))
        path = root / "sys/fs/cgroup/job/cpu.stat"
        path.write_bytes((path.read_text()[: len(text)] + text).encode(errors="replace"))
        need_times(read_cpu_times(root))


def test_the_use_of_quotas_is_read_for_our_own_cgroup_and_its_ancestors_only(tmp_path: Path) -> None:
    root = write_root(
        tmp_path, cgroups="0::/pod/box\n", pod__box=(200, 20), pod=(1000, 5), other=(9, 9), pod__sibling=(8, 8)
    )
    assert list_quotas(root) == [(200, 20), (1000, 5)]


def test_the_use_of_quotas_is_read_in_version_1(tmp_path: Path) -> None:
    root = write_root(tmp_path, cgroups="4:cpu,cpuacct:/docker/a1\n1:name=systemd:/x\n")
    write_files(root, {"sys/fs/cgroup/cpu,cpuacct/docker/a1/cpu.stat": "nr_periods 40\nnr_throttled 4\n"})
    assert list_quotas(root) == [(40, 4)]


@pytest.mark.parametrize("line", ["throttled_usec 2500000", "throttled_time 2500000000"])
def test_the_time_throttled_is_read_in_the_unit_of_its_version(tmp_path: Path, line: str) -> None:
    root = write_root(tmp_path)
    write_files(root, {"sys/fs/cgroup/job/cpu.stat": f"nr_periods 200\nnr_throttled 20\n{line}\n"})
    (use,) = read_quota_uses(root / "proc", root / "sys/fs/cgroup")
    assert use.throttled_share == 0.1
    assert use.throttled_seconds == pytest.approx(2.5)


def test_a_cgroup_that_counts_no_periods_has_no_quota(tmp_path: Path) -> None:
    root = write_files(write_root(tmp_path), {"sys/fs/cgroup/job/cpu.stat": "usage_usec 12345\nuser_usec 1\n"})
    assert need_times(read_cpu_times(root)).quotas == ()


def test_others_are_counted_in_cpus_over_the_time_slept() -> None:
    slept: list[float] = []
    others = measure_background_load(
        2.0, 0.5, read=play(make_times(busy=10.0), make_times(busy=10.75)), sleep=slept.append
    )
    assert others == pytest.approx(1.5)
    assert slept == [0.5]


def test_others_are_welcome_to_cpus_that_we_may_not_use() -> None:
    readings = make_times(busy=10.0, total=100.0), make_times(busy=13.0, total=108.0)
    assert measure_background_load(5.0, 1.0, read=play(*readings), sleep=be_still) == 0
    assert measure_background_load(6.0, 1.0, read=play(*readings), sleep=be_still) == pytest.approx(1.0)


def test_counters_that_went_back_mean_that_nobody_was_busy() -> None:
    assert measure_background_load(2.0, read=play(make_times(busy=10.0), make_times(busy=9.9)), sleep=be_still) == 0


@pytest.mark.parametrize("readings", [(None,), (make_times(), None)])
def test_others_are_unknown_where_the_times_cannot_be_read(readings: tuple[CpuCounters | None, ...]) -> None:
    assert measure_background_load(2.0, read=play(*readings), sleep=be_still) is None


def test_stolen_time_is_a_share_of_the_cpu_time_in_between() -> None:
    before, after = make_times(total=1000.0, stolen=500.0), make_times(total=1100.0, stolen=505.0)
    assert measure_stolen_share(before, after) == pytest.approx(0.05)


def test_the_quota_throttled_most_in_between_counts_whatever_happened_earlier() -> None:
    before = make_times(quotas=[(100, 0), (9000, 4000)])
    after = make_times(quotas=[(200, 50), (9100, 4010)])
    assert measure_throttled_share(before, after) == pytest.approx(0.5)


def test_without_a_quota_nothing_is_throttled() -> None:
    assert measure_throttled_share(make_times(), make_times()) == 0
    assert measure_throttled_share(make_times(quotas=[(0, 0)]), make_times(quotas=[(0, 0)])) == 0


TIMES = st.builds(
    make_times,
    busy=st.floats(0, 1e9),
    total=st.floats(0, 1e9),
    stolen=st.floats(0, 1e9),
    quotas=st.lists(st.tuples(st.integers(0, 2**64), st.integers(0, 2**64)), max_size=3),
)


@given(before=TIMES, after=TIMES)
def test_shares_stay_between_0_and_1_even_where_counters_go_back(before: CpuCounters, after: CpuCounters) -> None:
    assert 0 <= measure_stolen_share(before, after) <= 1
    assert 0 <= measure_throttled_share(before, after) <= 1


def test_a_round_in_which_all_are_slower_is_drift() -> None:
    assert measure_drift([[100.0, 100.0, 80.0], [10.0, 10.0, 8.0]]) == pytest.approx(0.25)


def test_scatter_in_opposite_directions_is_no_drift() -> None:
    assert measure_drift([[100.0, 110.0], [110.0, 100.0]]) == pytest.approx(0, abs=1e-9)


def test_the_drift_of_a_single_contestant_is_its_own_scatter() -> None:
    assert measure_drift([[100.0, 112.0, 105.0]]) == pytest.approx(0.12)


@pytest.mark.parametrize("rounds", [[], [[]], [[100.0]], [[100.0], [7.0], []]])
def test_fewer_than_two_rounds_do_not_drift(rounds: list[list[float]]) -> None:
    assert measure_drift(rounds) == 0


def test_a_contestant_measured_once_does_not_hide_what_the_others_saw() -> None:
    assert measure_drift([[100.0, 120.0], [50.0], [7.0]]) == pytest.approx(0.2)


def test_a_contestant_dropped_after_two_rounds_counts_in_these_only() -> None:
    assert measure_drift([[100.0, 100.0, 150.0], [10.0, 10.0]]) > measure_drift([[100.0, 100.0, 100.0], [10.0, 10.0]])
    assert measure_drift([[100.0, 100.0, 100.0], [10.0, 10.0]]) == pytest.approx(0, abs=1e-9)


def test_a_round_that_a_contestant_missed_does_not_shift_its_later_ones() -> None:
    assert measure_drift([[100.0, 100.0, 120.0], [10.0, 0.0, 12.0]]) == pytest.approx(0.2, abs=0.03)
    assert measure_drift([[0.0, math.nan, math.inf], [-1.0]]) == 0


@given(rounds=RATES)
def test_drift_is_never_negative(rounds: list[list[float]]) -> None:
    assert measure_drift(rounds) >= 0


@given(rounds=RATES, factors=st.lists(st.floats(1e-3, 1e3), min_size=6, max_size=6))
def test_drift_does_not_depend_on_how_fast_each_contestant_is(rounds: list[list[float]], factors: list[float]) -> None:
    scaled = [[rate * factor for rate in rates] for rates, factor in zip(rounds, factors, strict=False)]
    assert measure_drift(scaled) == pytest.approx(measure_drift(rounds), rel=1e-6, abs=1e-9)


@given(rates=st.lists(st.floats(1e-3, 1e6), max_size=6), lengths=st.lists(st.integers(0, 5), min_size=6, max_size=6))
def test_contestants_that_keep_their_pace_do_not_drift(rates: list[float], lengths: list[int]) -> None:
    rounds = [[rate] * length for rate, length in zip(rates, lengths, strict=False)]
    assert measure_drift(rounds) == pytest.approx(0, abs=1e-9)


@given(paces=st.lists(st.floats(0.1, 10), min_size=2, max_size=5), rates=st.lists(st.floats(1, 1e4), min_size=1))
def test_drift_that_all_share_is_found_exactly(paces: list[float], rates: list[float]) -> None:
    rounds = [[rate * pace for pace in paces] for rate in rates]
    assert measure_drift(rounds) == pytest.approx(max(paces) / min(paces) - 1, rel=1e-6, abs=1e-9)


@given(rounds=st.lists(st.lists(st.floats(), max_size=4), max_size=4))
def test_no_rates_however_absurd_break_the_drift(rounds: list[list[float]]) -> None:
    assert Interference(drift=measure_drift(rounds)).drift >= 0


def test_nothing_is_said_of_a_quiet_machine() -> None:
    assert describe_noise(Interference(), 4.0) == ()
    edge = Interference(others_cpus=(0.15,), stolen_share=0.03, throttled_share=0.1, drift=0.08)
    assert describe_noise(edge, 1.0) == ()


def test_others_are_described_in_cpus_against_the_limit() -> None:
    (sentence,) = describe_noise(Interference(others_cpus=(0.7,)), 2.0)
    assert sentence.startswith("Other processes kept 0.7 CPUs busy during the confirmation")
    assert "(limit 0.15 where 2 are usable)" in sentence
    assert "stop them and tune again" in sentence


def test_one_busy_moment_among_quiet_ones_is_not_described() -> None:
    assert describe_noise(Interference(others_cpus=(0.0, 2.0, 0.1)), 2.0) == ()


def test_a_larger_machine_may_have_more_going_on() -> None:
    busy = Interference(others_cpus=(1.0,))
    assert describe_noise(busy, 64.0) == ()
    assert len(describe_noise(busy, 8.0)) == 1


@pytest.mark.parametrize(
    ("quietness", "seen"),
    [
        (Interference(stolen_share=0.034), "3.4 % of the CPU time to other virtual machines"),
        (Interference(throttled_share=0.42), "used up in 42.0 % of its periods"),
        (Interference(drift=0.12), "became 12.0 % slower or faster between rounds (limit 8 %)"),
    ],
)
def test_each_disturbance_is_described_with_its_number_limit_and_next_step(quietness: Interference, seen: str) -> None:
    (sentence,) = describe_noise(quietness, 2.0)
    assert seen in sentence
    assert "(limit " in sentence
    assert "tune again" in sentence


def test_every_disturbance_has_a_sentence_of_its_own() -> None:
    assert len(describe_noise(Interference(others_cpus=(3.0,), stolen_share=1, throttled_share=1, drift=5), 2.0)) == 4


def test_a_used_up_quota_is_called_expected_where_workers_saturate_it() -> None:
    (sentence,) = describe_noise(Interference(throttled_share=0.5), 2.0)
    assert "this is expected where workers saturate the quota" in sentence


def test_a_watch_sums_up_what_happened_between_start_and_finish() -> None:
    read = play(
        make_times(busy=10.0, total=100.0, stolen=1.0, quotas=[(100, 10)]),  # start
        make_times(busy=20.0),  # first pause
        make_times(busy=20.1),
        make_times(busy=30.0),  # second pause
        make_times(busy=30.2),
        make_times(busy=40.0, total=200.0, stolen=6.0, quotas=[(200, 30)]),  # finish
    )
    watch = InterferenceMonitor(2.0, read, be_still)
    watch.start()
    watch.pause()
    watch.pause()
    quietness = watch.finish([[100.0, 110.0]])
    assert quietness.others_cpus == pytest.approx((0.5, 1.0))
    assert quietness.stolen_share == pytest.approx(0.05)
    assert quietness.throttled_share == pytest.approx(0.2)
    assert quietness.drift == pytest.approx(0.1)


def test_a_watch_over_a_machine_that_cannot_be_read_sees_quiet_and_the_drift(tmp_path: Path) -> None:
    watch = InterferenceMonitor(2.0, lambda: read_cpu_times(tmp_path), be_still)
    watch.start()
    watch.pause()
    assert watch.finish([]) == Interference()
    assert watch.finish([[100.0, 110.0]]).drift == pytest.approx(0.1)


def test_a_watch_that_was_never_started_sees_nothing() -> None:
    assert InterferenceMonitor(2.0, play(make_times(total=5.0, stolen=5.0)), be_still).finish([]) == Interference()


def test_a_watch_started_again_forgets_what_it_saw() -> None:
    watch = InterferenceMonitor(
        2.0, play(make_times(), make_times(), make_times(busy=9.0), make_times(), make_times()), be_still
    )
    watch.start()
    watch.pause()
    watch.start()
    assert watch.finish([]).others_cpus == ()
