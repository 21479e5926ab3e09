"""Computes the FLOPs and bytes of attention over a paged KV cache, as in vLLM, FlashInfer and aiter.

    of = PagedAttention.of("mha_batch_prefill", ((1, 32, 128), (4096, 8, 128), (4096, 8, 128), (2,), (2,), (700,)))
    of.cached_tokens, of.pairs      # 700, 700: one new token attends to 700 cached tokens

Note [Paged attention]
    The keys and values of all sequences are in one cache, which is divided into pages. The shape of this cache does not show
    how many tokens an attention op reads. Two kinds of index tensors show which pages belong to a sequence:

    lists       the bounds of the sequences in the queries (missing if each sequence has one query), their bounds in the list of
                pages, and the list of pages. The length of the list times the page size is the number of cached tokens. This
                number may be slightly too high, because the last page of a sequence is partly filled and lists have spare
                entries.
    a table     one row per sequence, as wide as the longest sequence that the server allows. The number of cached tokens is
                unknown, so there are neither FLOPs nor bytes.

    The number of (query token, cached token) pairs is known if there is one sequence, or if each sequence has one query
    (decoding). With lists, the bytes are always known: queries and outputs, and each cached token once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from traces.model.layouts import Shape

_NAMES = re.compile(r"paged|batch_?prefill|batch_?decode|varlen|kvcache|\bpa_|_pa_|mla_(?:decode|prefill)", re.IGNORECASE)


# see Note [Paged attention]
@dataclass(frozen=True, slots=True)
class PagedAttention:
    """Describes one call of an attention op that reads a paged KV cache, as in vLLM. Unknown numbers are None."""

    query: Shape  # tokens, heads, channels
    key_channels: int
    value_channels: int
    sequences: int | None
    cached_tokens: int | None  # an upper bound
    cached_elements: int | None  # number of elements of keys and values

    @classmethod
    def of(cls, name: str, shapes: tuple[Shape, ...]) -> PagedAttention | None:
        wide = [(place, shape) for place, shape in enumerate(shapes) if len(shape) > 2]
        if not _NAMES.search(name) or not wide:
            return None
        query = wide[0][1]
        outputs = [shape for _, shape in wide[1:] if shape[:-1] == query[:-1]]
        caches = [(place, shape) for place, shape in wide[1:] if shape[:-1] != query[:-1]][:2]
        if not caches or (len(caches[0][1]) == 3 and "varlen" in name):
            return None
        key = caches[0][1]
        with_values = [shape for _, shape in caches if shape[0] == key[0]]
        value_channels = with_values[1][-1] if len(with_values) > 1 else outputs[-1][-1] if outputs else key[-1]
        after = shapes[caches[len(with_values) - 1][0] + 1 :]
        lists = [shape[0] for shape in after if len(shape) == 1]
        sequences = pages = None
        if len(query) == 3 and len(key) in (3, 4) and not any(len(shape) == 2 for shape in after):
            if len(lists) >= 3 and lists[0] == lists[1]:
                sequences, pages = lists[0] - 1, lists[2]
            elif len(lists) >= 2 and lists[0] == query[0] + 1:
                sequences, pages = query[0], lists[1]
        if pages is None:
            return cls(query, key[-1], value_channels, None, None, None)
        elements = pages * sum(prod(shape[1:]) for shape in with_values)
        return cls(query, key[-1], value_channels, sequences, pages * _most_page_tokens(key, query[1]), elements)

    @property
    def pairs(self) -> int | None:
        """Return the largest possible number of (query token, cached token) pairs in this call, or None if the number is
        unknown."""
        if self.cached_tokens is None or self.sequences is None:
            return None
        if self.sequences == 1:
            return self.query[0] * self.cached_tokens
        return self.cached_tokens if self.sequences == self.query[0] else None

    @property
    def flops(self) -> int:
        return 2 * (self.pairs or 0) * self.query[1] * (self.key_channels + self.value_channels)

    def moved_bytes(self, query_itemsize: int, cache_itemsize: int) -> int | None:
        if self.cached_elements is None:
            return None
        outputs = prod(self.query[:-1]) * self.value_channels
        return (prod(self.query) + outputs) * query_itemsize + self.cached_elements * cache_itemsize


def _most_page_tokens(cache: Shape, heads: int) -> int:
    """Return the largest possible number of tokens in one page of the KV cache."""
    if len(cache) == 3:
        return 1
    return max((cache[3 - place] for place in (1, 2) if heads % max(cache[place], 1) == 0), default=max(cache[1:3]))
