"""Tests the text of `trace predict` for given figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from replayer.prediction.conditions import Conditions
from replayer.prediction.parallel import Parallel
from replayer.prediction.predict import PredictedTime, Prediction
from traces.model.trace import Trace
from tui.text.predict import error_words, prediction_text, sweep_text

MS = 1e6


def predicted(step_ms: float = 60.0, **changes: Any) -> Prediction:
    """Return a prediction for a recorded step of 100 ms. The recorded step has 90 ms of GPU time, of which matrix products take
    60 ms."""
    usual: dict[str, Any] = {
        "device": "NVIDIA A100-SXM4-80GB", "batch": 30, "recorded_batch": 30,
        "step": PredictedTime(100 * MS, step_ms * MS), "busy": PredictedTime(90 * MS, 50 * MS),
        "phases": {"forward": PredictedTime(0, 20 * MS)},
        "kinds": {"mm": PredictedTime(60 * MS, 30 * MS), "add": PredictedTime(30 * MS, 10 * MS)},
        "expected_error": 0.1, "origins": {"exact": 0.25, "scaled": 0.75}, "unscaled_share": 0.0, "notes": [], "parallel": None,
        "memory_peak_bytes": None, "memory_bytes": None, "conditions": Conditions(), "trace": Trace(),
    }  # fmt: skip
    return Prediction(**(usual | changes))


def test_a_prediction_shows_step_time_and_error_and_samples_per_second() -> None:
    lines = prediction_text(predicted(), "run", None, None).splitlines()
    assert lines[0] == "ESTIMATE, not a measurement: run as recorded"
    step = "step 100.0 ms recorded, about 60.0 ms predicted (-40.0 %)"
    assert lines[1] == f"{step}; expected error 10 %: 54.0 ms to 66.0 ms"
    assert lines[2] == "about 500 samples/s"
    slow = prediction_text(predicted(batch=1, step_ms=2344), "run", None, None).splitlines()
    assert slow[2] == "about 0.43 samples/s"
    assert "Kind of work with the most time: mm, 75.0 % of the predicted GPU time." in lines
    assert "GPU time by origin: exact 25.0 %, scaled 75.0 %." in lines
    rows = {line.split("  ")[0]: line.split() for line in lines}
    assert rows["GPU busy"][-3:] == ["ms", "-44.4", "%"] and rows["forward"][1:5] == ["0", "ns", "20.0", "ms"]
    assert "has no shapes" not in "\n".join(lines)
    # This share would be shown as 0.0 %, so it is not mentioned.
    assert "has no shapes" not in prediction_text(predicted(unscaled_share=0.0004), "run", None, None)


def test_suggested_commands_quote_file_names() -> None:
    said = prediction_text(predicted(), "my run.msgpack", None, Path("to a100.msgpack"))
    assert "Next: trace diff 'my run.msgpack' 'to a100.msgpack', or trace replay --trace 'to a100.msgpack' SCRIPT" in said


def test_the_expected_error_applies_only_to_the_gpu_time_of_a_step() -> None:
    """In a step of 100 ms, the GPU works for 0.3 ms. An error of 50 % in the GPU time is an error of 0.15 % in the step
    time."""
    little = predicted(100.0, busy=PredictedTime(0.5 * MS, 0.3 * MS), expected_error=0.0015)
    text = prediction_text(little, "run", None, None)
    assert "expected error <1 %: 99.8 ms to 100.2 ms" in text  # 99.85 and 100.15 ms, rounded
    assert "GPU time is 0.3 % of the step. The expected error covers only GPU time; other times are as recorded." in text
    assert "covers only GPU time" not in prediction_text(predicted(), "run", None, None)
    half, less = (predicted(100.0, busy=PredictedTime(50 * MS, ms * MS)) for ms in (50, 49.9))
    assert "covers only GPU time" not in prediction_text(half, "run", None, None)
    assert "GPU time is 49.9 % of the step." in prediction_text(less, "run", None, None)


def test_a_prediction_shows_throughput_and_notes_only_if_known() -> None:
    text = prediction_text(predicted(batch=0), "run", 0.5, None)
    assert "samples/s" not in text
    text = prediction_text(predicted(unscaled_share=0.2, notes=["links are unknown"]), "run", 0.5, None)
    assert "about 500 samples/s, 0.5 per sample" in text and "Links are unknown." in text
    assert "20.0 % of recorded GPU time has no shapes; it is scaled like the rest, or by data sheets." in text
    nothing = predicted(kinds={"mm": PredictedTime(MS, 0)})
    assert "Kind of work with the most time: mm, -" in prediction_text(nothing, "run", None, None)
    assert "Kind of work with the most time" not in prediction_text(predicted(kinds={}), "run", None, None)


def test_a_prediction_for_ranks_shows_communication_and_memory() -> None:
    parts = {"compute": 50 * MS, "communication": 10 * MS}
    bare = predicted(parallel=Parallel("ddp", 4, 60 * MS, parts, 2 << 20))
    text = prediction_text(bare, "run", None, None)
    assert "ddp on 4 GPUs: compute 50.0 ms, communication 10.0 ms; parameters 2.0 MiB." in text
    assert "Each rank receives" not in text and "Peak allocated" not in text and "Assumed" not in text
    kept = {"parameters": 1 << 20, "optimizer": 0}
    full = Parallel("fsdp", 4, 60 * MS, parts, 2 << 20, 3 << 20, kept, 5 << 20, "links are even")
    text = prediction_text(predicted(parallel=full), "run", None, None)
    assert "Each rank receives about 3.0 MiB per step and keeps parameters 1.0 MiB." in text
    assert "Peak allocated memory of a rank: about 5.0 MiB." in text and "Assumed: links are even." in text


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        (Conditions(), "as recorded"),
        (Conditions(gpu="a100"), "on A100-SXM4-80GB"),
        (Conditions(batch=64), "at batch 64"),
        (Conditions(gpus=2), "on 2 GPUs under nn.DataParallel"),
        (Conditions(gpus=1, nproc=1), "as recorded"),
        (Conditions(nproc=4, parallel="fsdp"), "as 4 ranks under FullyShardedDataParallel"),
        (Conditions(nproc=2, link_gbps=12.5), "as 2 ranks under DistributedDataParallel with links of 12.5 GB/s"),
        (Conditions(host_speed=2.0), "with a host 2 times as fast"),
    ],
)
def test_the_conditions_of_a_prediction_are_described_in_words(conditions: Conditions, said: str) -> None:
    assert prediction_text(predicted(conditions=conditions), "run", None, None).splitlines()[0].endswith(f": run {said}")


def test_an_unknown_expected_error_is_explained() -> None:
    unknown = predicted(expected_error=None, unscaled_share=0.6)
    assert error_words(unknown) == "unknown error, because 60.0 % of the recorded GPU time has no shapes"
    assert "; unknown error, because" in prediction_text(unknown, "run", None, None)
    typical = predicted(expected_error=None, from_unknown_gpu=True)
    assert error_words(typical) == "unknown error, because the recorded GPU is not in the table of GPUs"
    lost = predicted(expected_error=None, trace=Trace(problems={"lost-kernel": 4}))
    assert error_words(lost) == "unknown error, because kernels are missing from the recording"


def test_a_prediction_shows_no_range_if_both_ends_round_to_the_same_time() -> None:
    text = prediction_text(predicted(100.0, expected_error=0.0001), "run", None, None)  # the range is 99.99 to 100.01 ms
    assert text.splitlines()[1].endswith("; expected error <1 %")


def test_a_prediction_sweep_shows_one_row_per_condition_with_a_bar() -> None:
    """GIVEN predictions of 500 samples/s, 250 samples/s and an unknown rate THEN their bars are 40, 20 and 0 characters
    long."""
    rows = [predicted(), predicted(120.0, conditions=Conditions(nproc=2)), predicted(batch=0, expected_error=None)]
    text = sweep_text(rows, [0.5, 0.25, None], "run", width=100).splitlines()
    assert text[0] == "ESTIMATES, not measurements: run as recorded"
    assert text[2].split() == ["GPUs", "batch", "step", "error", "samples/s", "cost", "per", "sample"]
    assert [row.count("█") for row in text[3:]] == [40, 20, 0]
    assert text[4].split()[:6] == ["2", "30", "120.0", "ms", "±10", "%"] and text[4].split()[6:8] == ["250", "0.25"]
    assert text[5].split()[0] == "1" and "±" not in text[5]
    assert len({line.index("█") for line in text[3:5]}) == 1  # both bars begin in the same column
    assert "cost" not in sweep_text(rows, [None] * 3, "run").splitlines()[2]
    assert [row.count("█") for row in sweep_text(rows, [None] * 3, "run", width=80).splitlines()[3:]] == [20, 10, 0]
    assert [row.count("█") for row in sweep_text(rows, [None] * 3, "run", width=60).splitlines()[3:]] == [8, 4, 0]
