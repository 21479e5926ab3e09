# mypy: allow-untyped-calls
"""Computes the results of CUDA's attention kernels on the CPU (flash, memory-efficient and cuDNN attention).

    FORMS[torch.ops.aten._scaled_dot_product_flash_attention.default](q, k, v, 0.1, True)

Note [Layouts of attention]
    `_Attention` and the ops named "scaled_dot_product" take tensors of shape (batch, heads, tokens, size). The other ops take
    (batch, tokens, heads, size). With cumulative lengths, `_flash_attention_forward` takes (tokens of all sequences, heads,
    size), and `_efficient_attention_forward` takes the same with a leading dimension of size 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from replayer.errors import NotEmulated
from replayer.tensor.generators import host_seed, seed_and_offset
from replayer.torch_types import TorchAny, TorchFunction

aten = torch.ops.aten
pad = torch.nn.functional.pad

# custom_mask_type
_FROM_TOP_LEFT, _FROM_BOTTOM_RIGHT = 1, 2
_FLASH_BLOCK, _EFFICIENT_BLOCK = 128, 32  # kernels round the number of rows up to a multiple of this number


@dataclass(frozen=True)
class _Attention:
    dropout_p: float
    causal: int  # value of custom_mask_type, or 0 without a causal mask
    scale: float | None
    seed: torch.Tensor
    offset: torch.Tensor  # Philox offset, which belongs to the seed
    window: tuple[int, int] = (-1, -1)  # number of visible keys before and after the diagonal; -1 means all keys

    @classmethod
    def drawn(
        cls, dropout_p: float, causal: int, scale: float | None, window: tuple[TorchAny, TorchAny] = (None, None)
    ) -> _Attention:
        start = seed_and_offset() if dropout_p else (0, 0)
        seed, offset = (torch.tensor(number, dtype=torch.uint64, device="cpu").view(torch.int64) for number in start)
        return cls(dropout_p, causal, scale, seed, offset, _window(*window))

    def scores(self, q: TorchAny, k: TorchAny, bias: TorchAny) -> torch.Tensor:
        scores: torch.Tensor = q.float() @ _per_head(k, q).transpose(-2, -1) * self._factor(q)
        if bias is not None:
            scores = scores + bias
        rows, columns = scores.shape[-2:]
        distance = torch.arange(columns, device="cpu") - torch.arange(rows, device="cpu")[:, None]
        if self.causal != _FROM_TOP_LEFT:
            distance = distance - (columns - rows)
        before, after = (rows + columns if end < 0 else end for end in self.window)
        unseen = (distance > (0 if self.causal else after)) | (distance < -before)
        return scores.masked_fill(unseen, float("-inf")) if unseen.any() else scores

    def _factor(self, q: torch.Tensor) -> float:
        return float(q.size(-1) ** -0.5) if self.scale is None else self.scale

    def _dropped(self, weights: torch.Tensor) -> torch.Tensor:
        if not self.dropout_p:
            return weights
        return weights * (self._kept(weights).to(weights.dtype) / (1 - self.dropout_p))

    def _kept(self, weights: torch.Tensor) -> torch.Tensor:
        return uniform(weights.shape, int(self.seed), int(self.offset)) >= self.dropout_p

    def forward(self, q: TorchAny, k: TorchAny, v: TorchAny, bias: TorchAny = None) -> tuple[TorchAny, TorchAny]:
        scores = self.scores(q, k, bias)
        lse = _logsumexp(scores)
        out = self._dropped((scores - lse[..., None]).exp()) @ _per_head(v, q)
        return _tokens_first(out.to(q.dtype)), lse

    def signed_weights(self, q: TorchAny, k: TorchAny) -> torch.Tensor:
        scores = self.scores(q, k, None)
        weights = (scores - _logsumexp(scores)[..., None]).exp()
        weights = torch.where(self._kept(weights), weights, -weights).to(q.dtype)
        return pad(weights, (0, -weights.size(-1) % _FLASH_BLOCK, 0, -weights.size(-2) % _FLASH_BLOCK))

    def backward(
        self, grad: TorchAny, out: TorchAny, lse: TorchAny, q: TorchAny, k: TorchAny, v: TorchAny, bias: TorchAny = None
    ) -> list[TorchAny]:
        weights, of_out = (self.scores(q, k, bias) - lse[..., : q.size(2), None]).exp(), grad.float()
        of_weights = self._dropped(of_out @ _per_head(v, q).transpose(-2, -1))
        of_scores = weights * (of_weights - (of_out * out.float()).sum(-1, keepdim=True))
        scaled = of_scores * self._factor(q)
        of_k, of_v = (
            wide.unflatten(1, (k.size(1), -1)).sum(2)
            for wide in (scaled.transpose(-2, -1) @ q.float(), self._dropped(weights).transpose(-2, -1) @ of_out)
        )
        of_bias = None if bias is None else of_scores.sum_to_size(bias.shape).to(bias.dtype)
        return [(scaled @ _per_head(k, q)).to(q.dtype), of_k.to(k.dtype), of_v.to(v.dtype), of_bias]


def uniform(shape: TorchAny, seed: int, offset: int) -> torch.Tensor:
    """Return the random numbers for the dropout of attention weights."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(host_seed(seed, offset)), device="cpu")


def _logsumexp(scores: torch.Tensor) -> torch.Tensor:
    lse = scores.logsumexp(-1)
    return lse.masked_fill(lse == float("-inf"), float("inf"))  # a query without keys gets the weights 0


def _window(left: int | None, right: int | None) -> tuple[int, int]:
    return (-1 if left is None else left), (-1 if right is None else right)


def _per_head(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return x.float().repeat_interleave(q.size(1) // x.size(1), 1)


def _tokens_first(heads_first: torch.Tensor) -> torch.Tensor:
    return heads_first.transpose(1, 2).contiguous().transpose(1, 2)


def _padded(lse: torch.Tensor, rows: int) -> torch.Tensor:
    """Pad to a multiple of 32 rows, as memory-efficient attention does."""
    return pad(lse, (0, rows - lse.size(-1) + -rows % _EFFICIENT_BLOCK), value=float("inf"))


def _flash(
    q: TorchAny, k: TorchAny, v: TorchAny, p: float = 0.0, causal: bool = False, debug: bool = False, *, scale: TorchAny = None
) -> TorchAny:
    attention = _Attention.drawn(p, _FROM_BOTTOM_RIGHT if causal else 0, scale)
    out, logsumexp = attention.forward(q, k, v)
    shown = attention.signed_weights(q, k) if debug else q.new_empty((0,))
    return out, logsumexp, None, None, q.size(2), k.size(2), attention.seed, attention.offset, shown


def _flash_backward(
    grad: TorchAny, q: TorchAny, k: TorchAny, v: TorchAny, out: TorchAny, lse: TorchAny, cq: TorchAny, ck: TorchAny,
    mq: TorchAny, mk: TorchAny, p: float, causal: bool, seed: TorchAny, offset: TorchAny, *, scale: TorchAny = None
) -> TorchAny:  # fmt: skip
    attention = _Attention(p, _FROM_BOTTOM_RIGHT if causal else 0, scale, seed, offset)
    gradients = attention.backward(grad, out, lse, q, k, v)
    return [torch.empty_like(x).copy_(gradient) for x, gradient in zip((q, k, v), gradients[:3], strict=True)]


def _efficient(
    q: TorchAny, k: TorchAny, v: TorchAny, bias: TorchAny, saved: bool, p: float = 0.0, causal: bool = False, *,
    scale: TorchAny = None
) -> TorchAny:  # fmt: skip
    attention = _Attention.drawn(p, int(causal), scale)
    out, logsumexp = attention.forward(q, k, v, bias)
    lse = _padded(logsumexp, q.size(2)) if saved else logsumexp[..., :0].clone()
    return out, lse, attention.seed, attention.offset


def _efficient_backward(
    grad: TorchAny, q: TorchAny, k: TorchAny, v: TorchAny, bias: TorchAny, out: TorchAny, lse: TorchAny, seed: TorchAny,
    offset: TorchAny, p: float, mask: list[bool], causal: bool = False, *, scale: TorchAny = None
) -> TorchAny:  # fmt: skip
    *of_inputs, of_bias = _Attention(p, int(causal), scale, seed, offset).backward(grad, out, lse, q, k, v, bias)
    return *map(_tokens_first, of_inputs), of_bias if mask[3] else None


def _cudnn(
    q: TorchAny, k: TorchAny, v: TorchAny, bias: TorchAny, saved: bool, p: float = 0.0, causal: bool = False,
    debug: bool = False, *, scale: TorchAny = None
) -> TorchAny:  # fmt: skip
    attention = _Attention.drawn(p, int(causal), scale)
    out, logsumexp = attention.forward(q, k, v, bias)
    lse = logsumexp[..., None] if saved else None
    return out, lse, None, None, q.size(2), k.size(2), attention.seed, attention.offset, None


def _cudnn_backward(
    grad: TorchAny, q: TorchAny, k: TorchAny, v: TorchAny, out: TorchAny, lse: TorchAny, seed: TorchAny, offset: TorchAny,
    bias: TorchAny, cq: TorchAny, ck: TorchAny, mq: TorchAny, mk: TorchAny, p: float, causal: bool, *, scale: TorchAny = None
) -> TorchAny:  # fmt: skip
    gradients = _Attention(p, int(causal), scale, seed, offset).backward(grad, out, lse[..., 0], q, k, v, bias)
    return list(map(_tokens_first, gradients[:3]))


Sequence = tuple[slice, slice, slice]  # the slices select batch entries, queries and keys


def _sequences(q: torch.Tensor, k: torch.Tensor, of_q: TorchAny, of_k: TorchAny, used: TorchAny = None) -> Iterator[Sequence]:
    """Yield the parts of each sequence. `of_q` and `of_k` are cumulative sequence lengths."""
    if of_q is None and used is None:
        yield slice(None), slice(None), slice(None)
        return
    starts = range(0) if of_k is None else of_k.tolist()
    for i in range(q.size(0) if of_q is None else len(of_q) - 1):
        entry = slice(i, i + 1) if of_q is None else slice(None)
        queries = slice(None) if of_q is None else slice(int(of_q[i]), int(of_q[i + 1]))
        first = starts[i] if starts else 0
        last = first + int(used[i]) if used is not None else (starts[i + 1] if starts else k.size(1))
        yield entry, queries, slice(first, last)


def _part(x: torch.Tensor, entry: slice, tokens: slice) -> torch.Tensor:
    return x[entry, tokens].transpose(1, 2)


def _forward(
    attention: _Attention, q: TorchAny, k: TorchAny, v: TorchAny, bias: TorchAny, sequences: list[Sequence]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    out, lses = q.new_zeros((*q.shape[:-1], v.size(-1))), []
    for i, (entry, queries, keys) in enumerate(sequences):
        mask = None if bias is None else bias[entry, :, queries, keys]
        one = replace(attention, seed=attention.seed + i)
        made, lse = one.forward(_part(q, entry, queries), _part(k, entry, keys), _part(v, entry, keys), mask)
        out[entry, queries] = made.transpose(1, 2)
        lses.append(lse)
    return out, lses


def _backward(
    attention: _Attention,
    grad: TorchAny,
    inputs: TorchAny,
    bias: TorchAny,
    out: TorchAny,
    lses: list[torch.Tensor],
    sequences: list[Sequence],
) -> tuple[list[torch.Tensor], TorchAny]:
    q, k, v = inputs
    gradients = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in inputs]
    of_bias = None if bias is None else torch.zeros_like(bias)
    for i, ((entry, queries, keys), lse) in enumerate(zip(sequences, lses, strict=True)):
        mask = None if bias is None else bias[entry, :, queries, keys]
        one = replace(attention, seed=attention.seed + i)
        of_out, result = _part(grad, entry, queries), _part(out, entry, queries)
        parts = _part(q, entry, queries), _part(k, entry, keys), _part(v, entry, keys)
        *of_inputs, of_mask = one.backward(of_out, result, lse, *parts, mask)
        for into, tokens, made in zip(gradients, (queries, keys, keys), of_inputs, strict=True):
            into[entry, tokens] = made.transpose(1, 2)
        if of_bias is not None:
            of_bias[entry, :, queries, keys] += of_mask
    return gradients, of_bias


def _direct_flash(
    q: TorchAny, k: TorchAny, v: TorchAny, of_q: TorchAny, of_k: TorchAny, max_q: int, max_k: int, p: float, causal: bool,
    debug: bool, *, scale: TorchAny = None, window_size_left: TorchAny = None, window_size_right: TorchAny = None,
    seqused_k: TorchAny = None, alibi_slopes: TorchAny = None, block_table: TorchAny = None, num_splits: TorchAny = None
) -> TorchAny:  # fmt: skip
    if alibi_slopes is not None or block_table is not None:
        argument = "block_table" if alibi_slopes is None else "alibi_slopes"
        raise NotEmulated(f"aten::_flash_attention_forward with {argument}", "use `--values recorded`")
    attention = _Attention.drawn(p, _FROM_BOTTOM_RIGHT if causal else 0, scale, (window_size_left, window_size_right))
    shape = q.shape
    q, k, v = (x.unsqueeze(0) if of_q is not None else x for x in (q, k, v))
    out, lses = _forward(attention, q, k, v, None, list(_sequences(q, k, of_q, of_k, seqused_k)))
    lse = torch.cat([each[0] for each in lses], -1) if of_q is not None else torch.cat(lses)
    shown = attention.signed_weights(q.transpose(1, 2), k.transpose(1, 2)) if debug else q.new_empty((0,))
    return out.view(*shape[:-1], -1), lse, attention.seed, attention.offset, shown


def _direct_flash_backward(
    grad: TorchAny, q: TorchAny, k: TorchAny, v: TorchAny, out: TorchAny, lse: TorchAny, of_q: TorchAny, of_k: TorchAny,
    max_q: int, max_k: int, p: float, causal: bool, seed: TorchAny, offset: TorchAny, *, scale: TorchAny = None,
    window_size_left: TorchAny = None, window_size_right: TorchAny = None
) -> TorchAny:  # fmt: skip
    window = _window(window_size_left, window_size_right)
    attention = _Attention(p, _FROM_BOTTOM_RIGHT if causal else 0, scale, seed, offset, window)
    varies = of_q is not None
    grad, wide_q, wide_k, wide_v, out = (x.unsqueeze(0) if varies else x for x in (grad, q, k, v, out))
    sequences = list(_sequences(wide_q, wide_k, of_q, of_k))
    lses = [lse[None, :, queries] for _, queries, _ in sequences] if varies else [lse]
    gradients, _ = _backward(attention, grad, (wide_q, wide_k, wide_v), None, out, lses, sequences)
    return [gradient.view_as(x) for gradient, x in zip(gradients, (q, k, v), strict=True)]


def _direct_efficient(
    q: TorchAny, k: TorchAny, v: TorchAny, bias: TorchAny, of_q: TorchAny, of_k: TorchAny, max_q: TorchAny, max_k: TorchAny,
    p: float, mask_type: int, saved: bool = False, *, scale: TorchAny = None, seqlen_k: TorchAny = None,
    window_size: TorchAny = None
) -> TorchAny:  # fmt: skip
    before = None if window_size is None else window_size - 1
    attention = _Attention.drawn(p, mask_type, scale, (before, None))
    out, lses = _forward(attention, q, k, v, bias, list(_sequences(q, k, of_q, of_k, seqlen_k)))
    rows = q.size(1) if of_q is None else max_q
    lse = torch.cat([_padded(each, rows) for each in lses])
    lse = lse if saved else lse[..., :0].clone()
    return out, lse, attention.seed, attention.offset, rows, k.size(1) if of_k is None else max_k


def _direct_efficient_backward(
    grad: TorchAny, q: TorchAny, k: TorchAny, v: TorchAny, bias: TorchAny, out: TorchAny, of_q: TorchAny, of_k: TorchAny,
    max_q: int, max_k: int, lse: TorchAny, p: float, seed: TorchAny, offset: TorchAny, mask_type: int, of_bias_wanted: bool, *,
    scale: TorchAny = None, num_splits_key: TorchAny = None, window_size: TorchAny = None, shared_storage_dqdkdv: bool = False
) -> TorchAny:  # fmt: skip
    before = None if window_size is None else window_size - 1
    attention = _Attention(p, mask_type, scale, seed, offset, _window(before, None))
    sequences = list(_sequences(q, k, of_q, of_k))
    lses = [lse] if of_q is None else list(lse[:, None])
    gradients, of_bias = _backward(attention, grad, (q, k, v), bias, out, lses, sequences)
    if shared_storage_dqdkdv:
        gradients = list(torch.stack(gradients, 2).unbind(2))
    return *gradients, of_bias if of_bias_wanted else None


def _dropout_numbers(into: torch.Tensor, _p: float, seed: int, offset: int) -> torch.Tensor:
    return into.copy_(uniform(into.shape, seed, offset))


_ALL: dict[str, TorchFunction] = {
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_efficient_attention": _efficient,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_scaled_dot_product_cudnn_attention": _cudnn,
    "_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
    "_flash_attention_forward": _direct_flash,
    "_flash_attention_backward": _direct_flash_backward,
    "_efficient_attention_forward": _direct_efficient,
    "_efficient_attention_backward": _direct_efficient_backward,
    "_fill_mem_eff_dropout_mask_": _dropout_numbers,
}
FORMS: dict[TorchAny, TorchFunction] = {
    # older releases of PyTorch lack some of these ops
    getattr(aten, name).default: form for name, form in _ALL.items() if hasattr(aten, name)
}
