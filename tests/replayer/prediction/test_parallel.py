"""Tests how much time several GPUs add to a step of one GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayer.cost_model.collective_costs import CollectiveCosts
from replayer.prediction.conditions import Conditions
from replayer.prediction.parallel import data_parallel, distributed_data_parallel, left_after_backward_ns
from tests.traces.handmade import training

BUCKETS = st.lists(st.tuples(st.integers(1, 1 << 25), st.integers(0, 10_000_000)), min_size=1, max_size=8)


@given(backward_ns=st.integers(0, 50_000_000), buckets=BUCKETS)
def test_communication_after_backward_is_between_one_bucket_and_all_buckets(
    backward_ns: int, buckets: list[tuple[int, int]]
) -> None:
    left_ns = left_after_backward_ns(float(backward_ns), buckets)
    all_ns, last_ns = sum(took for _, took in buckets), buckets[-1][1]
    assert max(last_ns, all_ns - backward_ns) - 1 <= left_ns <= all_ns + 1


def test_a_long_backward_pass_hides_every_all_reduce_except_the_last() -> None:
    assert left_after_backward_ns(1_000_000.0, [(10, 1_000), (10, 1_000), (10, 2_000)]) == 2_000
    assert left_after_backward_ns(0.0, [(10, 1_000), (10, 1_000)]) == 2_000
    assert left_after_backward_ns(1_000_000.0, []) == 0


def test_predicted_data_parallel_adds_parameter_copies_and_host_time_for_replicas() -> None:
    """At 1 GB/s, a copy of 1 MB takes at least a millisecond. The forward pass takes 3 ms. The host needs 1.4 times as long
    for each of its two replicas, so the replicas take 8.4 ms."""
    found = data_parallel(training(), Conditions(gpus=2, link_gbps=1.0), 7e6, 3e6, 1_000_000)
    copies_ns = found.parts_ns["parameters copied"] + found.parts_ns["gradients copied"]
    assert 2e6 <= copies_ns < 2.2e6 and found.parts_ns["host time of replicas"] == pytest.approx(8.4e6)
    assert found.step_ns == pytest.approx(7e6 + copies_ns + 8.4e6)


@pytest.mark.parametrize(
    ("parameters_mib", "buckets_mib"), [(1, [1]), (2, [1, 1]), (26, [1, 25]), (60, [1, 25, 25, 9]), (51, [1, 25, 25])]
)
def test_gradients_are_summed_in_buckets_of_1_mib_and_then_25_mib(
    parameters_mib: int, buckets_mib: list[int]
) -> None:
    trace = training()
    found = distributed_data_parallel(trace, Conditions(nproc=4, link_gbps=10.0), 1e6, parameters_mib << 20)
    costs = CollectiveCosts(trace.devices[0].name, 10.0)
    took = [costs.next("all_reduce", mib << 20, 4).duration_ns for mib in buckets_mib]
    assert found.parts_ns["all-reduce"] == sum(took)
    assert found.moved_bytes == 2 * 3 / 4 * (parameters_mib << 20)  # Four ranks in a ring each move 2 * 3 / 4 of the bytes.
