"""Groups of operations with tensors that are not strided (sparse, nested and quantized), and quantization-aware training."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.zoo.groups import Family

family = Family("layouts")


def _coo(device: str) -> Any:
    return torch.sparse_coo_tensor(torch.tensor([[0, 1, 2], [2, 0, 1]]), torch.tensor([1.0, 2.0, 3.0]), (3, 3)).to(device)


@family.group
def sparse_coo(device: str) -> Any:
    s = _coo(device)
    made = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]], device=device), torch.ones(2, device=device), (2, 2))
    c = s.coalesce()
    return [
        s.is_sparse,
        s.shape,
        c.indices(),
        c.values(),
        s.to_dense(),
        made.to_dense(),
        (s * 2).to_dense(),
        (s + s).coalesce().values(),
        s.t().to_dense(),
        s._nnz(),
        s.device.type == device,
        s.cpu().to_dense(),
        s.sparse_dim(),
    ]


@family.group
def sparse_by_size(device: str) -> Any:
    """Creates sparse tensors without elements, also with the legacy tensor types."""
    sizes = [
        torch.sparse_coo_tensor(size=(2, 3), device=device),
        torch.zeros(2, 3, layout=torch.sparse_coo, device=device),
        torch.empty(2, 3, layout=torch.sparse_coo, device=device),
        torch.zeros(2, 3, layout=torch.sparse_csr, device=device),
    ]
    types = torch.cuda.sparse if device == "cuda" else torch.sparse
    legacy = types.FloatTensor(torch.tensor([[0, 1], [1, 0]], device=device), torch.ones(2, device=device), torch.Size([2, 3]))
    found = [torch.mm(legacy, torch.ones(3, 2, device=device)), types.FloatTensor(2, 3)._nnz(), sizes[0].type()[-18:]]
    return [*found, *([x._nnz(), x.layout, x.to_dense(), x @ torch.ones(3, 2, device=device)] for x in sizes)]


@family.group
def sparse_products(device: str) -> Any:
    s, x = _coo(device), torch.randn(3, 2).to(device)
    found = [
        torch.sparse.mm(s, x),
        s @ x,
        torch.mm(s, x),
        torch.spmm(s, x),
        torch.sparse.addmm(x, s, x),
        torch.sparse.sum(s),
        torch.sparse.sum(s, 1).to_dense(),
    ]
    return [*found, torch.sparse.softmax(s, 1).to_dense(), (s * torch.ones(3, 3).to(device)).to_dense()]


@family.group
def graph_convolution(device: str) -> Any:
    """Runs a GCN layer: a product of a sparse adjacency matrix and features."""
    adjacency, x = _coo("cpu").to(device), torch.randn(3, 4).to(device)
    layer = nn.Linear(4, 2).to(device)
    out = torch.spmm(adjacency, layer(x))
    loss = nn.functional.nll_loss(out.log_softmax(1)[torch.tensor([0, 2]).to(device)], torch.tensor([0, 1]).to(device))
    loss.backward()
    return [out, layer.weight.grad]


@family.group
def sparse_gradients(device: str) -> Any:
    table = nn.Embedding(6, 3, sparse=True).to(device)
    bag = nn.EmbeddingBag(6, 3, sparse=True, mode="sum").to(device)
    ids = torch.tensor([[1, 2], [2, 5]]).to(device)
    sgd = torch.optim.SGD([*table.parameters(), *bag.parameters()], lr=0.1)
    adam = torch.optim.SparseAdam([*table.parameters()], lr=0.1)
    adagrad = torch.optim.Adagrad([*bag.parameters()], lr=0.1)
    for _ in range(2):
        sgd.zero_grad()
        (table(ids).sum() + bag(ids).sum()).backward()
        sparse = table.weight.grad.is_sparse, table.weight.grad.coalesce().indices().shape[0]
        sgd.step(), adam.step(), adagrad.step()
    return [sparse, table.weight, bag.weight, table.weight.grad.to_dense()]


@family.group
def sparse_csr(device: str) -> Any:
    dense = torch.tensor([[0.0, 1, 0], [2, 0, 3], [0, 0, 4]]).to(device)
    s = dense.to_sparse_csr()
    made = torch.sparse_csr_tensor(torch.tensor([0, 1, 3]), torch.tensor([1, 0, 2]), torch.ones(3), (2, 3)).to(device)
    return [
        s.crow_indices(),
        s.col_indices(),
        s.values(),
        s @ torch.ones(3, 2).to(device),
        made.to_dense(),
        s.to_dense(),
        s.layout,
        torch.sparse.mm(s, dense),
        s.to_sparse_coo().to_dense(),
    ]


@family.group
def to_sparse(device: str) -> Any:
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]]).to(device)
    s = dense.to_sparse()
    return [s.coalesce().indices(), s.coalesce().values(), s.to_dense(), dense.sparse_mask(s).to_dense()]


@family.group
def sparse_gradients_through(device: str) -> Any:
    values = torch.ones(3).to(device).requires_grad_()
    s = torch.sparse_coo_tensor(torch.tensor([[0, 1, 2], [2, 0, 1]]).to(device), values, (3, 3))
    torch.sparse.mm(s, torch.randn(3, 2).to(device)).sum().backward()
    return values.grad


@family.group
def nested_strided(device: str) -> Any:
    parts = [torch.ones(2, 3).to(device), torch.ones(4, 3).to(device)]
    n = torch.nested.nested_tensor(parts)
    return [
        n.is_nested,
        n.size(0),
        [p.shape for p in n.unbind()],
        torch.nested.to_padded_tensor(n, 0.0),
        n.device.type == device,
    ]


@family.group
def nested_jagged(device: str) -> Any:
    parts = [torch.ones(2, 3).to(device), torch.ones(4, 3).to(device)]
    n = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    layer = nn.Linear(3, 2).to(device)
    out = layer(n * 2).relu()
    out.values().sum().backward()
    moved = torch.nested.as_nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged).to(device)
    return [n.values(), n.offsets(), out.values(), layer.weight.grad, torch.nested.to_padded_tensor(n, 0.0), moved.values()]


@family.group
def quantised_tensors(device: str) -> Any:
    x = torch.linspace(-1, 1, 5).to(device)
    fake = torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)
    channels = torch.fake_quantize_per_channel_affine(
        x[None].repeat(2, 1), torch.tensor([0.1, 0.2]).to(device), torch.zeros(2, dtype=torch.int32).to(device), 0, -128, 127
    )
    return [
        fake,
        channels,
        torch.fake_quantize_per_tensor_affine(
            x, torch.tensor(0.1).to(device), torch.tensor(0, dtype=torch.int32).to(device), 0, 255
        ),
    ]


@family.refused("a quantised tensor is not emulated by the virtual GPU: use torch.fake_quantize_per_tensor_affine, or")
def quantised_storage(device: str) -> Any:
    x = torch.linspace(-1, 1, 5).to(device)
    q = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    return [q.dequantize(), q.int_repr(), q.is_quantized, q.q_scale()]


@family.group
def quantisation_aware_training(device: str) -> Any:
    from torch.ao import quantization as Q

    model = nn.Sequential(Q.QuantStub(), nn.Conv2d(3, 4, 3), nn.ReLU(), Q.DeQuantStub())
    model.qconfig = Q.get_default_qat_qconfig("fbgemm")
    model = Q.prepare_qat(Q.fuse_modules_qat(model.train(), [["1", "2"]])).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        out = model(torch.randn(2, 3, 5, 5).to(device))
        optimizer.zero_grad()
        out.sum().backward()
        optimizer.step()
    model.apply(Q.disable_observer)
    ranges = [buffer.shape for name, buffer in model.named_buffers() if name.endswith(("min_val", "scale"))]
    whole = Q.convert(model.cpu().eval())
    return [out.shape, sorted(name for name, _ in model.named_buffers())[:4], ranges, whole(torch.ones(1, 3, 5, 5)).shape]


@family.group
def low_bits(device: str) -> Any:
    """Stores numbers as weight-only quantization does: as packed 4-bit and 8-bit integers with scales."""
    w = torch.randn(4, 8).to(device)
    scale = w.abs().amax(1, keepdim=True) / 7
    q = (w / scale).round().clamp(-8, 7).to(torch.int8)
    packed = ((q[:, ::2] & 15) | (q[:, 1::2] << 4)).to(torch.uint8)
    back = torch.stack([packed & 15, packed >> 4], -1).flatten(1)
    return [
        q,
        packed,
        back,
        q.to(torch.float32) * scale,
        w.to(torch.float8_e4m3fn).to(torch.float32),
        w.to(torch.float8_e5m2).dtype,
    ]


@family.group
def masked_tensors(device: str) -> Any:
    from torch.masked import masked_tensor

    m = masked_tensor(torch.ones(3).to(device), torch.tensor([True, False, True]).to(device))
    return [(m * 2).get_data(), m.sum().get_data(), m.get_mask()]
