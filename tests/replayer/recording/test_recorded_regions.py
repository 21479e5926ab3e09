"""Which recorded call a call of a compiled region takes."""

from __future__ import annotations

from replayer.op_signature import KeptBySignature
from replayer.recording.match_keys import RecordedKeys
from replayer.recording.recorded_regions import RecordedRegions, Shapes, graph_ops_of
from tests.replayer.compiled.handmade_recording import STEP_US, Events


def shapes_of_call(regions: RecordedRegions, *shapes: tuple[int, ...]) -> Shapes | None:
    """The shapes of the product in the recorded call that a graph with a product of these shapes takes."""
    call = regions.call("0/0", (), lambda: graph_ops_of([("aten::mm", shapes)]), 0, is_backward=False)
    return None if call is None else call.ops[0].shapes


def test_compiled_inference_takes_the_recorded_call_with_its_sizes() -> None:
    """GIVEN a compiled function that was recorded with batches of 24, 64 and 40, without the shapes of its inputs WHEN it is
    called with one of these batch sizes THEN it takes the call with this size. Other sizes take no recorded call."""
    events = Events()
    for step, batch in enumerate((24, 64, 40)):
        at = step * STEP_US
        events.host("user_annotation", f"ProfilerStep#{step + 1}", at, STEP_US - 10)
        events.op("Torch-Compiled Region: 0/0", at + 100, 150, [])
        events.host("user_annotation", "## Call CompiledFxGraph fabc ##", at + 120, 100)
        events.op("aten::mm", at + 130, 20, [[batch, 8], [8, 4]])
        events.launch("cudaLaunchKernel", at + 140, ("sgemm", 11))
    trace = events.trace()
    keys = RecordedKeys(trace)
    regions = RecordedRegions.of(trace, 0, keys, KeptBySignature(keys.of_signature))
    for batch in (24, 64, 40):
        assert shapes_of_call(regions, (batch, 8), (8, 4)) == ((batch, 8), (8, 4))
    assert shapes_of_call(regions, (32, 8), (8, 4)) is None
