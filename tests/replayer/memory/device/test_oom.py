"""Tests that out-of-memory messages have the wording of the recorded PyTorch release and the current figures."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayer.memory.device.oom import DEFAULT_OOM_TEXT, Figures, oom_text, oom_text_of, size_text

MIB, GIB = 1 << 20, 1 << 30

# OLD is the message of PyTorch 1.9 to 2.0. Earlier releases (OLDER) gave no advice. Releases up to 1.3 (OLDEST) said "cached".
OLD = (
    "CUDA out of memory. Tried to allocate 1048576.00 GiB (GPU 0; 31.74 GiB total capacity; 17.00 MiB already allocated;"
    " 31.26 GiB free; 20.00 MiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting"
    " max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
)
OLDER = (
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total capacity; 9.76 GiB already allocated; 21.12"
    " MiB free; 9.88 GiB reserved in total by PyTorch)"
)
OLDEST = (
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 3; 10.76 GiB total capacity; 9.76 GiB already allocated; 21.12"
    " MiB free; 9.88 GiB cached)"
)
# This is the message of PyTorch 2.1 to 2.9 on a GPU with other processes. The script had captured CUDA graphs and set a memory
# fraction.
SHARED = (
    "CUDA out of memory. Tried to allocate 1048576.00 GiB. GPU 2 has a total capacity of 79.15 GiB of which 370.69 MiB is"
    " free. Process 16335 has 25.34 GiB memory in use. Process 7 has 512 bytes memory in use. Including non-PyTorch"
    " memory, this process has 17179869184.00 GiB memory in use. 40.00 GiB allowed; Of the allocated memory 4.89 GiB is"
    " allocated by PyTorch, with 1.26 GiB allocated in private pools (e.g., CUDA Graphs), and 77.08 MiB is reserved by"
    " PyTorch but unallocated. If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management"
    "  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)

NOW = Figures(
    device=1,
    asked_bytes=314 * MIB,
    capacity_bytes=int(7.79 * GIB),
    free_bytes=int(269.38 * MIB),
    process_bytes=6 * GIB,
    allowed_bytes=None,
    allocated_bytes=int(5.61 * GIB),
    reserved_bytes=int(5.69 * GIB),
)


def test_out_of_memory_messages_have_the_texts_of_old_pytorch_releases() -> None:
    """Case C of the published studies quotes the first of these out-of-memory messages."""
    assert oom_text(OLD, NOW) == (
        "CUDA out of memory. Tried to allocate 314.00 MiB (GPU 1; 7.79 GiB total capacity; 5.61 GiB already allocated;"
        " 269.38 MiB free; 5.69 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting"
        " max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
    )
    assert oom_text(OLD, NOW).startswith(oom_text(OLDER, NOW))
    assert oom_text(OLDEST, NOW) == oom_text(OLDER, NOW).replace("reserved in total by PyTorch", "cached")


def test_the_out_of_memory_message_has_the_text_of_current_pytorch_releases() -> None:
    assert oom_text(DEFAULT_OOM_TEXT, NOW) == (
        "CUDA out of memory. Tried to allocate 314.00 MiB. GPU 1 has a total capacity of 7.79 GiB of which 269.38 MiB is"
        " free. Including non-PyTorch memory, this process has 6.00 GiB memory in use. Of the allocated memory 5.61 GiB is"
        " allocated by PyTorch, and 81.92 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory"
        " is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for"
        " Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def test_the_out_of_memory_message_contains_no_facts_of_the_recorded_machine() -> None:
    """GIVEN a recorded message with other processes, private pools and a memory fraction WHEN the current figures are filled
    in THEN only the wording of the recorded message is left."""
    assert oom_text(SHARED, NOW) == oom_text(DEFAULT_OOM_TEXT, NOW).replace("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@pytest.mark.parametrize("template", [OLD, OLDER, OLDEST, SHARED, DEFAULT_OOM_TEXT])
def test_the_out_of_memory_message_contains_the_limit_of_a_memory_fraction(template: str) -> None:
    limited = NOW._replace(allowed_bytes=4 * GIB)
    text = oom_text(template, limited)
    assert re.search(r"(MiB free; |memory in use\. )4\.00 GiB allowed; (5\.69 GiB|Of the allocated)", text)
    assert text.replace("4.00 GiB allowed; ", "") == oom_text(template, NOW)


@pytest.mark.parametrize(
    "template", ["", "CUDA error: out of memory", "CUDA out of memory. Tried to allocate more than 1EB memory."]
)
def test_a_text_that_is_not_an_out_of_memory_message_is_ignored(template: str) -> None:
    assert oom_text(template, NOW) == oom_text(DEFAULT_OOM_TEXT, NOW)


SIZES = st.integers(0, 1 << 41)


@given(
    st.sampled_from([OLD, OLDER, OLDEST, SHARED, DEFAULT_OOM_TEXT]),
    st.lists(SIZES, min_size=6, max_size=6),
    st.none() | SIZES,
)
def test_an_out_of_memory_message_contains_current_figures_instead_of_recorded_ones(
    template: str, sizes: list[int], allowed: int | None
) -> None:
    asked, capacity, free, process, allocated, unallocated = sizes
    now = Figures(5, asked, capacity, free, process, allowed, allocated, allocated + unallocated)
    text = oom_text(template, now)
    found = re.findall(r"\d+(?:\.\d+)? (?:bytes|[KMG]iB)", text)
    if "unallocated" in template:
        expected = [asked, capacity, free, process, *([allowed] if allowed is not None else []), allocated, unallocated]
    else:
        expected = [asked, capacity, allocated, free, *([allowed] if allowed is not None else []), allocated + unallocated]
    assert found == [size_text(size) for size in expected]
    assert "GPU 5" in text
    assert oom_text(text, now) == text


@pytest.mark.parametrize(
    ("release", "variable", "page"),
    [
        ("2.10.0+cu128", " PYTORCH_ALLOC_CONF=", "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"),
        *(
            (
                release,
                " PYTORCH_CUDA_ALLOC_CONF=",
                "(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)",
            )
            for release in ("2.11.0", "2.12.1+cu126", "2.13.0+cpu", "2.14.1+cu130")
        ),
    ],
)
def test_the_out_of_memory_advice_matches_the_torch_release(release: str, variable: str, page: str) -> None:
    text = oom_text_of(release)
    assert f"try setting{variable}expandable_segments:True to avoid fragmentation.  See" in text
    assert text.endswith(f"Management  {page}")
