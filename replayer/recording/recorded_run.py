"""Reads a recorded run, and groups its op calls by training step and phase.

    recording = RecordedRun(trace)
    segment = recording.choice.training(0).segments["forward", 0]
    segment.exact[recording.keys[signature].exact]       # [Instance(start_ns, end_ns, kernels), ...]
    recording.costs, recording.speed                     # estimates of unrecorded ops, adjusted to the recorded ops
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from replayer.cost_model.constants import SHORT_KERNEL_NS
from replayer.cost_model.device_speed import DeviceSpeed, data_sheet_speed, fitted_speed, shortest_kernel_ns
from replayer.cost_model.op_costs import OpCosts, Sample
from replayer.cost_model.op_work import ConvolutionOutputs
from replayer.op_signature import KeptBySignature
from replayer.recording.data_parallel_stages import copy_method_of
from replayer.recording.indexer import RecordingIndexer
from replayer.recording.library_pace import LibraryPace
from replayer.recording.match_keys import RecordedKeys
from replayer.recording.recorded_regions import RecordedRegions
from replayer.recording.recorded_step import Instance, RecordedStep
from replayer.recording.step_choice import StepChoice
from traces.figures.measure import own_graph_launches
from traces.model.machine import TorchSettings
from traces.model.run import RECORDER
from traces.model.trace import NONE, DeviceKind, Trace
from traces.names.cards import card_of
from traces.rates.op_cost import flops, size_bytes


class RecordedRun:
    def __init__(self, trace: Trace, rank: int = 0, slowdown: float = 1.0) -> None:
        """Read the steps of one rank. The durations of kernels and copies, except communication, are multiplied by
        `slowdown`."""
        self.trace = trace
        self.slowdown = slowdown
        self.devices = [device for device in trace.devices if device.rank == rank]
        self.copy_method = copy_method_of(trace)
        self.library_pace: LibraryPace | None = None
        self.match_keys = RecordedKeys(trace)
        self.keys = KeptBySignature(self.match_keys.of_signature)
        self.regions = RecordedRegions.of(trace, rank, self.match_keys, self.keys)
        indexer = RecordingIndexer(trace, rank, self.match_keys, slowdown)
        self.steps = indexer.recorded_steps()
        self.latency_ns, self.launch_queue_depth = indexer.latency_ns, indexer.launch_queue_depth
        self.choice = StepChoice(self.steps, trace.grain)
        # see Note [Phases in a CUDA graph] in traces/combining/merge.py
        self.has_phases_of_recorder = trace.run_of(rank).source == RECORDER and len(own_graph_launches(trace)) > 0
        device_name, settings = self.devices[0].name if self.devices else "", trace.machine_of(rank).settings
        self.speed: DeviceSpeed = data_sheet_speed(device_name)
        self.costs = OpCosts(card_of(device_name), settings)
        self.costs.slowdown = slowdown
        self._sample()

    def follow_settings_of_script(self) -> None:
        """Let the cost model use the script's current settings, such as TF32."""
        import torch  # import torch only here, because some commands run no script and do not need torch

        self.costs.settings = TorchSettings.of_process(torch)

    def index_of(self, step: RecordedStep) -> int:
        return next((i for i, one in enumerate(self.steps) if one is step or one.row == step.row), NONE)

    def _sample(self) -> None:
        fit = []
        host_ns: dict[str, list[int]] = {}
        self.samples: dict[str, list[tuple[Instance, int]]] = {}
        for index in self.choice.cycle[:2]:
            step = self.steps[index]
            for segment in step.segments.values():
                for name, pace_ns in _host_paces(segment.named):
                    host_ns.setdefault(name, []).append(pace_ns)
                for name, instances in segment.named.items():
                    for one in instances:
                        ns = step.work_ns(one.kernels)
                        self.samples.setdefault(name, []).append((one, ns))
                        is_long = ns > SHORT_KERNEL_NS * len(one.kernels)
                        if is_long and not flops(name.partition("|")[0], one.shapes):
                            fit.append((size_bytes(one.shapes, one.dtype), round(ns / self.slowdown)))
        # median of `_host_paces` by key of the op's name
        self.host_ns = {name: int(median(times_ns)) for name, times_ns in host_ns.items()}
        self.usual_host_ns = int(median(self.host_ns.values())) if self.host_ns else 0
        device = self.trace.device
        floor_ns = shortest_kernel_ns(device.duration_ns[device.kind == DeviceKind.KERNEL])
        self.speed = fitted_speed(fit, replace(self.speed, floor_ns=floor_ns))
        self.costs.floor_ns = floor_ns
        self.convolution_outputs = ConvolutionOutputs(
            one.shapes
            for name, samples in self.samples.items()
            if name.startswith("convolution_backward|")
            for one, _ in samples
        )
        self.costs.learn(self._op_samples())

    def _op_samples(self) -> Iterator[Sample]:
        for name, samples in self.samples.items():
            op, _, inputs = name.partition("|")
            if inputs.partition("|")[2]:
                continue
            for one, ns in samples:
                outputs = self.convolution_outputs.of(one.shapes) if op == "convolution" else ()
                yield op, one.shapes, outputs, one.dtype, one.layout, ns


def _host_paces(named: Mapping[str, Sequence[Instance]]) -> Iterator[tuple[str, int]]:
    calls = sorted((one.start_ns, -one.end_ns, name) for name, instances in named.items() for one in instances)
    within: list[list[int]] = [[]]
    open_calls: list[tuple[int, int]] = []
    for row, (start_ns, end_ns, _) in enumerate(calls, start=1):
        while open_calls and open_calls[-1][0] <= start_ns:
            open_calls.pop()
        within[open_calls[-1][1] if open_calls else 0].append(row)
        within.append([])
        open_calls.append((-end_ns, row))
    last_ns = [max(-end_ns - start_ns, 0) for start_ns, end_ns, _ in calls]
    # The CPU time of an op includes the time until the next op starts. If an op calls inner ops, the inner ops share the CPU
    # time of the outer op.
    paces = [0.0, *last_ns]
    for row, following in pairwise(within[0]):
        paces[row] = calls[following - 1][0] - calls[row - 1][0]
    for row, parts in enumerate(within[1:], start=1):
        total_ns = sum(last_ns[part - 1] for part in parts)
        for part in parts:
            paces[part] = paces[row] * last_ns[part - 1] / total_ns if total_ns else 0.0
    for row, (_, _, name) in enumerate(calls, start=1):
        yield name, int(paces[row])
