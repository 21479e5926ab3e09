"""Groups of operations for optimizers, schedules, mixed precision and gradient clipping."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler as S

from tests.zoo.groups import Family

family = Family("training")


def _train(device: str, make: Any, steps: int = 3) -> Any:
    torch.manual_seed(1)
    model = nn.Linear(4, 3).to(device)
    optimizer = make(model.parameters())
    x = torch.randn(5, 4).to(device)
    for _ in range(steps):

        def closure() -> Any:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    return [model.weight, sorted(optimizer.state_dict()["state"].get(0, {}))]


@family.special(close=1e-4)
def optimizers(device: str) -> Any:
    o = torch.optim
    makes = [
        lambda p: o.SGD(p, 0.1),
        lambda p: o.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        lambda p: o.Adam(p),
        lambda p: o.AdamW(p),
        lambda p: o.RMSprop(p, momentum=0.5, centered=True),
        lambda p: o.Adagrad(p),
        lambda p: o.Adadelta(p),
        lambda p: o.Adamax(p),
        lambda p: o.NAdam(p),
        lambda p: o.RAdam(p),
        lambda p: o.Rprop(p),
        lambda p: o.ASGD(p),
        lambda p: o.Adam(p, amsgrad=True),
        lambda p: o.Adafactor(p),
    ]
    return [_train(device, make) for make in makes]


@family.special(close=1e-4)
def forms_of_optimizers(device: str) -> Any:
    o = torch.optim
    makes = [
        lambda p: o.Adam(p, foreach=True),
        lambda p: o.Adam(p, foreach=False),
        lambda p: o.AdamW(p, fused=True),
        lambda p: o.SGD(p, 0.1, fused=True),
        lambda p: o.SGD(p, 0.1, foreach=True, momentum=0.9),
        lambda p: o.Adagrad(p, fused=device == "cpu"),
    ]
    return [_train(device, make) for make in makes]


@family.special(close=1e-4)
def capturable_optimizers(device: str) -> Any:
    o, on = torch.optim, device == "cuda"
    return [
        _train(device, make)[0]
        for make in (
            lambda p: o.Adam(p, capturable=on),
            lambda p: o.Adam(p, lr=torch.tensor(1e-3).to(device), capturable=on, foreach=False if not on else None),
            lambda p: o.RMSprop(p, capturable=on),
        )
    ]


@family.special(values=("compute",), close=1e-3)
def search_along_lines(device: str) -> Any:
    return _train(device, lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4, line_search_fn="strong_wolfe"), 2)


@family.group
def search_without_lines(device: str) -> Any:
    return _train(device, lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4), 2)[0].shape


@family.group
def schedules(device: str) -> Any:
    found = []
    for make in (
        lambda o: S.StepLR(o, 2),
        lambda o: S.CosineAnnealingLR(o, 5),
        lambda o: S.OneCycleLR(o, 0.1, total_steps=10),
        lambda o: S.LambdaLR(o, lambda n: 0.9**n),
        lambda o: S.LinearLR(o),
        lambda o: S.CyclicLR(o, 0.1, 0.2),
        lambda o: S.SequentialLR(o, [S.ConstantLR(o), S.ExponentialLR(o, 0.9)], [2]),
        lambda o: S.CosineAnnealingWarmRestarts(o, 3),
    ):
        optimizer = torch.optim.SGD(nn.Linear(2, 2).to(device).parameters(), lr=0.1, momentum=0.9)
        schedule = make(optimizer)
        for _ in range(4):
            optimizer.step()
            schedule.step()
        found.append(schedule.get_last_lr())
    return found


@family.group
def clipping(device: str) -> Any:
    model = nn.Linear(4, 3).to(device)
    model(torch.ones(2, 4).to(device)).sum().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    assert torch.isfinite(norm) and not torch.isnan(norm)
    nn.utils.clip_grad_value_(model.parameters(), 0.01)
    total = torch.stack([p.grad.detach().norm(2) for p in model.parameters()]).norm(2)
    return [
        norm,
        model.weight.grad,
        total,
        nn.utils.get_total_norm([p.grad for p in model.parameters()]),
        norm.isfinite().item(),
    ]


@family.group
def scaled_training(device: str) -> Any:
    model = nn.Linear(4, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device)
    steps = 0
    for _ in range(3):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(torch.ones(2, 4).to(device)).float().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = optimizer.state_dict()["param_groups"][0]["lr"]
        scaler.step(optimizer)
        scaler.update()
        steps += scaler.get_scale() >= 1 and before == 0.1
        optimizer.zero_grad(set_to_none=True)
    return [steps, scaler.get_scale(), sorted(scaler.state_dict()), model.weight.dtype]


@family.special(close=3e-2)
def autocast(device: str) -> Any:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 3)).to(device)
    x = torch.randn(4, 8).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = model(x)
        loss = nn.functional.cross_entropy(y.float(), torch.zeros(4, dtype=torch.long, device=device))
        with torch.autocast(device, enabled=False):
            z = x @ x.t()
        facts = [y.dtype, z.dtype, (x @ x.t()).dtype, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)]
    loss.backward()
    return [facts, loss, model[0].weight.grad]


@family.group
def finite_gradients(device: str) -> Any:
    """Counts optimizer steps. A script that first checks whether gradients are finite skips none of them."""
    model = nn.Linear(4, 3).to(device)
    loss = model(torch.ones(2, 4).to(device)).square().mean()
    loss.backward()
    norm = torch.norm(torch.stack([p.grad.norm() for p in model.parameters()]))
    taken = 0
    usable = torch.isfinite(loss) and not (torch.isnan(norm) or torch.isinf(norm))
    if usable and bool(norm.isfinite()) and not torch.isnan(loss).any():
        taken += 1
    if all(torch.isfinite(p.grad).all() for p in model.parameters()):
        taken += 1
    if (norm == norm).item() and loss.item() == loss.item() and norm < float("inf"):
        taken += 1
    return taken


@family.group
def in_backward(device: str) -> Any:
    """Steps an optimizer within the backward pass, as programs for large models do."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).to(device)
    each = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(p: Any) -> None:
        each[p].step()
        each[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    model(torch.ones(2, 4).to(device)).sum().backward()
    return [model[0].weight, model[1].bias]


@family.group
def own_updates(device: str) -> Any:
    """Updates weights with handwritten rules: Muon's orthogonalization, LARS and sign descent."""
    w = torch.randn(4, 4).to(device).requires_grad_()
    (w @ w).sum().backward()
    with torch.no_grad():
        x = w.grad / (w.grad.norm() + 1e-7)
        for _ in range(3):
            a = x @ x.T
            x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
        trust = torch.where(w.norm() > 0, torch.where(w.grad.norm() > 0, 0.001 * w.norm() / w.grad.norm(), 1.0), 1.0)
        w -= 0.1 * x + trust * w.grad.sign()
    return [x.shape, trust.shape, w.shape]


@family.group
def adversarial(device: str) -> Any:
    """Trains a generator and a discriminator in turns."""
    g, d = nn.Linear(2, 4).to(device), nn.Linear(4, 1).to(device)
    og, od = torch.optim.Adam(g.parameters(), betas=(0.5, 0.999)), torch.optim.Adam(d.parameters())
    bce = nn.BCEWithLogitsLoss()
    found = []
    for _ in range(2):
        fake = g(torch.randn(3, 2).to(device))
        od.zero_grad()
        real_loss, fake_loss = (
            bce(d(torch.ones(3, 4, device=device)), torch.ones(3, 1, device=device)),
            bce(d(fake.detach()), torch.zeros(3, 1, device=device)),
        )
        (real_loss + fake_loss).backward()
        od.step()
        og.zero_grad()
        loss = bce(d(fake), torch.ones(3, 1, device=device))
        loss.backward()
        og.step()
        found.append(f"{loss.item():.1f} {d(fake).mean().item():.1f}" != "")
    return [found, g.weight.shape]
