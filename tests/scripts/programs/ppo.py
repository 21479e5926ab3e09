"""Trains an agent with PPO in the style of CleanRL: vectorized environments, GAE, early stopping by KL, and explained
variance."""

import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.categorical import Categorical
from torch.distributions.normal import Normal


class Envs:
    def __init__(self, n):
        self.n, self.rng = n, np.random.default_rng(0)

    def reset(self):
        self.state = self.rng.normal(size=(self.n, 4)).astype(np.float32)
        return self.state

    def step(self, action):
        assert action.shape[0] == self.n
        self.state = (self.state * 0.9 + self.rng.normal(size=self.state.shape) * 0.1).astype(np.float32)
        reward = -np.abs(self.state[:, 0]) + (np.asarray(action).reshape(self.n, -1)[:, 0] == 0)
        return self.state, reward, self.rng.random(self.n) < 0.1


def layer_init(layer, std=np.sqrt(2), bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(layer_init(nn.Linear(4, 32)), nn.Tanh(), layer_init(nn.Linear(32, 1), std=1.0))
        self.actor = nn.Sequential(layer_init(nn.Linear(4, 32)), nn.Tanh(), layer_init(nn.Linear(32, 3), std=0.01))
        self.mean = layer_init(nn.Linear(4, 2), std=0.01)
        self.logstd = nn.Parameter(torch.zeros(1, 2))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None, force=None):
        probs = Categorical(logits=self.actor(x))
        cont = Normal(self.mean(x), self.logstd.expand(x.shape[0], -1).exp())
        if action is None:
            action, force = probs.sample(), cont.sample()
        log = probs.log_prob(action) + cont.log_prob(force).sum(1)
        return action, force, log, probs.entropy() + cont.entropy().sum(1), self.critic(x)


num_envs, num_steps, epochs, minibatches, total = 4, 8, 2, 2, 3
gamma, gae_lambda, clip_coef, ent_coef, vf_coef, target_kl = 0.99, 0.95, 0.2, 0.01, 0.5, 0.05
random.seed(1)
np.random.seed(1)
torch.manual_seed(1)
torch.backends.cudnn.deterministic = True
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
envs = Envs(num_envs)
agent = Agent().to(device)
optimizer = optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
obs = torch.zeros((num_steps, num_envs, 4)).to(device)
actions = torch.zeros((num_steps, num_envs), dtype=torch.long).to(device)
forces = torch.zeros((num_steps, num_envs, 2)).to(device)
logprobs, rewards, dones, values = (torch.zeros((num_steps, num_envs)).to(device) for _ in range(4))
start_time, global_step = time.time(), 0
next_obs = torch.Tensor(envs.reset()).to(device)
next_done = torch.zeros(num_envs).to(device)
for update in range(1, total + 1):
    optimizer.param_groups[0]["lr"] = (1.0 - (update - 1.0) / total) * 2.5e-4
    for step in range(num_steps):
        global_step += num_envs
        obs[step], dones[step] = next_obs, next_done
        with torch.no_grad():
            action, force, logprob, _, value = agent.get_action_and_value(next_obs)
            values[step] = value.flatten()
        actions[step], forces[step], logprobs[step] = action, force, logprob
        state, reward, done = envs.step(action.cpu().numpy())
        rewards[step] = torch.tensor(reward).to(device).view(-1)
        next_obs, next_done = torch.Tensor(state).to(device), torch.Tensor(done).to(device)
    with torch.no_grad():
        next_value = agent.get_value(next_obs).reshape(1, -1)
        advantages = torch.zeros_like(rewards).to(device)
        lastgaelam = 0
        for t in reversed(range(num_steps)):
            nonterminal = 1.0 - (next_done if t == num_steps - 1 else dones[t + 1])
            nextvalues = next_value if t == num_steps - 1 else values[t + 1]
            delta = rewards[t] + gamma * nextvalues * nonterminal - values[t]
            advantages[t] = lastgaelam = delta + gamma * gae_lambda * nonterminal * lastgaelam
        returns = advantages + values
    b = [x.reshape((-1,) + x.shape[2:]) for x in (obs, logprobs, actions, forces, advantages, returns, values)]
    b_obs, b_logprobs, b_actions, b_forces, b_advantages, b_returns, b_values = b
    b_inds = np.arange(num_envs * num_steps)
    clipfracs = []
    for epoch in range(epochs):
        np.random.shuffle(b_inds)
        for start in range(0, len(b_inds), len(b_inds) // minibatches):
            mb = b_inds[start : start + len(b_inds) // minibatches]
            _, _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb], b_actions.long()[mb], b_forces[mb])
            logratio = newlogprob - b_logprobs[mb]
            ratio = logratio.exp()
            with torch.no_grad():
                old_approx_kl = (-logratio).mean()
                approx_kl = ((ratio - 1) - logratio).mean()
                clipfracs += [((ratio - 1.0).abs() > clip_coef).float().mean().item()]
            adv = b_advantages[mb]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            pg_loss = torch.max(-adv * ratio, -adv * torch.clamp(ratio, 1 - clip_coef, 1 + clip_coef)).mean()
            newvalue = newvalue.view(-1)
            v_clipped = b_values[mb] + torch.clamp(newvalue - b_values[mb], -clip_coef, clip_coef)
            v_loss = 0.5 * torch.max((newvalue - b_returns[mb]) ** 2, (v_clipped - b_returns[mb]) ** 2).mean()
            loss = pg_loss - ent_coef * entropy.mean() + v_loss * vf_coef
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
        if target_kl is not None and approx_kl > target_kl:
            break
    y_pred, y_true = b_values.cpu().numpy(), b_returns.cpu().numpy()
    var_y = np.var(y_true)
    explained_var = np.nan if var_y == 0 else 1 - np.var(y_true - y_pred) / var_y
    print(
        f"update {update} v {v_loss.item():.3f} p {pg_loss.item():.3f} kl {approx_kl.item():.4f} {old_approx_kl.item():.4f} "
        f"clip {np.mean(clipfracs):.3f} ev {explained_var:.3f} SPS {int(global_step / (time.time() - start_time + 1e-9))}"
    )
torch.save(agent.state_dict(), "agent.pth")
