"""Groups of operations that use tensors from outside: numpy, storages, dlpack, tracing, exporting, custom ops and
torchvision."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import nn

from tests.zoo.groups import Family

family = Family("around")


@family.group
def numpy(device: str) -> Any:
    import numpy as np

    x = torch.arange(3.0).to(device)
    there = torch.from_numpy(np.ones((2, 3), np.float32)).to(device)
    found = [
        x.cpu().numpy().dtype.name,
        x.detach().cpu().numpy().sum().shape,
        there,
        torch.as_tensor(np.arange(3), device=device),
        torch.tensor(np.float64(2.5), device=device),
        x.numpy(force=True).tolist(),
    ]
    return [
        *found,
        x * np.float32(2),
        x + torch.tensor(np.array([1, 2, 3]), device=device),
        np.float32(3) * there.cpu().numpy()[0, 0] > 0,
    ]


@family.special(values=("compute",))
def numpy_is_refused_as_by_cuda(device: str) -> Any:
    try:
        if device == "cpu":
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        torch.ones(2).to(device).numpy()
    except TypeError as error:
        return str(error)[:32]
    return ""


@family.group
def storages(device: str) -> Any:
    x = torch.arange(4.0).to(device)
    s = x.untyped_storage()
    y = torch.empty(0, device=device).set_(s, 1, (2,), (1,))
    return [
        s.nbytes(),
        len(s),
        x.storage().size(),
        y,
        x[1:].storage_offset(),
        x.untyped_storage().data_ptr() == x.data_ptr(),
        s.device.type == device,
        x.element_size() * x.nelement(),
        x[2:].data_ptr() - x.data_ptr(),
    ]


@family.group
def storages_by_name(device: str) -> Any:
    made = torch.UntypedStorage(8, device=device)
    made.fill_(1)
    host = torch.FloatStorage([1.0, 2.0, 3.0])  # type: ignore[abstract]
    there = host.to(device=device)
    typed = torch.TypedStorage(3, dtype=torch.float32, device=device)
    typed.copy_(there)
    typed[1] = 5.0
    back = torch.FloatStorage(3).copy_(typed)  # type: ignore[abstract]
    found = [made.nbytes(), made.tolist(), made[0], there.dtype, there.tolist(), typed.tolist(), list(back)]
    return [
        *found,
        typed.double().tolist(),
        torch.empty(0, device=device).set_(typed),
        typed.device.type == device,
        torch.UntypedStorage([1, 2]).tolist(),
    ]


@family.group
def dlpack(device: str) -> Any:
    x: Any = torch.ones(2, device=device)
    torch.utils.dlpack.from_dlpack(x).mul_(3)
    return x, torch.utils.dlpack.from_dlpack(x, copy=True).add_(1), x


@family.refused("Tensor.__dlpack__ is not emulated by the virtual GPU")
def dlpack_capsule(device: str) -> Any:
    return torch.utils.dlpack.to_dlpack(torch.ones(2, device=device))


@family.refused("torch.as_tensor of __cuda_array_interface__ is not emulated by the virtual GPU")
def cuda_array_interface(device: str) -> Any:
    class Array:  # stands for an array class of another library
        __cuda_array_interface__ = torch.ones(2, device=device).__cuda_array_interface__

    return torch.as_tensor(Array(), device=device)


@family.group
def scripted(device: str) -> Any:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).to(device).eval()
    x = torch.ones(2, 4).to(device)
    traced = torch.jit.trace(model, x)
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 3), nn.ReLU())).to(device)
    file = io.BytesIO()
    torch.jit.save(scripted.cpu(), file)
    return [traced(x), scripted.to(device)(x), len(file.getvalue()) > 0]


@family.group
def traced_convolutions(device: str) -> Any:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.ConvTranspose2d(2, 1, 3)).to(device).eval()
    x = torch.ones(1, 1, 6, 6).to(device)
    traced = torch.jit.trace(model, x)
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    loaded = torch.jit.load(file, map_location=device)
    kinds = [node.kind() for node in traced.inlined_graph.nodes()]
    assert "lazy" not in f"{traced.inlined_graph} {list(traced.inlined_graph.nodes())} {list(traced.graph.inputs())}"
    return [traced(x), torch.jit.freeze(torch.jit.script(model))(x), loaded(x * 2), kinds.count("aten::_convolution")]


@family.group
def traced_by_fx(device: str) -> Any:
    from functorch.compile import aot_function, nop  # type: ignore[import-not-found]
    from torch.fx.experimental.proxy_tensor import make_fx

    x, weight = torch.ones(2, 3).to(device), torch.ones(3, 3).to(device)

    def step(x: Any, weight: Any) -> Any:
        weight = weight.detach().requires_grad_()
        (grad,) = torch.autograd.grad((x @ weight * torch.tensor([1.0, 2.0, 3.0], device=device)).sum(), weight)
        return weight - 0.1 * grad

    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)).to(device)
    start = torch.ones(3).to(device).requires_grad_()
    aot_function(lambda x: (x.sin() * 2).sum(), fw_compiler=nop)(start).backward()
    return [make_fx(step)(x, weight)(x, weight), make_fx(model)(x)(x), start.grad]


@family.group
def types_of_tensors(device: str) -> Any:
    class Tagged(torch.Tensor):
        pass

    x, tagged = torch.ones(2).to(device), torch.ones(2).as_subclass(Tagged).to(device)
    by_type = {torch.Tensor: "tensor", list: "list"}
    found = [type(x) in (torch.Tensor,), type(x) in (list, Tagged), by_type[type(x)], torch.Tensor in (list, type(x))]
    return [*found, type(tagged) in (Tagged,), type(tagged) in (torch.Tensor,)]


@family.group
def symbolic_trace(device: str) -> Any:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).to(device)
    traced = torch.fx.symbolic_trace(model)
    return [traced(torch.ones(2, 4).to(device)), len(traced.graph.nodes)]


@family.group
def exported(device: str) -> Any:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).to(device)
    x = torch.ones(2, 4).to(device)
    programs = [torch.export.export(model, (x,), strict=strict) for strict in (False, True)]
    return [[program.module()(x), len(program.graph_signature.parameters)] for program in programs]


@family.group
def fake_tensors(device: str) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.ones(3, 4, device=device)
        w = torch.ones(4, 2, device=device, requires_grad=True)
        y = (x @ w).relu()
        y.sum().backward()
        return [tuple(y.shape), y.device.type == device, tuple(w.grad.shape)]


@family.group
def meta_tensors(device: str) -> Any:
    with torch.device("meta"):
        model = nn.Linear(4, 3)
    state = {"weight": torch.ones(3, 4).to(device), "bias": torch.zeros(3).to(device)}
    model.load_state_dict(state, assign=True)
    return [
        model(torch.ones(2, 4).to(device)),
        torch.ones(2, device=device).to("meta").shape,
        torch.empty_like(state["weight"], device="meta").device.type,
    ]


@family.group
def modes_of_a_script(device: str) -> Any:
    """The torch function modes and dispatch modes of a script see the device names that the script uses."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    found: list[Any] = []

    def note(values: Any) -> None:
        found.extend(str(value) for value in values if isinstance(value, torch.device))
        found.extend(value.device.type for value in values if isinstance(value, torch.Tensor))

    class Calls(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            note([*args, *(kwargs or {}).values()])
            assert not any(str(value).startswith(("lazy", "meta")) for value in args)
            return func(*args, **(kwargs or {}))

    class Ops(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            note([*args, *(kwargs or {}).values()])
            return func(*args, **(kwargs or {}))

    place = torch.device(device, 0) if device == "cuda" else torch.device(device)
    with Calls(), Ops():
        x = torch.ones(3).to(place)
        made = [
            x.to(device, torch.float64),
            torch.tensor([1.0, 2.0], device=place),
            torch.as_tensor([1], device=device),
            x.new_tensor([2.0]),
            x.cpu(),
            nn.Linear(3, 2).to(device)(x).shape,
        ]
    assert set(found) <= {"cpu", "cuda", "cuda:0"}, found
    return [*made, sorted({name.replace("cuda:0", "cuda").replace("cuda", "cpu") for name in found})]


@family.group
def a_subclass_is_told_where_to(device: str) -> Any:
    seen: list[str] = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.extend(str(value) for value in args[1:] if isinstance(value, (str, torch.device)))
            return super().__torch_function__(func, types, args, kwargs or {})

    watched = torch.ones(2).as_subclass(Watched).to(device)
    assert set(seen) == {device} and watched.device.type == device, seen
    return [type(watched).__name__, watched.cpu().as_subclass(torch.Tensor)]


@family.group
def compiled(device: str) -> Any:
    @torch.compile
    def f(x: Any) -> Any:
        return (x * 2).relu().sum()

    torch.compiler.reset()
    torch.compiler.cudagraph_mark_step_begin()
    model = torch.compile(nn.Linear(4, 3).to(device), mode="reduce-overhead")
    return [f(torch.ones(3).to(device)), model(torch.ones(2, 4).to(device)).shape]


@family.group
def graphs_by_dynamo(device: str) -> Any:
    import torch._dynamo

    seen: list[int] = []

    def count(graph: Any, inputs: Any) -> Any:
        seen.append(len(graph.graph.nodes))
        return graph.forward

    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).to(device)
    x = torch.ones(2, 4).to(device).requires_grad_(True)
    torch._dynamo.reset()
    y = torch._dynamo.optimize(count)(lambda x: model(x).sin() + 1)(x)
    y.sum().backward()
    exported, _ = torch._dynamo.export(lambda x: x.sin() * 2)(x.detach())
    return [y, x.grad, len(seen), exported(x.detach()), torch._dynamo.explain(lambda x: x.cos() + 1)(x).graph_count]


@family.group
def cuda_graphs(device: str) -> Any:
    """Captures a training step. Nothing runs during the capture, and the whole step runs at each replay."""
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x, losses = torch.zeros(6, 4).to(device), []

    def step() -> Any:
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    x.copy_(torch.ones(6, 4))
    x[0] += 1
    step()
    optimizer.zero_grad()
    replay = step
    if device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            optimizer.zero_grad(set_to_none=False)
            kept = step()

        def replay() -> Any:
            graph.replay()
            return kept

    for turn in range(3):
        x[turn] = float(turn)
        optimizer.zero_grad(set_to_none=False)
        losses.append(replay().item())
    return [losses, [p.detach().clone() for p in model.parameters()], model[1].num_batches_tracked]


@family.group
def graphed_callables(device: str) -> Any:
    model, x = nn.Linear(4, 2).to(device), torch.ones(3, 4).to(device).requires_grad_(True)
    with torch.no_grad():
        model.weight.fill_(0.5)
    sample = torch.zeros_like(x, requires_grad=True)
    graphed: Any = torch.cuda.make_graphed_callables(model, (sample,)) if device == "cuda" else model
    y = graphed(x * 2)
    y.pow(2).sum().backward()
    return [y, x.grad, model.weight.grad]


def _doubled_by_triton(x: Any) -> Any:
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

    @triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])  # type: ignore[misc, unused-ignore]
    @triton.jit  # type: ignore[misc, unused-ignore]
    def double(x: Any, out: Any, n: Any, BLOCK: tl.constexpr) -> None:
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

    out = torch.empty_like(x)
    double[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return out


@family.special(needs="triton")
def triton_kernels(device: str) -> Any:
    x = torch.ones(200).to(device)
    doubled = x * 2 if device == "cpu" else _doubled_by_triton(x)
    return [doubled, bool(torch.isfinite(doubled).all())]


@family.refused("the Triton kernel double in a CUDA graph under --values compute is not", needs="triton", values=("compute",))
def triton_kernels_in_graphs_with_values(device: str) -> Any:
    x = torch.ones(200).to(device)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        return _doubled_by_triton(x)


@torch.library.custom_op("zoo::double", mutates_args=())
def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@_double.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


_double.register_autograd(lambda ctx, grad: grad * 2)


@family.group
def custom_ops(device: str) -> Any:
    x = torch.ones(3).to(device).requires_grad_()
    y = torch.ops.zoo.double(x)
    y.sum().backward()
    return [y, x.grad]


@torch.library.custom_op("zoo::pair", mutates_args=())
def _pair(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return a @ b, a.relu() + 1


@torch.library.custom_op("zoo::pair_of_devices", mutates_args=(), device_types=("cuda", "cpu"))
def _pair_of_devices(a: torch.Tensor) -> torch.Tensor:
    return a.sin()


@torch.library.custom_op("zoo::scale_", mutates_args={"x"}, device_types=("cuda", "cpu"))
def _scale_(x: torch.Tensor, by: float) -> None:
    x.mul_(by)


@family.group
def custom_ops_without_shapes(device: str) -> Any:
    x = torch.eye(2, device=device)
    y = torch.ones(2, device=device)
    _scale_(y, 3.0)
    return [*_pair(x, torch.ones(2, 2, device=device)), _pair_of_devices(x), y, [y[0].item() == 3.0]]


@family.group
def moving_about(device: str) -> Any:
    x = torch.arange(4.0)
    y = x.clone().to(device, non_blocking=True)
    found = [
        y.to("cpu"),
        y.cpu(),
        y.to(device, torch.float16),
        y.to(torch.device(device)),
        y.to(y),
        x.to(y),
        y.type_as(x),
        y.to(device=device, dtype=torch.int32),
        y.to(device, copy=True),
        y.cpu().to(device).view(2, 2).t().cpu(),
    ]
    found = [z.clone() for z in found]
    host = torch.empty(4)
    host.copy_(y)
    y.copy_(host * 2)
    empty = torch.empty(2, 4, device=device).copy_(x)
    return [*found, host, y, y.device.type == device, torch.zeros(4, device=device).copy_(x.to(torch.int64)), empty]


@family.group
def modes_of_functions(device: str) -> Any:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.ops: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.ops.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    class Functions(TorchFunctionMode):
        count = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Functions.count += 1
            return func(*args, **(kwargs or {}))

    x = torch.ones(3).to(device)
    with Counting() as counting, Functions():
        y = (x * 2).relu()
    return [y, "aten::mul" in counting.ops, "aten::relu" in counting.ops, Functions.count > 0]


@family.group
def flops(device: str) -> Any:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        nn.Linear(4, 3).to(device)(torch.ones(2, 4).to(device)).sum().backward()
    return counter.get_total_flops() > 0


@family.special(needs="torchvision")
def torchvision_boxes(device: str) -> Any:
    from torchvision import ops

    boxes = torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 3.9], [5, 5, 9, 9]]).to(device)
    scores = torch.tensor([0.9, 0.8, 0.7]).to(device)
    kept = ops.nms(boxes, scores, 0.5)
    features = torch.randn(1, 2, 10, 10).to(device)
    rois = torch.cat([torch.zeros(3, 1).to(device), boxes], 1)
    return [
        kept,
        ops.batched_nms(boxes, scores, torch.zeros(3).to(device), 0.5),
        ops.box_iou(boxes, boxes),
        ops.box_area(boxes),
        ops.clip_boxes_to_image(boxes, (8, 8)),
        ops.generalized_box_iou(boxes, boxes),
        ops.remove_small_boxes(boxes, 1.0),
        ops.roi_align(features, rois, (2, 2)),
        ops.roi_pool(features, rois, (2, 2)),
        ops.sigmoid_focal_loss(scores, scores),
    ]


@family.special(needs="torchvision", close=1e-3)
def torchvision_deformable(device: str) -> Any:
    from torchvision import ops

    layer = ops.DeformConv2d(2, 3, 3).to(device)
    x = torch.randn(1, 2, 5, 5).to(device).requires_grad_()
    out = layer(x, torch.zeros(1, 18, 3, 3).to(device))
    out.sum().backward()
    aligned = ops.roi_align(x, [torch.tensor([[0.0, 0, 3, 3]]).to(device)], 2)
    aligned.sum().backward()
    return [out, x.grad, ops.StochasticDepth(0.0, "row")(x), ops.FrozenBatchNorm2d(2).to(device)(x)]


@family.special(needs="torchvision")
def torchvision_transforms(device: str) -> Any:
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    image = tv_tensors.Image(torch.randint(0, 255, (3, 8, 8), dtype=torch.uint8)).to(device)
    boxes = tv_tensors.BoundingBoxes(torch.tensor([[0, 0, 4, 4]]), format="XYXY", canvas_size=(8, 8)).to(device)
    turned, turned_boxes = v2.Compose(
        [
            v2.Resize((6, 6), antialias=True),
            v2.RandomHorizontalFlip(1.0),
            v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
        ]
    )(image, boxes)
    plain = v2.Normalize([0.5] * 3, [0.5] * 3)(torch.rand(3, 8, 8).to(device))
    return [
        type(image).__name__,
        type(turned).__name__,
        turned.shape,
        turned_boxes.shape,
        plain.shape,
        v2.CenterCrop(4)(plain).shape,
        v2.ColorJitter(0.1)(plain).shape,
        turned.device.type == device,
    ]


@family.special(needs="torchvision", close=1e-3)
def torchvision_models(device: str) -> Any:
    from torchvision import models

    model = models.mobilenet_v3_small(num_classes=3).to(device).eval()
    with torch.inference_mode():
        out = model(torch.randn(1, 3, 32, 32).to(device))
        return [out.shape, out.cpu().clone()]
