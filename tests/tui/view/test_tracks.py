"""Tests which rows a trace has, the kind of work of its spans, and how rows of two traces are combined."""

from __future__ import annotations

import numpy as np
import pytest

from tests.traces.handmade import MS, US, phase_grained, training
from tests.tui.view.scenes import crowd, one_event, side_tables, stack, whole
from traces.combining.merge import merge_ranks
from traces.model.trace import Collectives, Device, DeviceKind, Ending, HostKind, HostSpans, MemoryEvents, Thread, Trace
from tui.view.scene.categories import Category, of_device, of_host, of_kernel
from tui.view.scene.lanes import Lane
from tui.view.scene.scene import Scene
from tui.view.scene.short_names import short_name
from tui.view.scene.tracks import TrackKey, TrackKind, gpu_tracks, host_tracks, quick_tracks, stack_depth
from tui.view.timeline.shown_rows import ShownRows


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("volta_sgemm_128x64_nn", Category.MATRIX),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", Category.REDUCTION),
        ("volta_scudnn_128x64_relu_interior_nn_v1", Category.MATRIX),
        ("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float> >(int)", Category.ELEMENTWISE),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<>", Category.OPTIMIZER),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", Category.COLLECTIVE),
        ("void at::native::(anonymous namespace)::softmax_warp_forward<float>", Category.REDUCTION),
        ("fmha_cutlassF_f16_aligned_64x64_rf_sm80", Category.MATRIX),
        ("backward", Category.BACKWARD),
        ("spin", Category.OTHER),
    ],
)
def test_kernels_are_categorized_by_name(name: str, category: Category) -> None:
    assert of_kernel(name) is category


def test_copies_and_memsets_are_recognized_by_kind_instead_of_name() -> None:
    trace = one_event()
    trace.device.kind[:] = DeviceKind.MEMSET
    assert of_device(trace, np.arange(1)).tolist() == [Category.COPY]


def test_host_events_are_categorized_by_kind() -> None:
    trace = Trace(threads=[Thread(0, 1)])
    names = [trace.strings.add(text) for text in ("cudaLaunchKernel", "cudaStreamSynchronize", "hipDeviceSynchronize", "relu")]
    kinds = [HostKind.RUNTIME] * 3 + [HostKind.OP]
    trace.host = HostSpans.of(thread=[0] * 4, kind=kinds, name=names, start_ns=range(4), duration_ns=[1] * 4)
    assert of_host(trace, np.arange(4)).tolist() == [Category.RUNTIME, Category.WAIT, Category.WAIT, Category.OP]


def test_each_device_and_stream_has_a_row() -> None:
    tracks = gpu_tracks(crowd(devices=2, streams=3))
    assert [track.label for track in tracks.values()] == [
        f"rank {rank} cuda:0 stream {stream}" for rank in range(2) for stream in range(3)
    ]
    assert all(len(track.lane) == 6 for track in tracks.values())


def test_the_app_draws_phases_on_the_gpu_if_there_are_no_kernels() -> None:
    (key, track), *others = gpu_tracks(phase_grained()).items()
    assert not others and key.kind is TrackKind.GPU and track.table == "phases"
    assert isinstance(track.lane, Lane) and len(track.lane) == 15  # three steps have five phases each with device times


def test_batches_and_collectives_and_stages_have_rows_if_recorded() -> None:
    tracks = quick_tracks(side_tables())
    found = {(key.kind, track.label): track.table for key, track in tracks.items()}
    assert found[TrackKind.LOADER, "loader"] == found[TrackKind.LOADER, "pinning"] == "batches"
    assert found[TrackKind.COLLECTIVES, "collectives"] == "collectives"
    assert found[TrackKind.PARTS, "parts"] == found[TrackKind.PARTS, "parts 2"] == "parts"


def test_data_waits_and_collectives_are_found_without_their_tables() -> None:
    assert quick_tracks(training())[TrackKey(TrackKind.LOADER, 0)].table == "phases"
    ranks = [track for key, track in quick_tracks(crowd()).items() if key.kind is TrackKind.COLLECTIVES]
    assert [(track.table, len(track.lane)) for track in ranks] == [("device", 16)] * 4


def test_a_call_stack_has_one_row_per_depth() -> None:
    trace = stack(4)
    assert stack_depth(trace).tolist() == [-1, 0, 1, 2, 3]
    assert [track.label for track in host_tracks(trace).values()] == ["main thread", "main +1", "main +2", "main +3"]


def test_threads_of_a_role_are_numbered() -> None:
    trace = Trace(
        threads=[Thread(0, 1, role="loader"), Thread(0, 2, role="main"), Thread(0, 3, role="loader"), Thread(0, 4, role="?")]
    )
    name = trace.strings.add("op")
    trace.host = HostSpans.of(thread=range(4), name=[name] * 4, start_ns=[0] * 4, duration_ns=[1] * 4)
    assert [track.label for track in host_tracks(trace).values()] == [
        "loader thread",
        "main thread",
        "loader thread 2",
        "other thread",
    ]


def test_paired_streams_with_different_numbers_share_a_row() -> None:
    recorded, replayed = one_event(), one_event(duration_ns=MS)
    replayed.device.stream[:] = 0
    (row,) = Scene.of(("a", recorded), ("b", replayed)).rows
    assert row.label == "cuda:0 stream 7/0" and None not in row.tracks


def test_row_labels_come_from_the_first_trace_if_only_the_second_has_several_ranks() -> None:
    two = merge_ranks([training(), training()])
    rows = [row for row in Scene.of(("a", training()), ("b", two)).with_host().rows if None not in row.tracks]
    labels = [row.label for row in rows if row.key.kind != TrackKind.GPU]
    assert labels[:4] == ["phases", "loader", "cuda:0 memory", "main thread"] and not any("/" in label for label in labels)


def test_rows_that_only_one_trace_has_are_kept() -> None:
    scene = whole(("a", training()), ("b", phase_grained()))
    lone = [row.label for row in scene.rows if row.tracks[1] is None]
    assert "cuda:0 memory" in lone and "main thread" in lone


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::add<float> >(int, float)",
            "vectorized_elementwise_kernel",
        ),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("aten::conv2d", "conv2d"),
        ("训练 step\n", "·· step·"),
        ("::", "::"),
    ],
)
def test_kernel_and_op_names_are_shortened_for_display(text: str, short: str) -> None:
    assert short_name(text) == short


def test_slow_ranks_are_shown_first_and_similar_ranks_as_one_row() -> None:
    """Twelve ranks run one all-reduce. Rank 5 begins last, so its kernel takes only 1 us. All other ranks wait 9 us."""
    trace = crowd(devices=12, streams=2)
    name, group = trace.strings.add("all_reduce"), trace.strings.add("0")
    trace.collectives = Collectives.of(
        rank=range(12), name=[name] * 12, group=[group] * 12, start_ns=[0] * 12, ending=[Ending.SEEN] * 12,
        duration_ns=[(1 if rank == 5 else 10) * US for rank in range(12)],
    )  # fmt: skip
    scene = Scene.of(("a", trace)).with_host()
    rows = ShownRows(scene, height=40)
    similar = "ranks 0-4, 6-11: similar"

    def shown() -> list[str]:
        return [scene.rows[row].label for row in rows.shown]

    of_rank_5 = ["rank 5 cuda:0 stream 0", "rank 5 cuda:0 stream 1", "rank 5 collectives"]
    assert shown() == [*of_rank_5, similar]
    fold = rows.fold_of(next(row for row in scene.rows if row.label == similar), ("rank", "ranks"))
    assert fold is not None
    rows.fold(fold)
    assert shown() == [*of_rank_5, similar, *(f"rank {rank} GPU" for rank in range(12) if rank != 5)]
    rows.fold(fold)
    assert shown() == [*of_rank_5, similar]
    # WHEN no rank is late THEN the streams of rank 0 are shown, and one row contains all other ranks
    trace.collectives.duration_ns[:] = 10 * US
    scene = Scene.of(("a", trace)).with_host()
    rows = ShownRows(scene, height=40)
    assert shown() == ["rank 0 cuda:0 stream 0", "rank 0 cuda:0 stream 1", "rank 0 collectives", "ranks 1-11: similar"]


@pytest.mark.parametrize(
    ("total_gib", "held_gib", "limit_gib", "top_gib"),
    [
        ((8, 16), (4, 4), (8, 16), (8, 4)),  # a chart ends at the memory limit if half of the memory was used
        ((8, 16), (3, 16), (8, 16), (3, 16)),
        ((8, 0), (9, 5), (8, None), (9, 5)),  # more memory than the GPU has, and a GPU with an unknown memory size
    ],
)
def test_a_memory_chart_ends_at_the_memory_limit_of_its_gpu(
    total_gib: tuple[int, int], held_gib: tuple[int, int], limit_gib: tuple[int | None, int | None], top_gib: tuple[int, int]
) -> None:
    trace, gib = training(), 1 << 30
    trace.devices = [Device(0, index, "GPU", total_memory_bytes=size * gib) for index, size in enumerate(total_gib)]
    held = [size * gib for size in held_gib]
    start_ns = int(trace.steps.start_ns[0])
    trace.memory = MemoryEvents.of(
        thread=[0, 0], device=[0, 1], time_ns=[start_ns, start_ns + 1], bytes=held, address=[1, 2], allocated_bytes=held
    )
    scene = Scene.of(("a", trace))
    rows = [number for number, row in enumerate(scene.rows) if row.kind is TrackKind.MEMORY]
    assert [scene.limit_bytes(row) for row in rows] == [None if size is None else size * gib for size in limit_gib]
    assert [scene.top_bytes(row) for row in rows] == [size * gib for size in top_gib]


@pytest.mark.parametrize("traces", [1, 2])
@pytest.mark.parametrize("makes_memory", [True, False])
def test_rows_become_taller_if_the_window_has_free_lines(traces: int, makes_memory: bool) -> None:
    """GIVEN windows of every height THEN the rows fit into the window. Rows become taller when the window has enough free
    lines."""
    scene = Scene.of(*(("a", training()), ("b", training(jitter_us=(5,))))[:traces]).with_host()
    lines = []
    for height in range(80):
        rows = ShownRows(scene, height)
        rows.memory = makes_memory
        lines.append(len(rows.lines))
    assert all(count <= max(height, lines[0]) for height, count in enumerate(lines))
    assert len(set(lines)) > 5 and lines[-1] < 79 and lines == sorted(lines)
    assert all(lines[count] == count for count in set(lines) - {lines[0]})
    least, most = (ShownRows(scene, height).heights for height in (0, 79))
    kinds = {row: scene.rows[row].kind for row in most}
    assert all(least[row] == (2 if kind is TrackKind.MEMORY else 1) for row, kind in kinds.items())
    largest = {TrackKind.GPU: 12, TrackKind.MEMORY: 8, TrackKind.PHASES: 4}
    assert all(most[row] <= largest.get(kind, 2) for row, kind in kinds.items())


def test_rows_of_the_host_and_of_memory_can_be_hidden_separately() -> None:
    rows = ShownRows(whole(("t", training())), height=40)
    kinds = {row.kind for row in rows.scene.rows}
    assert {TrackKind.HOST, TrackKind.MEMORY} < kinds
    for toggled, hidden in (("host", {TrackKind.HOST}), ("memory", {TrackKind.HOST, TrackKind.MEMORY})):
        rows.toggle(toggled)
        assert {rows.scene.rows[number].kind for number in rows.shown} == kinds - hidden
    rows.toggle("host")
    assert {rows.scene.rows[number].kind for number in rows.shown} == kinds - {TrackKind.MEMORY}
