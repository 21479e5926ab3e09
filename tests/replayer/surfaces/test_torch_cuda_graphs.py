# mypy: allow-untyped-calls
"""Tests which work a CUDA graph captures and replays, and which calls are forbidden during a capture. Each test runs in a fork
of an interpreter that has imported torch (warm.py)."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from replayer import state
from replayer.cuda_error import SINCE_2_14
from replayer.errors import NotEmulated
from replayer.gpu.virtual_gpu import VirtualGpu
from replayer.memory.cublas_workspaces import BlasWorkspaces
from tests.replayer.recordings import FakeClock, Log, Op, make_recording
from traces.model.machine import Machine
from traces.model.trace import Origin, Trace

MS = 1_000_000
BEFORE_2_14 = "Called CUDAGraph::replay without a preceding successful capture"
REPLAYED_TOO_EARLY = r"capture_end\(\) must have been called before calling instantiate" if SINCE_2_14 else BEFORE_2_14
cuda: Any = torch.cuda  # torch declares no type for `_sleep`


def start() -> tuple[VirtualGpu, Log]:
    """Start a replay of one step with two products of 2 ms each. The slow host launches the second product 10 ms after the
    first one."""
    shapes = ((4, 4), (4, 4))
    ops = [Op("aten::mm", start, 20, kernel=(start + 10, 2_000), shapes=shapes) for start in (10_000, 20_000)]
    return replaying(make_recording([("forward", 0, 30_000)], ops))


def replaying(trace: Trace) -> tuple[VirtualGpu, Log]:
    log = Log()
    gpu = VirtualGpu(trace, 0, FakeClock(), log)  # type: ignore[arg-type]
    state.start(lambda: gpu)
    return gpu, log


def end_of(row: dict[str, int]) -> int:
    return row["start_ns"] + row["duration_ns"]


def captured(x: torch.Tensor) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x @ x @ x
    return graph, y


def test_capturing_a_graph_takes_no_gpu_time_and_replaying_it_is_one_launch() -> None:
    """GIVEN two recorded products 10 ms apart WHEN a graph of both is replayed THEN the second product follows without a
    gap."""
    gpu, log = start()
    x = torch.ones(4, 4, device="cuda")
    torch.cuda.synchronize()
    before = len(log.device)
    graph, _ = captured(x)
    torch.cuda.synchronize()
    assert len(log.device) == before and not torch.cuda.is_current_stream_capturing()
    host_ns = gpu.streams.present_ns()
    graph.replay()
    assert gpu.streams.present_ns() == host_ns  # the host only launches the graph, and does not wait
    first, second = log.device[before:]
    assert second["start_ns"] - end_of(first) < MS and first["duration_ns"] == second["duration_ns"] == 2 * MS
    assert not {Origin.ROOFLINE, Origin.PHASE} & {row["origin"] for row in (first, second)}
    torch.cuda.synchronize()
    assert gpu.clock.now_ns() - host_ns >= 4 * MS


def test_a_graph_that_begins_with_a_training_phase_takes_the_recorded_launch() -> None:
    """GIVEN a recorded graph in the forward pass WHEN the script's graph begins with zero_grad THEN its launch takes the
    recorded work."""
    trace = make_recording([("forward", 0, 30_000)], [Op("cudaGraphLaunch", 10_000, 20, kernel=(10_010, 5_000), shapes=())])
    trace.host.dtypes[:] = trace.strings.add("")
    _, log = replaying(trace)
    model, x = nn.Linear(4, 4).cuda(), torch.ones(4, 4, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.zero_grad()
        model(x.clone())
    torch.cuda.synchronize()
    before = len(log.device)
    graph.replay()
    (work,) = log.device[before:]
    assert work["duration_ns"] == 5 * MS and work["origin"] == Origin.EXACT


def test_captured_modules_have_returned_after_a_launch_of_their_graph() -> None:
    """After that, the next copy to the GPU can begin a step, as in a recording."""
    gpu, _ = start()
    model, x, graph = nn.Linear(512, 512).cuda(), torch.ones(512, 512, device="cuda"), torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        model(x)
    graph.replay()
    assert not gpu.simulator.tracker.script.is_in_module


def test_each_launch_of_a_graph_with_random_numbers_writes_its_seed_and_offset() -> None:
    gpu, log = start()
    x, graphs = torch.ones(4, 4, device="cuda"), []
    for function in (torch.nn.functional.dropout, torch.nn.functional.relu):
        with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
            function(x)
        graphs.append(graph)
    before = len(log.host)
    for graph in graphs:
        graph.replay()
    gpu.launches.flush()
    names = [log.strings[row[2]] for row in log.host[before:]]
    assert names == ["aten::fill_", "aten::fill_", "cudaGraphLaunch", "cudaGraphLaunch"]


def test_writes_of_seed_and_offset_belong_to_the_first_phase_of_the_graph() -> None:
    """The recorded forward pass writes a seed and an offset before it launches a graph. If the script launches a graph with
    dropout, its writes take the recorded times, too."""
    ops = [Op("aten::fill_", at_us, 20, kernel=(at_us + 10, 3_000), shapes=((1,),)) for at_us in (2_000, 6_000)]
    trace = make_recording(
        [("other", 0, 1_000), ("forward", 1_000, 30_000)],
        [*ops, Op("cudaGraphLaunch", 10_000, 20, kernel=(10_010, 5_000), shapes=())],
    )
    trace.host.dtypes[:] = trace.strings.add("")
    _, log = replaying(trace)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).cuda(), torch.ones(4, 4, device="cuda")
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        model(x)
    torch.cuda.synchronize()
    before = len(log.device)
    graph.replay()
    torch.cuda.synchronize()
    assert [row["duration_ns"] // MS for row in log.device[before:]] == [3, 3, 5]


def test_the_cublas_workspace_of_a_captured_stream_is_kept() -> None:
    """A capture uses the workspace that its stream already has. Another stream gets a second workspace."""
    gpu, _ = start()
    gpu.blas = BlasWorkspaces(Machine(torch="2.13.0+cu126", cuda="12.6"), [8])
    x = torch.ones(4, 4, device="cuda")
    stream, workspaces = torch.cuda.Stream(), []
    graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
    with torch.cuda.stream(stream):
        x @ x
    for graph, capturing in zip(graphs, (stream, torch.cuda.Stream()), strict=True):
        with torch.cuda.graph(graph, stream=capturing):
            x @ x
        workspaces.append(torch.cuda.memory_allocated() // gpu.blas.size_bytes(0))
    assert workspaces == [1, 2]


def test_the_memory_pool_of_a_capture_lives_as_long_as_its_graph() -> None:
    start()
    x = torch.ones(512, 512, device="cuda")
    graph, y = captured(x)
    reserved = torch.cuda.memory_reserved()
    address = y.data_ptr()
    del y
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved  # replays of the graph write to this memory
    others = [torch.empty(512, 512, device="cuda") for _ in range(3)]
    assert address not in [other.data_ptr() for other in others]
    del graph
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < torch.cuda.memory_allocated() + reserved


def test_captures_do_not_change_values_but_graph_launches_make_them_unknown() -> None:
    """GIVEN a counter with a known value WHEN a captured graph increments the counter THEN its value is known until the graph
    is replayed."""
    start()
    counter, other = torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda")
    assert torch.equal(counter, other)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        counter.add_(1)
        counter.mul_(2)
    assert torch.equal(counter, other) and counter.tolist() == [0.0, 0.0, 0.0]
    graph.replay()
    assert not torch.equal(counter, other)


@pytest.mark.parametrize("call", ["item", "synchronize", "query", "nonzero"])
def test_calls_that_wait_break_a_capture_with_the_cuda_errors(call: str) -> None:
    start()
    x = torch.ones(4, 4, device="cuda")
    calls: dict[str, Any] = {
        "item": lambda: x.sum().item(),
        "synchronize": torch.cuda.synchronize,
        "query": lambda: torch.cuda.current_stream().query(),
        "nonzero": lambda: x.nonzero(),
    }
    broken = pytest.raises(torch.AcceleratorError, match="due to a previous error during capture")
    with broken as failed, torch.cuda.graph(torch.cuda.CUDAGraph()):
        calls[call]()
    assert "operation not permitted when stream is capturing" in str(failed.value.__context__)
    assert not torch.cuda.is_current_stream_capturing()


def test_side_streams_of_a_capture_must_be_joined_before_its_end() -> None:
    _, log = start()
    x, side = torch.ones(4, 4, device="cuda"), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            assert torch.cuda.is_current_stream_capturing()
            y = x @ x
        torch.cuda.current_stream().wait_stream(side)
        y @ x
    graph.replay()
    assert len({row["stream"] for row in log.device[-2:]}) == 2
    assert log.device[-1]["start_ns"] >= end_of(log.device[-2])
    with pytest.raises(torch.AcceleratorError, match="unjoined work"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x @ x


def test_during_a_capture_a_joined_stream_may_wait_again_without_new_work() -> None:
    start()
    x, side, third = torch.ones(4, 4, device="cuda"), torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        origin = torch.cuda.current_stream()
        side.wait_stream(origin)
        with torch.cuda.stream(side):
            x @ x
        third.wait_stream(side)  # The stream of the capture waits for `third`, and thereby for `side`.
        origin.wait_event(third.record_event())
        side.wait_event(origin.record_event())
    with pytest.raises(torch.AcceleratorError, match="unjoined work"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        origin = torch.cuda.current_stream()
        side.wait_stream(origin)
        before = side.record_event()
        with torch.cuda.stream(side):
            x @ x
        origin.wait_event(before)


def test_misuse_of_cuda_graphs_raises_the_errors_of_torch() -> None:
    start()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match=REPLAYED_TOO_EARLY):
        graph.replay()
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        graph.capture_begin()


def test_graphed_modules_train_and_share_a_pool() -> None:
    start()
    model, x = nn.Linear(4, 4).cuda(), torch.ones(2, 4, device="cuda")
    graphed: Any = torch.cuda.make_graphed_callables(model, (x,))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        graphed(x).sum().backward()
        optimizer.step()
    assert graphed(x).shape == (2, 4)
    pool = torch.cuda.graph_pool_handle()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        x @ x.T
    assert graph.pool() == pool


def test_capturing_a_backward_pass_does_not_end_its_phase() -> None:
    """GIVEN two graphed modules WHEN the second module's backward graph has run THEN the phase is still "backward"."""
    gpu, _ = start()
    modules = nn.Linear(4, 4).cuda(), nn.Linear(4, 4).cuda()
    x, hidden = (torch.ones(2, 4, device="cuda", requires_grad=True) for _ in range(2))
    graphed: Any = torch.cuda.make_graphed_callables(modules, ((x,), (hidden,)))
    first, second = graphed
    phases: list[str] = []
    between = first(x)
    between.register_hook(lambda _: phases.append(gpu.simulator.tracker.script.entered))
    second(between).sum().backward()
    assert phases == ["backward"]
    assert gpu.simulator.tracker.script.entered == ""


def test_a_capture_allows_copies_from_the_cpu_only_if_their_memory_is_pinned() -> None:
    """torch rejects the copy before it reaches CUDA, so the capture is not broken."""
    start()
    x = torch.ones(4, 4, device="cuda")
    pinned = torch.ones(4, 4).pin_memory()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for copy in (lambda: x.cpu(), lambda: torch.ones(4).cuda(), lambda: torch.tensor([1.0], device="cuda")):
            with pytest.raises(RuntimeError, match="unless the CPU tensor is pinned"):
                copy()
        x.copy_(pinned, non_blocking=True)
        assert torch.cuda.Event().query()
    graph.replay()


def test_a_graphed_module_rejects_inputs_of_other_shapes() -> None:
    start()
    module: Any = torch.cuda.make_graphed_callables(nn.Linear(4, 4).cuda(), (torch.ones(2, 4, device="cuda"),))
    assert module(torch.ones(2, 4, device="cuda")).shape == (2, 4)
    with pytest.raises(RuntimeError, match=r"tensor a \(2\) must match the size of tensor b \(3\) at non-singleton"):
        module(torch.ones(3, 4, device="cuda"))


def test_seeds_and_offsets_do_not_change_during_a_capture() -> None:
    start()
    torch.cuda.manual_seed(3)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")
        torch.cuda.manual_seed(3)
        for refused in (lambda: torch.cuda.manual_seed(4), lambda: torch.cuda.default_generators[0].set_offset(8)):
            with pytest.raises(RuntimeError, match=r"during (stream|CUDA graph) capture"):
                refused()
    assert torch.cuda.initial_seed() == 3
    torch.cuda.manual_seed(4)
    assert torch.cuda.initial_seed() == 4


def test_an_event_that_was_never_recorded_does_not_break_a_capture() -> None:
    start()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.zeros(1, device="cuda")
        torch.cuda.Event().synchronize()
    graph.replay()


def test_the_kernel_of_sleep_runs_for_the_given_cycles_and_can_be_captured() -> None:
    """With a clock of 1.41 GHz, a sleep of 2.82 million cycles takes 2 ms."""
    gpu, log = start()
    gpu.devices[0].properties = replace(gpu.devices[0].properties, clock_rate=1_410_000)
    cuda._sleep(2_820_000)
    torch.cuda.synchronize()
    assert log.device[-1]["duration_ns"] == 2 * MS and gpu.clock.now_ns() >= 2 * MS
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cuda._sleep(1_410_000)
    graph.replay()
    torch.cuda.synchronize()
    assert log.device[-1]["duration_ns"] == MS


def test_new_generators_and_printed_tensors_break_a_capture() -> None:
    start()
    generator = torch.Generator("cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")
        torch.Generator("cpu")
        with pytest.raises(RuntimeError, match="Cannot construct a new CUDAGeneratorImpl during CUDA graph capture"):
            torch.Generator("cuda")
        with pytest.raises(RuntimeError, match="Cannot call CUDAGeneratorImpl::clone_impl during CUDA graph capture"):
            generator.clone_state()
        repr(torch.ones(0, device="cuda"))
    with (
        pytest.raises(RuntimeError, match="operation failed due to a previous error during capture"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        repr(torch.ones(2, device="cuda"))


def test_an_empty_graph_without_a_capture_cannot_be_instantiated() -> None:
    start()
    with pytest.raises(RuntimeError, match=r"capture_end\(\) must have been called before calling instantiate"):
        torch.cuda.CUDAGraph(keep_graph=True).instantiate()
    with pytest.raises(RuntimeError, match=REPLAYED_TOO_EARLY):
        torch.cuda.CUDAGraph().replay()


def test_only_a_graph_captured_with_keep_graph_can_be_instantiated() -> None:
    start()
    graph, _ = captured(torch.ones(4, 4, device="cuda"))
    with pytest.raises(RuntimeError, match="only when keep_graph=true"):
        graph.instantiate()
    with pytest.raises(RuntimeError, match="No cudaGraph_t is available" if SINCE_2_14 else "initialized with keep_graph=true"):
        graph.raw_cuda_graph()
    assert graph.raw_cuda_graph_exec() > 0
    with pytest.raises(NotEmulated, match=r"torch.cuda.CUDAGraph.debug_dump is not emulated"):
        graph.debug_dump("graph.dot")
    graph.reset()
    with pytest.raises(RuntimeError, match=r"until instantiate\(\) has been called"):
        graph.raw_cuda_graph_exec()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.pool()


def test_a_graph_captured_with_keep_graph_can_be_instantiated_again() -> None:
    """A graph with keep_graph=True has the handles that it has in PyTorch. Each instantiation has a new handle."""
    _, log = start()
    x, graph = torch.ones(4, 4, device="cuda"), torch.cuda.CUDAGraph(keep_graph=True)
    with pytest.raises(RuntimeError, match="cudaGraph_t"):
        graph.raw_cuda_graph()
    for _ in range(2):  # before the graph is instantiated, it can be captured again
        with torch.cuda.graph(graph):
            x @ x
    handle = graph.raw_cuda_graph()
    with pytest.raises(RuntimeError, match=r"until instantiate\(\) has been called"):
        graph.raw_cuda_graph_exec()
    torch.cuda.synchronize()
    before = len(log.device)
    graph.replay()  # this call also instantiates the graph
    executable = graph.raw_cuda_graph_exec()
    graph.instantiate()
    graph.replay()
    torch.cuda.synchronize()
    assert len(log.device) - before == 2
    assert graph.raw_cuda_graph() == handle > 0 and graph.raw_cuda_graph_exec() != executable
    with pytest.raises(RuntimeError, match="already owns a captured graph"), torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
    graph.reset()
    with torch.cuda.graph(graph):
        x @ x
    graph.replay()


@pytest.mark.skipif(not SINCE_2_14, reason="hooks of graphs are new in torch 2.14")
def test_hooks_of_a_cuda_graph_can_read_its_handles() -> None:
    start()
    x, graph, seen = torch.ones(4, 4, device="cuda"), cuda.CUDAGraph(keep_graph=True), []
    graph.register_capture_end_hook(lambda graph: seen.append(graph.raw_cuda_graph()))
    graph.register_post_instantiate_hook(lambda graph: seen.append(graph.raw_cuda_graph_exec()))
    with cuda.graph(graph, check_input_liveness=True):
        assert type(graph).get_currently_capturing_graph() is graph
        x @ x
    assert seen == [graph.raw_cuda_graph()]
    graph.replay()
    assert seen[1:] == [graph.raw_cuda_graph_exec()]
    del x
    with pytest.raises(RuntimeError, match=r"1 dead tensor"):
        graph.replay()


def test_two_graphs_can_be_captured_at_the_same_time() -> None:
    """GIVEN two captures on two streams WHEN both end THEN both graphs can be replayed. If one stream waits for the other one,
    both captures break."""
    _, log = start()
    x, streams = torch.ones(4, 4, device="cuda"), (torch.cuda.Stream(), torch.cuda.Stream())
    torch.cuda.synchronize()
    for is_joined in (False, True):
        before, one, other = len(log.device), torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        end = pytest.raises(RuntimeError, match="previous error during capture") if is_joined else nullcontext()
        with torch.cuda.stream(streams[0]):
            one.capture_begin(capture_error_mode="relaxed")
            x @ x
            with torch.cuda.stream(streams[1]):
                other.capture_begin(capture_error_mode="relaxed")
                x @ x @ x
                if is_joined:
                    with pytest.raises(RuntimeError, match="merge of separate capture sequences"):
                        streams[0].wait_stream(streams[1])
                with end:
                    other.capture_end()
            x @ x
            with end:
                one.capture_end()
            assert not torch.cuda.is_current_stream_capturing()
        for graph in () if is_joined else (one, other):
            graph.replay()
        torch.cuda.synchronize()
        assert len(log.device) - before == (0 if is_joined else 4)


def test_random_states_of_a_graph_are_in_device_memory_until_the_graph_is_deleted() -> None:
    """Each state that a graph uses has two blocks of 512 bytes. Before PyTorch 2.14, the blocks are allocated when a state is
    registered, and a reset keeps them."""
    start()
    cuda.init()

    def held() -> tuple[int, int]:
        stats = cuda.memory_stats()
        return stats["active.all.current"], stats["active_bytes.all.current"]

    graph = cuda.CUDAGraph()
    if SINCE_2_14:
        generator = torch.Generator("cuda")
        with cuda.graph(graph):
            torch.ones(4, device="cuda")
            assert held() == (0, 0)
            torch.rand(4, device="cuda")
            torch.rand(4, device="cuda", generator=generator)
        assert held() == (4, 2048)
        graph.reset()
        assert held() == (0, 0)
        return
    graph.register_generator_state(cuda.default_generators[0].clone_state())
    assert held() == (2, 1024)
    with cuda.stream(cuda.Stream()), pytest.warns(UserWarning, match="The CUDA Graph is empty"):
        graph.capture_begin()
        graph.capture_end()
    assert held() == (4, 2048)
    graph.reset()
    assert held() == (4, 2048)
    del graph
    assert held() == (0, 0)


def test_during_a_relaxed_capture_the_host_may_wait_for_work_outside_the_capture() -> None:
    """During a capture, only the mode "relaxed" allows the host to query an earlier event, or to wait for another stream."""
    start()
    before, side, x = torch.cuda.Event(), torch.cuda.Stream(), torch.ones(4, 4, device="cuda")
    before.record()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        assert before.query()
        side.synchronize()
        x @ x
    graph.replay()
    for wait in (before.query, side.synchronize):
        with (
            pytest.raises(RuntimeError, match="previous error during capture"),
            torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"),
        ):
            wait()
    with (
        pytest.raises(RuntimeError, match="previous error during capture"),
        torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="relaxed"),
    ):
        torch.cuda.current_stream().synchronize()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ("captured work waits for a stream", "dependency created on uncaptured work in another stream"),
        ("captured work waits for an event", "dependency created on uncaptured work in another stream"),
        ("the default stream waits", "would make the legacy stream depend on a capturing blocking stream"),
        ("memory of another stream", "operation not permitted when stream is capturing"),
    ],
)
def test_captured_work_and_other_work_must_not_depend_on_each_other(wrong: str, error: str) -> None:
    start()
    x, side, before = torch.ones(4, 4, device="cuda"), torch.cuda.Stream(), torch.cuda.Event()
    before.record()
    with (
        pytest.raises(torch.AcceleratorError, match="previous error during capture") as failed,
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        origin = torch.cuda.current_stream()
        if wrong == "captured work waits for a stream":
            origin.wait_stream(side)
        elif wrong == "captured work waits for an event":
            origin.wait_event(before)
        elif wrong == "the default stream waits":
            torch.cuda.default_stream().wait_stream(origin)
        else:
            with torch.cuda.stream(side):
                x @ x
    assert error in str(failed.value.__context__)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        x @ x  # this call works, because the capture has ended


def test_only_external_events_of_a_graph_can_be_used_outside_of_the_graph() -> None:
    """If a capture recorded any other event, CUDA's error is raised until the event is recorded again."""
    start()
    event, external = torch.cuda.Event(), torch.cuda.Event(external=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ones(4, 4, device="cuda")
        event.record()
        external.record()
        torch.cuda.current_stream().wait_event(event)
    graph.replay()
    for use_event in (event.query, event.synchronize, event.wait):
        with pytest.raises(torch.AcceleratorError, match="not permitted on an event last recorded in a capturing stream"):
            use_event()
    external.synchronize()
    event.record()
    event.synchronize()


def test_a_relaxed_capture_may_use_memory_of_another_stream() -> None:
    start()
    x, side, graph = torch.ones(4, 4, device="cuda"), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        with torch.cuda.stream(side):
            x @ x
        x @ x
    graph.replay()


@pytest.mark.skipif(SINCE_2_14, reason="PyTorch 2.14 registers generators when a captured op uses them")
def test_a_capture_rejects_generators_that_are_not_registered() -> None:
    start()
    generator = torch.Generator("cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="for a CUDA generator not in capture mode"), torch.cuda.graph(graph):
        torch.ones(2, device="cuda")
        torch.randn(2, device="cuda", generator=generator)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        torch.randn(2, device="cuda", generator=generator)


def test_a_graph_that_was_reset_has_no_captured_work() -> None:
    start()
    graph = torch.cuda.CUDAGraph()
    graph.reset()
    with pytest.raises(RuntimeError, match=REPLAYED_TOO_EARLY):
        graph.replay()
