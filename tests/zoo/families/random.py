"""Groups of operations for random numbers, generators and distributions."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributions as D

from tests.zoo.groups import Family

family = Family("random")


@family.special(close=None)
def drawing(device: str) -> Any:
    kind = {"device": device}
    found = [
        torch.rand(3, **kind),
        torch.randn(2, 2, **kind),
        torch.randint(0, 9, (4,), **kind),
        torch.randperm(6, **kind),
        torch.normal(0.0, 1.0, (3,), **kind),
    ]
    x = found[0]
    return [
        *found,
        torch.rand_like(x),
        torch.randn_like(x),
        torch.randint_like(x, 5),
        torch.normal(x, x + 1),
        torch.bernoulli(x),
        torch.poisson(x + 2),
        x.new_empty(3).uniform_(),
        torch.normal(x, 2.0),
    ]


@family.special(close=None)
def in_place(device: str) -> Any:
    x = torch.zeros(5).to(device)
    names = "uniform_ normal_ exponential_ cauchy_ log_normal_ random_ bernoulli_"
    found = [getattr(x.clone(), name)() for name in names.split()]
    return [
        *found,
        x.clone().geometric_(0.5),
        x.clone().bernoulli_(0.3),
        x.clone().normal_(2, 3),
        x.clone().random_(3, 8),
        x.clone().uniform_(-1, 1),
    ]


@family.special(close=None)
def choosing(device: str) -> Any:
    weights = torch.tensor([0.1, 0.7, 0.2]).to(device)
    logits = torch.randn(4, 5).to(device)
    sampled = torch.multinomial(logits.softmax(1), 1)
    return [
        torch.multinomial(weights, 5, replacement=True),
        torch.multinomial(weights, 2),
        sampled,
        torch.nn.functional.gumbel_softmax(logits, hard=True).shape,
        logits.gather(1, sampled).shape,
    ]


@family.special(close=None)
def generators(device: str) -> Any:
    generator = torch.Generator(device)
    generator.manual_seed(5)
    first = torch.rand(3, generator=generator, device=device)
    state = generator.get_state()
    second = torch.randn(2, generator=generator, device=device)
    generator.set_state(state)
    again = torch.randn(2, generator=generator, device=device)
    return [
        first,
        second,
        again,
        generator.initial_seed(),
        state.dtype,
        state.device.type,
        torch.randperm(4, generator=generator, device=device),
        generator.device.type == device,
    ]


@family.group
def dropout(device: str) -> Any:
    x = torch.ones(4, 8, 3).to(device).requires_grad_()
    f = torch.nn.functional
    found = [
        f.dropout(x, 0.5),
        f.dropout1d(x),
        f.alpha_dropout(x),
        f.feature_alpha_dropout(x),
        f.dropout(x, 0.5, training=False),
        f.dropout2d(x[..., None]),
        f.dropout3d(x[..., None, None]),
    ]
    sum(y.sum() for y in found).backward()
    return [x.grad.shape, *[y.shape for y in found]]


@family.group
def normal_distribution(device: str) -> Any:
    mean, scale = torch.zeros(3).to(device), torch.ones(3).to(device)
    made = D.Normal(mean, scale)
    x = made.sample()
    other = D.Normal(mean + 1, scale * 2)
    return [
        x.shape,
        made.log_prob(x).shape,
        made.entropy(),
        D.kl_divergence(made, other),
        made.rsample((2,)).shape,
        made.cdf(mean),
        made.icdf(scale / 2),
        made.mean,
        D.Independent(made, 1).log_prob(x).shape,
    ]


@family.group
def discrete_distributions(device: str) -> Any:
    logits = torch.randn(4, 3).to(device)
    made = [
        D.Categorical(logits=logits),
        D.Categorical(probs=logits.softmax(1)),
        D.Bernoulli(logits=logits),
        D.Binomial(5, logits=logits),
        D.Poisson(logits.exp()),
        D.OneHotCategorical(logits=logits),
        D.Geometric(logits.sigmoid()),
    ]
    samples = [x.sample() for x in made]
    return [
        [x.log_prob(s).shape for x, s in zip(made, samples, strict=True)],
        made[0].entropy().shape,
        [s.dtype for s in samples],
        D.Multinomial(4, logits=logits).sample().shape,
    ]


@family.group
def continuous_distributions(device: str) -> Any:
    one = torch.rand(3).add(0.5).to(device)
    made = [
        D.Uniform(one, one + 1),
        D.Exponential(one),
        D.Gamma(one, one),
        D.Beta(one, one),
        D.Laplace(one, one),
        D.LogNormal(one, one),
        D.StudentT(one + 3),
        D.Dirichlet(one),
        D.HalfNormal(one),
        D.Gumbel(one, one),
        D.Cauchy(one, one),
        D.Weibull(one, one),
        D.Chi2(one),
        D.Kumaraswamy(one, one),
        D.VonMises(one, one),
        D.Pareto(one, one),
    ]
    return [[x.log_prob(x.sample()).shape for x in made], [x.sample().shape for x in made]]


@family.group
def multivariate_distributions(device: str) -> Any:
    mean, cov = torch.zeros(2).to(device), torch.eye(2).to(device)
    made = D.MultivariateNormal(mean, cov)
    mixed = D.MixtureSameFamily(D.Categorical(torch.ones(2).to(device)), D.Normal(mean, mean + 1))
    low = D.LowRankMultivariateNormal(mean, cov[:, :1], torch.ones(2).to(device))
    return [
        made.log_prob(made.sample()).shape,
        made.entropy(),
        made.rsample((3,)).shape,
        mixed.log_prob(mixed.sample()).shape,
        low.log_prob(low.sample()).shape,
        D.Wishart(torch.tensor(3.0).to(device), cov).sample().shape,
    ]


@family.group
def transformed_distributions(device: str) -> Any:
    base = D.Normal(torch.zeros(3).to(device), torch.ones(3).to(device))
    squashed = D.TransformedDistribution(base, [D.TanhTransform(cache_size=1)])
    action = squashed.rsample()
    relaxed = D.RelaxedOneHotCategorical(torch.tensor(0.5).to(device), logits=torch.zeros(3).to(device))
    return [
        squashed.log_prob(action).shape,
        D.RelaxedBernoulli(torch.tensor(0.5).to(device), logits=torch.zeros(3).to(device)).rsample().shape,
        relaxed.rsample().shape,
        D.ContinuousBernoulli(torch.tensor([0.3]).to(device)).sample().shape,
    ]


@family.group
def invalid_distributions_are_refused(device: str) -> Any:
    found = []
    for make in (
        lambda: D.Normal(torch.zeros(1).to(device), torch.zeros(1).to(device)),
        lambda: D.Bernoulli(torch.tensor([2.0]).to(device)),
        lambda: D.Categorical(torch.tensor([-1.0]).to(device)),
    ):
        try:
            make()
            found.append("")
        except ValueError as error:
            found.append(str(error)[:30])
    return found


@family.special(close=None)
def policy_gradient(device: str) -> Any:
    """Trains an actor and a critic, as in reinforcement learning."""
    actor, critic = torch.nn.Linear(4, 2).to(device), torch.nn.Linear(4, 1).to(device)
    states = torch.randn(6, 4).to(device)
    policy = D.Categorical(logits=actor(states))
    actions = policy.sample()
    taken = [int(a) for a in actions]
    old = policy.log_prob(actions).detach()
    ratio = (policy.log_prob(actions) - old).exp()
    advantage = torch.ones(6).to(device) - critic(states).squeeze(1)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean() - 0.01 * policy.entropy().mean()
    loss.backward()
    kl = ((ratio - 1) - ratio.log()).mean()
    return [loss, actor.weight.grad, 0 <= min(taken) <= max(taken) < 2, kl, len(taken)]
