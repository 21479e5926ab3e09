"""What one step of a prediction takes from a recording of several steps."""

from __future__ import annotations

import pytest

from replayer.prediction.conditions import Conditions
from replayer.prediction.predict import predict
from tests.replayer.recordings import Op, make_recording


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_tensor_parallelism_reports_one_step_of_a_recording_of_several(steps: int) -> None:
    """GIVEN steps with one pair of products, (16 x 8) by (8 x 32) twice and (16 x 32) by (32 x 8), in float32

    WHEN two ranks share them THEN each rank keeps half of the 3 x 8 x 32 x 4 bytes of weights. A step sums one output of
    16 x 8 x 4 bytes and moves 2 (N - 1) / N of these bytes.
    """
    sizes = [((16, 8), (8, 32)), ((16, 8), (8, 32)), ((16, 32), (32, 8))]
    ops = [Op("aten::mm", 100 * i, 80, kernel=(100 * i + 20, 50), shapes=shapes) for i, shapes in enumerate(sizes)]
    trace = make_recording([("forward", 0, 400)], ops, steps=steps)
    found = predict(trace, Conditions(nproc=2, parallel="tp", link_gbps=10)).parallel
    assert found is not None
    assert found.rank_bytes == {"parameters": 3 * 8 * 32 * 4 / 2} and found.moved_bytes == 16 * 8 * 4
    assert found.assumed.startswith("1 pairs of products")
