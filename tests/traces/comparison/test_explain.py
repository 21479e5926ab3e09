"""Tests the sentences that explain why one trace is slower than another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tests.replayer.compiled.handmade_recording import recording as compiled_recording
from tests.traces.figures.test_pace import Work, a_trace
from tests.traces.handmade import Call, data_parallel, phase_grained, training
from tests.traces.kineto import test_eras as eras
from tests.traces.kineto.test_odd_files import call, imported, kernel, span
from traces.analyses.idle import IdleTime
from traces.analyses.stragglers import RankLateness
from traces.combining.merge import merge_ranks
from traces.comparison import explain as explain_module
from traces.comparison.compare import compare
from traces.comparison.comparison_figures import Both, Reason
from traces.comparison.explain import Explanation, explain, slow_steps_sentence
from traces.comparison.fused_ops import FusedOps
from traces.format.trace_file import load
from traces.library import find
from traces.model.trace import NONE, PHASES, DeviceKind, DeviceSpans, Trace
from tui.text.diff import verdict_sentences


def explained(one: Trace, other: Trace) -> Explanation:
    return explain(compare(one, other))


def test_explain_finds_the_published_reasons_for_the_slowdown_on_two_gpus() -> None:
    found = explained(load(find("p100-no-cudnn")), load(find("p100x2-no-cudnn")))
    assert found.headline == "A step of B takes 16.3 ms longer than one of A: 759.7 ms -> 776.0 ms."
    assert found.delta_ns == 16_300_000
    assert found.summary == [
        "A step processes 128 samples on 1 GPU in A and 256 on 2 GPUs in B: 168.5 -> 329.9 samples/s (+95.8 %).",
        "The copies of nn.DataParallel between the GPUs take 29.3 ms of a step in B, including waits.",
    ]
    texts = [(reason.phase, reason.text.partition(";")[0]) for reason in found.reasons]
    assert texts == [
        ("", "forward takes 14.0 ms more: 254.7 ms -> 268.7 ms"),
        ("forward", "gather is new: 8.5 ms of a step"),
        ("forward", "scatter is new: 6.7 ms of a step"),
        ("forward", "replicate is new: 6.2 ms of a step"),
        ("", "h2d takes 6.2 ms less: 6.5 ms -> 300.0 µs"),
        ("", "backward takes 5.9 ms more: 495.1 ms -> 501.0 ms"),
        ("backward", "broadcast_backward is new: 5.7 ms of a step"),
        ("backward", "gather_backward is new: 2.2 ms of a step"),
        ("", "optimizer takes 2.4 ms more: 3.1 ms -> 5.5 ms"),
    ]
    phases = [reason for reason in found.reasons if not reason.phase]
    assert abs(sum(reason.delta_ns for reason in phases) - found.delta_ns) <= 0.002 * 776_000_000 * 5


def test_nn_dataparallel_on_one_gpu_copies_nothing_between_gpus() -> None:
    """GIVEN two traces of two GPUs WHEN all work of a trace is on one GPU THEN nn.DataParallel copies nothing between GPUs in
    this trace. The stages of nn.DataParallel still take time on the host."""

    def copies(*gpus: int) -> list[str]:
        two = load(find("p100x2-no-cudnn"))
        comparison = replace(compare(two, two), gpus=Both(*gpus))
        return [text for text in explain(comparison).summary if "nn.DataParallel" in text]

    assert copies(1, 1) == []
    sentence = "The copies of nn.DataParallel between the GPUs take 29.3 ms of a step in {}, including waits."
    assert copies(1, 2) == [sentence.format("B")] and copies(2, 1) == [sentence.format("A")]


def test_a_kernel_that_takes_no_time_in_one_trace_is_not_called_new() -> None:
    timed, untimed = training(), training()
    untimed.device.duration_ns[:] = 0
    texts = [reason.text for reason in explained(untimed, timed).reasons if reason.text.startswith(("kernel", "op"))]
    assert texts and all(" more: 0 -> " in text for text in texts)


def test_gpu_work_is_compared_per_gpu_if_the_traces_use_different_numbers_of_gpus() -> None:
    """GIVEN five kernels of 10 µs per step WHEN trace B runs every second kernel on another GPU THEN such a kernel takes 5 µs
    per GPU in B."""
    split = training()
    split.devices.append(replace(split.devices[0], index=1))
    split.device.device[1::2] = 1
    found = explained(training(), split)
    assert found.summary == ["A runs on 1 GPU, and B on 2 GPUs."]
    (kernel, *_) = [reason for reason in found.reasons if reason.text.startswith("kernel ")]
    assert (kernel.before_ns, kernel.after_ns) == (10_000, 5_000)
    assert kernel.text.endswith("1 -> 0.5 a step on average, on the GPU, mean of the GPUs")


def test_data_parallel_stages_are_listed_with_the_longer_of_host_and_gpu_time() -> None:
    """GIVEN a trace with nn.DataParallel stages WHEN no phases differ THEN the stages are listed like phases, the longest
    first.

    Each stage ends 1 µs later on the GPU than on the host, so scatter, replicate and gather take 3 µs instead of 2 µs.
    """
    found = explained(phase_grained(6), data_parallel())
    assert found.summary[-1].endswith("take 9.0 \N{MICRO SIGN}s of a step in B, including waits.")
    stages = [(reason.what, reason.after_ns, reason.phase) for reason in found.reasons if reason.what in ("scatter", "gather")]
    assert stages == [("scatter", 3_000, ""), ("gather", 3_000, "")]


def test_slow_data_loading_is_explained_by_waits_and_idle_gpus() -> None:
    found = explained(training(), training(loader_us=220))
    assert found.reasons[0].text.startswith("waiting for data (loader) takes 200.0 µs more: 20.0 µs -> 220.0 µs")
    assert any(reason.what.startswith("idle: ") and reason.delta_ns > 0 for reason in found.reasons)


def test_slower_kernels_are_named_with_their_counts() -> None:
    found = explained(training(), training(kernel_us=14))
    kernels = [reason for reason in found.reasons if reason.text.startswith("kernel ")]
    assert kernels and all(reason.delta_ns == 4000 for reason in kernels)
    assert "1 -> 1 a step, on the GPU" in kernels[0].text


def test_explain_names_a_slower_op_even_if_its_kernel_was_renamed() -> None:
    """GIVEN a convolution by cuDNN WHEN the second trace has a slower convolution by MIOpen THEN the op is named as slower,
    although its name and the name of its kernel differ."""
    other = training()
    other.device.duration_ns[1::5] = 30_000
    names = {"volta_sgemm_nn": "Cijk_Ailk_Bljk_S_B", "aten::cudnn_convolution": "aten::miopen_convolution"}
    other.strings.texts[:] = [names.get(text, text) for text in other.strings.texts]
    found = explained(training(), other)
    place = next(at for at, reason in enumerate(found.reasons) if reason.what == "op aten::cudnn_convolution")
    op, kernel = found.reasons[place : place + 2]
    assert op.text == "op aten::cudnn_convolution takes 20.0 µs more: 10.0 µs -> 30.0 µs; 1 -> 1 a step, on the GPU"
    assert kernel.text.startswith("kernel volta_sgemm_nn (in B: Cijk_Ailk_Bljk_S_B) takes 20.0 µs more: 10.0 µs -> 30.0 µs")
    assert kernel.phase == op.what and kernel.names == ("volta_sgemm_nn", "Cijk_Ailk_Bljk_S_B")
    assert not any(" is new" in reason.text or " is gone" in reason.text for reason in found.reasons)


@pytest.mark.parametrize(
    ("op_ns", "phase_ns", "what"), [(50_000, 100_000, "op relu"), (49_000, 100_000, "forward"), (-90_000, 100_000, "forward")]
)
def test_the_largest_reason_is_an_op_that_explains_at_least_half_of_its_phase(op_ns: int, phase_ns: int, what: str) -> None:
    """GIVEN a GPU that limits the step time WHEN an op explains at least half of the difference of its phase THEN the op is the
    largest reason, and otherwise its phase."""
    reasons = [
        Reason("forward", phase_ns, 0, phase_ns, "", ""),
        Reason("op relu", op_ns, 0, op_ns, "", "", ("relu",)),
        Reason("op tanh", phase_ns, 0, phase_ns, "forward", "", ("tanh",)),  # this op belongs to a phase that is listed
    ]
    comparison = compare(training(), training(kernel_us=14))
    found = Explanation("", [], comparison.steps.recorded_ns, "", reasons)
    with (
        patch.object(explain_module, "explain", return_value=found),
        patch.object(explain_module, "gpu_sets_step_time", return_value=True),
    ):
        most = explain_module.largest_reason(comparison)
    assert most is not None and most.what == what
    # WHEN the reasons explain less than 5 % of the difference THEN there is no largest reason
    small = replace(found, delta_ns=-100_000, reasons=[Reason("forward", -4_900, 4_900, 0, "", "")])
    with patch.object(explain_module, "explain", return_value=small):
        assert explain_module.largest_reason(comparison) is None


def synchronized(kernel_us: int) -> Trace:
    """Return a trace of 3 steps that launch 4 kernels in 80 us and then wait for the GPU."""
    events, begin_us = [], 0
    for step in range(3):
        done_us = begin_us
        for launch in range(4):
            number, at_us = 10 * step + launch + 1, begin_us + 20 * launch
            starts_us = max(at_us + 5, done_us)
            done_us = starts_us + kernel_us
            name = "aten::mm" if launch else "aten::relu"
            events += [eras.op(name, at_us, 10), eras.call(number, at_us + 1), eras.kernel(number, starts_us, kernel_us)]
        end_us = max(begin_us + 82, done_us + 1)
        wait = eras.call(10 * step + 9, begin_us + 80, end_us - begin_us - 80)
        mark = eras.op(f"ProfilerStep#{step}", begin_us, end_us - begin_us, cat="user_annotation")
        events += [wait | {"name": "cudaDeviceSynchronize"}, mark]
        begin_us = end_us
    return eras.imported(events)


def test_the_largest_reason_is_the_slower_op_rather_than_the_wait_for_it() -> None:
    """GIVEN kernels of 10 us in A and of 100 us in B WHEN the host waits for the GPU in B THEN the op is the largest reason,
    not the wait. In A, the host limits the pace."""
    found = compare(synchronized(10), synchronized(100))
    assert [pace and pace.limit for pace in found.paces] == ["host", "device"]
    assert found.largest_reason is not None and found.largest_reason.what == "op aten::mm"
    assert found.largest_reason.delta_ns == 3 * 90_000


@pytest.mark.parametrize("tolerance", [0.0, 0.05, 1.5])
def test_the_largest_reason_does_not_depend_on_the_tolerance(tolerance: float) -> None:
    found = compare(synchronized(10), synchronized(100), tolerance)
    assert found.largest_reason is not None and found.largest_reason.what == "op aten::mm"


def test_explain_compares_the_copies_that_do_not_overlap_with_compute() -> None:
    """GIVEN a kernel of 10 ms and a copy of 6 ms per step WHEN the copy runs before the kernel in A and during the kernel in B
    THEN B waits 6 ms less. Waits below 2 % of a step are also compared."""

    def copying(step_ms: float, kernel_ms: float) -> Trace:
        starts = [step * step_ms for step in range(4)]
        work = [Work(at, at, at + 6, stream=8) for at in starts]
        work += [Work(at, at + kernel_ms, at + kernel_ms + 10) for at in starts]
        trace = a_trace([(at, at + step_ms) for at in starts], work)
        trace.device.kind[:4], trace.device.name[:4] = DeviceKind.MEMCPY, trace.strings.add("Memcpy HtoD (Pinned -> Device)")
        return trace

    overlapping = (copying(10, 0), "6.0 ms less: 6.0 ms -> 0"), (copying(10.1, 0.1), "5.9 ms less: 6.0 ms -> 100.0 µs")
    for second, waits in overlapping:
        found = [reason for reason in explained(copying(16, 6), second).reasons if reason.what == "copies"]
        assert [reason.text for reason in found] == [
            f"copies between host and GPU that did not overlap with compute take {waits}"
        ]
    assert not any(reason.what == "copies" for reason in explained(copying(16, 6), phase_grained()).reasons)


def test_explain_reports_different_programs_and_differences_within_the_noise() -> None:
    other = training()
    other.strings.texts[:] = [text.replace("aten::", "aten::other_") for text in other.strings.texts]
    found = explained(training(), other)
    assert found.caution.startswith("These are not the same program (")
    assert explained(training(), training(kernel_us=14)).caution == ""


def test_explain_compares_ranks_on_different_devices() -> None:
    """GIVEN a trace of one rank on cuda:1 WHEN its kernel parameters have other names, as in another release THEN no kernel is
    new or gone."""
    other = training(kernel_us=14)
    other.devices[:] = [replace(device, index=1) for device in other.devices]
    other.strings.texts[:] = [f"{text}(New*)" if "kernel" in text else text for text in other.strings.texts]
    found = explained(training(), other)
    assert not any(" is new" in reason.text or " is gone" in reason.text for reason in found.reasons)


def test_explain_compares_the_step_time_per_backward_pass_if_gradients_are_accumulated() -> None:
    """GIVEN a step with one backward pass WHEN a step of the other trace takes twice as long for two passes THEN the step time
    per pass is equal."""
    accumulated = training(stretch=2.0, loader_us=40)
    names = accumulated.phases.name
    names[names == accumulated.strings.find("h2d")] = accumulated.strings.find("backward")
    found, lasts = explained(training(), accumulated), "100.0 µs"
    assert found.summary == [f"Backward passes per step: 1 in A and 2 in B. Step time per pass: {lasts} -> {lasts} (+0.0 %)."]


def test_equal_traces_need_no_explanation() -> None:
    found = explained(training(), training())
    assert found.delta_ns == 0 and found.reasons == [] and found.headline.startswith("Both steps take")


def test_differences_of_traces_without_steps_cannot_be_explained() -> None:
    found = explained(Trace(), training())
    assert found.delta_ns is None and "no steps" in found.headline


def test_explain_marks_a_predicted_trace_as_an_estimate() -> None:
    """GIVEN a trace made by `trace predict` WHEN it is explained THEN the text calls it an ESTIMATE."""
    predicted = training()
    for rank in predicted.ranks:
        predicted.runs[rank] = replace(predicted.run_of(rank), predicted=True)
    assert explained(training(), predicted).caution.startswith("B is an ESTIMATE")
    assert "ESTIMATE" not in explained(training(), training()).caution


def running_ahead(kernel_us: int) -> Trace:
    """Return a trace whose steps take 100 us on the host. Each step launches five kernels that run without gaps."""
    trace = training(kernel_us=kernel_us)
    lasts_ns = trace.device.duration_ns
    trace.device.start_ns = trace.device.start_ns[0] + lasts_ns.cumsum() - lasts_ns
    return trace


def test_if_the_host_runs_ahead_explain_names_the_gpu_work_of_phases() -> None:
    found = explained(running_ahead(200), running_ahead(400))
    assert found.headline == "A step of B takes 1.0 ms longer than one of A: 1.0 ms -> 2.0 ms."
    phases = {reason.what: reason.text for reason in found.reasons if reason.what in PHASES}
    assert phases == {
        name: f"GPU work of {name} takes 200.0 \N{MICRO SIGN}s more: 200.0 \N{MICRO SIGN}s -> 400.0 \N{MICRO SIGN}s"
        for name in ("h2d", "forward", "loss", "backward", "optimizer")
    }


def test_explain_names_no_gpu_work_if_only_one_trace_recorded_kernels() -> None:
    """GIVEN a trace A with kernels and a trace B of the same steps with phase times only THEN no reason is about GPU work."""
    found = explained(running_ahead(200), phase_grained())
    assert [reason.text for reason in found.reasons if "GPU work" in reason.text] == []


def test_mean_gpu_work_per_gpu_is_compared_if_the_numbers_of_gpus_differ() -> None:
    """GIVEN a trace B with a kernel of 400 us per phase on each of two GPUs THEN the compared GPU work of a phase is 400 us,
    not 800 us."""
    both = running_ahead(400)
    both.devices.append(replace(both.devices[0], index=1))
    second = both.device.take(np.arange(len(both.device)))
    second.device[:] = 1
    both.device = DeviceSpans.concatenated([both.device, second])
    found = {reason.what: reason for reason in explained(running_ahead(200), both).reasons if reason.what in PHASES}
    assert {(of.before_ns, of.after_ns) for of in found.values()} == {(200_000, 400_000)} and len(found) == 5
    assert found["loss"].text.endswith("400.0 \N{MICRO SIGN}s; mean of the GPUs")


def waiting(kernel_ns: int) -> Trace:
    """Return a trace with steps of 100 us and five kernels per step, one every 20 us. The host waits for the last kernel of
    each step."""
    trace = training()
    trace.device.start_ns = trace.device.start_ns[0] + 20_000 * np.arange(len(trace.device))
    trace.device.duration_ns[:] = kernel_ns
    return trace


def test_explain_names_the_gpu_work_of_phases_if_the_gpu_limits_both_traces() -> None:
    """GIVEN a GPU that is busy for 95 % of trace A and 99.5 % of trace B WHEN each phase has one kernel THEN the GPU work of
    each phase is a reason."""
    found = explained(waiting(19_000), waiting(19_900))
    assert {reason.text for reason in found.reasons if reason.what in PHASES} == {
        f"GPU work of {name} takes 0.9 \N{MICRO SIGN}s more: 19.0 \N{MICRO SIGN}s -> 19.9 \N{MICRO SIGN}s"
        for name in ("h2d", "forward", "loss", "backward", "optimizer")
    }
    assert not any(reason.text.startswith("GPU work") for reason in explained(waiting(8_000), waiting(9_000)).reasons)


@pytest.mark.parametrize(
    ("after_ms", "wait_ms", "said"),
    [(110, 5, "5.0 ms longer"), (110, 4.9, ""), (110, -20, ""), (90, -5, "5.0 ms shorter"), (90, -4.9, ""), (90, 20, "")],
)
def test_a_wait_explains_a_phase_if_it_makes_up_half_of_the_difference(after_ms: int, wait_ms: float, said: str) -> None:
    """GIVEN a phase that waits 30 of 100 ms for the GPU in A WHEN the change of the wait is at least half of the change of the
    phase THEN the wait explains the phase."""
    comparison = compare(training(3), training(3))
    times = {"recorded_median_ns": 100_000_000, "replayed_median_ns": after_ms * 1_000_000}
    waits = {"wait_recorded_median_ns": 30_000_000, "wait_replayed_median_ns": round((30 + wait_ms) * 1_000_000)}
    phase = replace(comparison.phases["forward"], **times, **waits)
    with patch.object(explain_module, "gpu_sets_step_time", return_value=False):
        [reason] = explain_module._phases(replace(comparison, phases={"forward": phase}))
    assert reason.text.partition("its wait for the GPU is ")[2] == said


def test_explain_names_a_phase_that_waits_less_for_the_gpu() -> None:
    """GIVEN a host that waits 1,969 us for the GPU in A and 19 us in B THEN the wait of the optimizer phase is 1,950 us shorter
    in B."""
    sides = []
    for launching_us, step_us in ((30, 2_000), (2_970, 3_000)):
        events = []
        for step in range(4):
            begin = step * step_us
            optimizer = begin + launching_us
            events += [
                span(f"ProfilerStep#{step}", begin, step_us, "user_annotation"),
                span("aten::mm", begin, launching_us - 1, External_id=2 * step + 1),
                call(2 * step + 1, begin + 5),
                span("Optimizer.step#SGD.step", optimizer, step_us - launching_us, "user_annotation"),
                span("aten::add_", optimizer + 1, 4, External_id=2 * step + 2),
                call(2 * step + 2, optimizer + 2),
                call(100 + step, optimizer + 10, step_us - launching_us - 11, "cudaDeviceSynchronize"),
                kernel(begin + 10, 15, 2 * step + 1),
                kernel(optimizer + 5, step_us - launching_us - 7, 2 * step + 2),
            ]
        sides.append(imported(*events))
    texts = [reason.text for reason in explained(*sides).reasons]
    assert "forward takes 2.9 ms more: 30.0 µs -> 3.0 ms; on the host" in texts
    waits = "on the host: its wait for the GPU is 1.9 ms shorter"
    assert f"optimizer takes 1.9 ms less: 2.0 ms -> 30.0 µs; {waits}" in texts


def test_kernels_of_unknown_ops_are_not_described_as_an_op() -> None:
    """GIVEN matrix product kernels whose ops are unknown, as in a CUDA graph WHEN they take 10 us in A and 14 us in B THEN the
    text calls them kernels."""
    sides = [training(), training(kernel_us=14)]
    for side in sides:
        side.strings.texts[:] = [text.replace("volta_sgemm", "volta_gemm") for text in side.strings.texts]
        side.device.launch[:] = NONE
    texts = [reason.text for reason in explained(*sides).reasons]
    assert any(text.startswith("matrix product kernels take 8.0 µs more: 20.0 µs -> 28.0 µs") for text in texts), texts


def idle(steps: int = 4, **by_reason: int) -> IdleTime:
    return IdleTime(window_ns=400_000, busy_ns=200_000, by_reason=by_reason, steps=steps)


def idle_reasons(recorded: dict[str, IdleTime], replayed: dict[str, IdleTime]) -> list[tuple[str, Any, Any, str]]:
    """Return what `explain` says about idle time if two traces had these times. The times are sums over all steps."""
    comparison = compare(training(), training())
    both = comparison.analyses
    both = replace(both, recorded=replace(both.recorded, idle=recorded), replayed=replace(both.replayed, idle=replayed))
    reasons = explain(replace(comparison, analyses=both)).reasons
    return [(one.what, one.before_ns, one.after_ns, one.text) for one in reasons if one.what.startswith("idle")]


def test_explain_compares_idle_time_even_if_one_trace_has_no_idle_time() -> None:
    words = "idle time of cuda:0 (waiting for another stream)"
    found = idle_reasons({"cuda:0": idle(stream=0)}, {"cuda:0": idle(stream=40_000)})
    assert found == [("idle: stream (cuda:0)", 0, 10_000, f"{words} is 10.0 \N{MICRO SIGN}s more: 0 -> 10.0 \N{MICRO SIGN}s")]
    found = idle_reasons({"cuda:0": idle(2, stream=40_000)}, {"cuda:0": idle()})
    assert found == [("idle: stream (cuda:0)", 20_000, 0, f"{words} is 20.0 \N{MICRO SIGN}s less: 20.0 \N{MICRO SIGN}s -> 0")]


def test_idle_time_is_explained_for_devices_with_other_names() -> None:
    """GIVEN one GPU in each trace THEN the two GPUs are compared, although their names differ. GIVEN a second GPU in B THEN the
    means per GPU are compared."""
    (found,) = idle_reasons({"cuda:0": idle(host=0)}, {"cuda:3": idle(host=80_000)})
    assert found[:3] == ("idle: host (cuda:0 (B: cuda:3))", 0, 20_000)
    (found,) = idle_reasons({"cuda:0": idle(host=80_000)}, {"cuda:0": idle(host=80_000), "cuda:1": idle(host=0)})
    assert found[:3] == ("idle: host (a GPU (A: 1, B: 2))", 20_000, 10_000)
    (found,) = idle_reasons({"cuda:0": idle(host=80_000)}, {"cuda:0": idle(0, host=80_000)})
    assert found[2] is None and " is gone: 20.0" in found[3]  # the second device has no profiled steps
    assert idle_reasons({}, {"cuda:0": idle(host=80_000)}) == []


def test_a_difference_within_the_noise_of_the_steps_is_called_noise() -> None:
    """GIVEN steps of 100 and 110 us THEN the noise is 4.8 % of the median, 105 us. The noise is half of the range between the
    quartiles."""
    noisy = training(8, jitter_us=(0, 10))
    comparison = compare(noisy, training(8, jitter_us=(0, 10), loader_us=25))
    assert explain(comparison).caution == "Step time varies by ±4.8 % between steps, so this difference may be noise."
    assert explain(compare(noisy, training(8, jitter_us=(0, 10), loader_us=26))).caution == ""
    assert explain(compare(noisy, noisy)).caution == ""  # the traces do not differ


def test_reasons_below_0_2_percent_of_the_step_are_omitted() -> None:
    """GIVEN a step of 1000 us WHEN data loading takes 2 us longer THEN data loading is a reason. A difference of 1 us is
    omitted."""
    reasons = {more: explained(training(loader_us=920), training(loader_us=920 - more)).reasons for more in (0, 1, 2)}
    assert (reasons[0], reasons[1]) == ([], [])
    assert reasons[2][0].text.startswith("waiting for data (loader) takes 2.0 \N{MICRO SIGN}s less")
    assert explained(training(loader_us=922), training(loader_us=920)).reasons == []  # 0.2 % of the longer step exceed 2 us


def test_explain_says_that_the_gpu_work_of_several_ranks_is_a_mean() -> None:
    """GIVEN two ranks whose phases take 200 us WHEN they take 400 us on rank 1 of the other trace THEN the mean is 300 us."""
    even, uneven = (merge_ranks([running_ahead(200), running_ahead(us)], [0, 1]) for us in (200, 400))
    us = "\N{MICRO SIGN}s"
    texts = [reason.text for reason in explained(even, uneven).reasons]
    waits = "without waits for other ranks, mean of the ranks"
    assert f"GPU work of forward takes 100.0 {us} more: 200.0 {us} -> 300.0 {us}; {waits}" in texts
    op = f"op aten::add_ takes 100.0 {us} more: 200.0 {us} -> 300.0 {us}; 1 -> 1 a step, on the GPU, mean of the ranks"
    assert op in texts


def test_mean_idle_time_per_gpu_is_compared_if_the_numbers_of_gpus_differ() -> None:
    """GIVEN a trace of one rank WHEN the other trace has two ranks that each load data for 200 us longer THEN the compared idle
    time is the mean of the ranks, 200 us longer."""
    one, slow = training(), training(loader_us=220)
    two = merge_ranks([slow, training(loader_us=220)], [0, 1])
    both = compare(one, two)
    idle = [reason for reason in explain(both).reasons if reason.what.startswith("idle: data")]
    assert both.ranks == Both(1, 2)
    assert [(reason.what, reason.delta_ns) for reason in idle] == [("idle: data (a GPU (A: 1, B: 2))", 200_000)]


def test_idle_time_in_a_few_long_steps_does_not_explain_different_medians() -> None:
    """GIVEN steps of 100 us WHEN one of ten steps takes 500 us longer THEN idle time is no reason. WHEN all steps are longer
    and vary THEN idle time is a reason for the difference."""
    both = compare(training(steps=10), training(steps=10, jitter_us=(0, 0, 0, 0, 0, 500, 0, 0, 0, 0)))
    assert both.steps.error == 0.0 and both.paces.replayed is not None and both.paces.replayed.mean is not None
    assert [reason.what for reason in explain(both).reasons] == []
    both = compare(training(steps=8), training(steps=8, jitter_us=(50, 250, 100, 200, 60, 240, 110, 160)))
    assert not both.steps.has_means and both.paces.replayed is not None and both.paces.replayed.mean is not None
    assert [reason.delta_ns for reason in explain(both).reasons] == [135_000, 146_250]


def test_explain_notes_that_step_times_vary_in_only_one_recording() -> None:
    """GIVEN steps of 10, 10 and 16 ms in B THEN `explain` says that the average step is 20 % longer than the median step."""
    even, slow = a_trace([(0, 10), (10, 20), (20, 30)]), a_trace([(0, 10), (10, 20), (20, 36)])
    found = compare(even, slow)
    assert found.problems == Both([], ["The average step is 20 % longer than the median step."])
    assert "In B: The average step is 20 % longer" in explain(found).caution
    # WHEN the third step takes 70 ms THEN the mean of 30 ms is three times the median
    assert compare(even, a_trace([(0, 10), (10, 20), (20, 90)])).problems.replayed == [
        "The average step is 3.0 times as long as the median step."
    ]


def test_explain_mentions_a_single_slow_step_even_if_medians_are_equal() -> None:
    """GIVEN five steps of 100 us WHEN the last step takes 250 us in B THEN the comparison of medians passes, and the text
    mentions the average step of 130 us."""
    found = compare(training(steps=5), training(steps=5, jitter_us=(0, 0, 0, 0, 150)))
    text = "But the average step, which includes single slow steps, differs: 100.0 µs -> 130.0 µs."
    assert found.within_tolerance and verdict_sentences(found)[0][0].endswith(text)
    assert explain(found).headline == f"Both steps take 100.0 µs. {text}"
    # WHEN the average steps differ by less than the tolerance or the noise THEN the text does not mention them
    assert slow_steps_sentence(replace(found, tolerance=0.31)) == ""
    assert slow_steps_sentence(replace(found, steps=replace(found.steps, average_noise=0.31))) == ""
    quarter = compare(training(steps=5), training(steps=5, jitter_us=(0, 0, 0, 0, 125)))
    assert slow_steps_sentence(replace(quarter, tolerance=0.25)) == ""
    # WHEN the medians are equal THEN any tolerance is enough
    text = "But the average step, which includes single slow steps, differs: 100.0 µs -> 125.0 µs."
    assert slow_steps_sentence(replace(quarter, tolerance=0.24)) == slow_steps_sentence(replace(quarter, tolerance=0.0)) == text


def test_explain_sorts_gpu_reasons_by_size() -> None:
    """GIVEN a host that runs ahead WHEN waits for data grow by 200 us and kernels by 4 us each THEN idle time is the first
    reason. Idle time grows by only 200 - 3 / 4 us, because a longer kernel shortens three of four waits by 1 us."""
    found = compare(training(), training(loader_us=220, kernel_us=14))
    paces = Both(*(pace and replace(pace, host_runs_ahead=True) for pace in found.paces))
    sizes = [abs(reason.delta_ns) for reason in explain(replace(found, paces=paces)).reasons if not reason.phase]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) > 2
    first = explain(replace(found, paces=paces)).reasons[0]
    assert first.text.startswith("idle time of cuda:0 (waiting for data)") and first.delta_ns == 199_250


def test_explain_lists_five_ops_and_the_kernels_of_these_ops_only() -> None:
    """GIVEN seven ops with one kernel each WHEN each kernel takes 4 us more THEN five ops are listed, each with its kernel."""
    ops = [Call(f"aten::op{number}", "2,2", 10 * number + 20, f"kernel{number}") for number in range(7)]
    reasons = explained(training(made=ops), training(made=ops, kernel_us=14)).reasons
    listed = [(f"op aten::op{number}", f"kernel kernel{number}") for number in range(5)]
    assert [one.what for one in reasons if not one.what.startswith("idle")] == [name for both in listed for name in both]


def test_explain_first_names_the_only_gpu_that_became_slower() -> None:
    """GIVEN two GPUs that work for 4 of 10 ms WHEN the kernels of the second GPU take 8 ms in B THEN this is the first reason.
    The idle time of the first GPU, which waits for the second, comes later."""

    def two_gpus(long: int, *of_devices: float) -> Trace:
        return a_trace(
            [(long * step, long * step + long - 0.1) for step in range(4)],
            [Work(long * step + 0.1, long * step + 0.2, long * step + 0.2 + lasts, device=device)
             for step in range(4) for device, lasts in enumerate(of_devices)],
            devices=(0, 0),
        )  # fmt: skip

    both = two_gpus(10, 4, 4), two_gpus(14, 4, 8)
    reason = explained(*both).reasons[0]
    assert reason.text == "GPU work of cuda:1 takes 4.0 ms more: 4.0 ms -> 8.0 ms; on cuda:0, the difference is 0"
    # WHEN the first GPU becomes slower by at most half as much THEN the second GPU is still named first
    for lasts, is_named in ((6, True), (6.001, False)):
        named = {reason.what for reason in explained(both[0], two_gpus(14, lasts, 8)).reasons}
        assert ("GPU work (cuda:1)" in named) is is_named
    # WHEN both GPUs become slower THEN neither GPU is named
    alike = [reason.what for reason in explained(both[0], both[0]).reasons]
    assert not any(what.startswith("GPU work (") for what in alike)


def test_explain_names_a_rank_that_the_others_wait_for() -> None:
    """GIVEN a trace B in which rank 1 is late by 6 ms in three steps THEN 2 ms of a step are explained as waits for rank 1."""
    trace = a_trace([(10 * step, 10 * step + 9.9) for step in range(3)], [Work(0.1, 0.2, 4)], devices=(0,))
    comparison = compare(trace, trace)
    after = comparison.analyses.replayed
    late = [RankLateness(1, 3, 3, 0, 6_000_000, 2_000_000), RankLateness(0, 3, 0, 6_000_000, 0)]
    changed = replace(comparison, analyses=Both(after, replace(after, stragglers=late)))
    (reason,) = explain(changed).reasons
    assert reason.text == "waiting for rank 1 at collectives is new: 2.0 ms of a step"


def test_explain_names_fused_kernels_and_eager_ops_without_counterparts() -> None:
    """GIVEN a fused kernel that replaces no eager op, and eager ops that no fused kernel replaces THEN the text names both."""
    of = compiled_recording()
    alone = FusedOps(("triton_poi_fused_0",), 1, 900_000, {}, 0), FusedOps((), 0, 0, {"add": 2}, 700_000)
    found = explain(replace(compare(of, of), fused=alone))
    assert [reason.text for reason in found.reasons if "fused" in reason.text] == [
        "no eager op (in B fused into triton_poi_fused_0) is new: 900.0 µs of a step; on the GPU",
        "2 x add (no fused kernel of B names it) is gone: 700.0 µs of a step; on the GPU",
    ]
