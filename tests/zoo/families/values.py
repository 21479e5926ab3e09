"""Groups of operations that branch on tensor values: checks, loops, and selection of the best result."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.zoo.groups import Family

family = Family("values")


def _unknown(device: str) -> Any:
    return torch.randn(4, 8).to(device) @ torch.randn(8, 3).to(device)


@family.group
def validity(device: str) -> Any:
    x = _unknown(device)
    found = [
        torch.isfinite(x).all(),
        torch.isnan(x).any(),
        torch.isinf(x).any(),
        ~torch.isfinite(x).any(),
        (x != x).any(),
        torch.isfinite(x).all(),
        torch.isfinite(x.sum()),
        torch.isnan(x).sum() > 0,
    ]
    asked = [bool(f) for f in found]
    assert asked == [True, False, False, False, False, True, True, False], asked
    return asked


@family.group
def validity_in_other_words(device: str) -> Any:
    x = _unknown(device)
    found = [
        torch.isfinite(x).all().item(),
        not torch.isnan(x).any(),
        bool(x.isnan().sum() == 0),
        torch.isinf(x).sum().item() == 0,
        all(torch.isfinite(row).all() for row in x),
        torch.isfinite(x).float().mean().item() == 1.0,
        torch.any(torch.isnan(x)).cpu().item() is False,
        x.isreal().all().item(),
    ]
    many = torch.zeros((), dtype=torch.bool, device=device)
    for part in (x, x * 2):
        many |= torch.isnan(part).any() | torch.isinf(part).any()
    found += [not many.item(), torch.stack([torch.isfinite(p).all() for p in (x, x)]).all().item()]
    assert all(found), found
    return found


@family.group
def itself(device: str) -> Any:
    x = _unknown(device)
    y = x.clone()
    found = [
        torch.equal(x, x),
        torch.equal(x, y),
        torch.allclose(x, y),
        (x == x).all().item(),
        (x == y).all().item(),
        torch.isclose(x, y).all().item(),
        (x <= x).all().item(),
        (x >= y).all().item(),
        not (x != y).any().item(),
        not (x < x).any().item(),
        torch.equal(x, x.detach()),
        torch.allclose(x, x + 0.0),
    ]
    torch.testing.assert_close(x, y)
    torch.testing.assert_close(x, x)
    assert all(found), found
    return found


@family.group
def near_each_other(device: str) -> Any:
    """Compute a result in two ways, and compare both within a tolerance."""
    x = _unknown(device)
    one, other = (x * 2).sum(1), x.sum(1) + x.sum(1)
    torch.testing.assert_close(one, other)
    two = torch.full((3,), 2.0, dtype=torch.float64, device=device)
    return [torch.allclose(one, other), torch.isclose(one, other).all().item(), torch.allclose(two, two + 1e-9),
        torch.allclose(two, two + 1), torch.allclose(two, two + 1, atol=2.0), torch.equal(two, two + 1e-9)]  # fmt: skip


@family.group
def numbers_written_into(device: str) -> Any:
    """Write numbers of the tensor's own dtype and of other dtypes into a tensor."""
    x, counts = torch.ones(3, dtype=torch.float64).to(device), torch.zeros(2, dtype=torch.long).to(device)
    x[0] = 1 + 1e-9
    x[1:] = torch.tensor(1 - 1e-9, dtype=torch.float64, device=device)
    counts[1] = torch.tensor(2.5, device=device)
    return [[(value - 1) * 1e9 for value in x.tolist()], counts.tolist()]


@family.special(values=("recorded",))
def lengths_of_what_is_generated(device: str) -> Any:
    """Searches unknown tokens for the end of a sequence, finds no end, and keeps all tokens."""
    tokens = torch.randint(0, 9, (2, 8)).to(device) if device == "cpu" else torch.randint(0, 9, (2, 8), device=device)
    is_end = torch.isin(tokens, torch.tensor([9], device=device))
    ends = torch.full((2,), 8, dtype=torch.long, device=device)
    ends[is_end.any(dim=1)] = is_end.int().argmax(dim=1)[is_end.any(dim=1)]
    mask = (torch.arange(8, device=device).expand(2, -1) <= ends.unsqueeze(1)).int()
    kept = [row[chosen].tolist() for row, chosen in zip(tokens.cpu(), mask.bool().cpu(), strict=True)]
    assert [len(row) for row in kept] == [8, 8] and ends.tolist() == [8, 8]
    return kept


@family.group
def counters(device: str) -> Any:
    step, seen = torch.zeros((), dtype=torch.long, device=device), torch.tensor(0, device=device)
    total = torch.zeros(1, device=device)
    for _ in range(3):
        step += 1
        seen.add_(4)
        total = total + 2
    found = [
        step.item(),
        int(seen),
        total.item(),
        (step / seen).item(),
        float(step * 2),
        bool(step >= 3),
        (step % 2 == 1).item(),
        step.float().item() / 2,
    ]
    assert found == [3, 12, 6.0, 0.25, 6.0, True, True, 1.5], found
    return found


@family.group
def known_numbers(device: str) -> Any:
    """Computes with numbers from the host, which stay known."""
    x = torch.tensor([3.0, 1.0, 2.0], device=device)
    n = torch.tensor(5, device=device)
    found = [
        x.sum().item(),
        x.max().item(),
        x.argmax().item(),
        (x * 2).tolist(),
        x.sort().values.tolist(),
        n.item() + 1,
        x[n - 5].item(),
        x.mean().item(),
        x.cpu().tolist(),
        torch.cat([x, x]).sum().item(),
        x.view(3, 1).squeeze().tolist(),
        (x > 1.5).sum().item(),
        x[x > 1.5].tolist(),
    ]
    assert found == [
        6.0,
        3.0,
        0,
        [6.0, 2.0, 4.0],
        [1.0, 2.0, 3.0],
        6,
        3.0,
        2.0,
        [3.0, 1.0, 2.0],
        12.0,
        [3.0, 1.0, 2.0],
        2,
        [3.0, 2.0],
    ], found
    return found


@family.group
def known_numbers_change(device: str) -> Any:
    x = torch.tensor([3.0, 1.0, 2.0], device=device)
    x[0] = 7
    x[1:] += 1
    x.mul_(2)
    y = x.clone()
    y.zero_()
    z = torch.zeros(4, device=device)
    z[1] = 1
    z[torch.tensor([2]).to(device)] = 5
    found = [x.tolist(), y.tolist(), z.tolist(), x.t()[0].item()]
    assert found == [[14.0, 4.0, 6.0], [0.0] * 3, [0.0, 1.0, 5.0, 0.0], 14.0], found
    return found


@family.group
def random_states(device: str) -> Any:
    state = torch.get_rng_state()
    there = state.to(device)
    back = there.cpu()
    gathered = torch.stack([there, there.clone()])
    found = [
        torch.equal(back, state),
        torch.equal(gathered[1].cpu(), state),
        bool((there == there).all()),
        bool(all(there == gathered[0])),
    ]
    torch.set_rng_state(back)
    assert all(found), found
    return found


@family.group
def loops_end(device: str) -> Any:
    x, rounds = torch.tensor(100.0, device=device), 0
    while x > 1 and rounds < 50:
        x = x / 2
        rounds += 1
    error, tries = torch.tensor(1.0, device=device), 0
    while error.item() > 1e-3 and tries < 50:
        error = error * 0.1
        tries += 1
    assert rounds == 7 and tries <= 4, (rounds, tries)
    return [rounds, tries]


@family.group
def numbers_of_tensors(device: str) -> Any:
    x = _unknown(device)
    facts = [
        type(x.sum().item()),
        type(int(x.argmax())),
        type(bool(x.sum() > 0)),
        type(float(x.mean())),
        f"{x.mean():.3f}" != "",
        str(x).startswith("tensor("),
        repr(x.sum()).startswith("tensor("),
        len(x.tolist()),
        x[0].cpu().numpy().shape,
    ]
    return [f.__name__ if isinstance(f, type) else f for f in facts]


@family.group
def indices_are_in_range(device: str) -> Any:
    """Uses values as indices on the host. Each of these indices is valid."""
    x = _unknown(device)
    names = ["a", "b", "c"]
    drawn = torch.multinomial(x[0].softmax(0), 1).item()
    picked = (
        [names[int(i)] for i in x.argmax(1)],
        names[x[0].argmax().item()],
        [names[i] for i in x.topk(2).indices[0].tolist()],
    )
    assert names[drawn] in names
    permuted = torch.randperm(5, device=device).tolist()
    assert len(picked[0]) == 4
    return [len(picked), len(permuted), 0 <= torch.randint(3, (1,), device=device).item() < 3]


@family.group
def early_stopping(device: str) -> Any:
    """Saves the model when the loss improves, and stops early otherwise. The loss must improve in each epoch."""
    model = nn.Linear(8, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    x, labels = torch.randn(16, 8).to(device), torch.randint(0, 3, (16,)).to(device)
    best, saved, waited, epochs = float("inf"), 0, 0, 0
    for _ in range(6):
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = loss.item()
        schedule.step(now)
        epochs += 1
        if now < best:
            best, saved, waited = now, saved + 1, 0
        else:
            waited += 1
            if waited >= 2:
                break
    assert saved == epochs == 6, (saved, epochs)
    return [epochs, optimizer.param_groups[0]["lr"]]


@family.group
def asserts(device: str) -> Any:
    x = _unknown(device)
    torch._assert(torch.isfinite(x).all(), "finite")
    torch._assert_async(torch.isfinite(x).all())
    assert x.shape == (4, 3) and torch.isfinite(x).all(), "finite"
    assert not torch.isnan(x.sum())
    assert (x.softmax(1).sum(1) - 1).abs().max() < 10
    torch.distributions.Normal(x, x.exp()).log_prob(x)
    return x.softmax(1).sum(1).shape


@family.group
def min_and_max_of_numbers(device: str) -> Any:
    x = _unknown(device)
    low, high = x.min(), x.max()
    scaled = (x - low) / (high - low + 1e-8)
    found = [
        bool(low <= high),
        bool((scaled >= -1e9).all()),
        min(1.0, float(high)) <= 1.0,
        max(low.item(), high.item()) >= low.item(),
    ]
    return [*found[2:], scaled.shape]


@family.group
def infinity_as_an_integer(device: str) -> Any:
    """Write the scores of tokens into a table of integers, as beam search does."""
    none = torch.full((3,), float("-inf"), device=device)
    counted = torch.zeros(3, dtype=torch.int64, device=device)
    counted.copy_(none)
    return [none.long().shape, counted.dtype, none.to(torch.bool)]


@family.group
def counts_that_split(device: str) -> Any:
    """Send tokens to their chosen experts, each with a different number of tokens."""
    torch.manual_seed(0)
    scores = torch.randn(10, 4).to(device)
    expert, order = scores.argmax(1).sort()
    parts = torch.zeros(10, 3, device=device)[order].split(torch.bincount(expert, minlength=4).tolist())
    _, counts = scores.argmax(1).unique(return_counts=True)
    groups = torch.zeros(10, device=device).split(counts.tolist())
    return [len(parts), sum(len(part) for part in parts), sum(len(group) for group in groups)]


@family.group
def out_of_memory_is_the_gpus(device: str) -> Any:
    """Catches the error of a product that no GPU can hold, as scripts do that search for the largest batch."""
    try:
        torch.ones(1 << 24, 1, device=device) @ torch.ones(1, 1 << 24, device=device)
    except RuntimeError as error:
        return device == "cpu" or isinstance(error, torch.OutOfMemoryError)
    return False
