"""Tests that a replay of tensor parallelism with computed values gives the same results on two ranks as in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
torch.manual_seed(0)
whole, net, x = Mlp(), Mlp(), torch.randn(3, 8)
net.load_state_dict(whole.state_dict())
mesh = init_device_mesh("cuda", (2,))
net = parallelize_module(net.cuda(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
expected, output = whole(x), net(x.cuda())
expected.sum().backward()
output.sum().backward()
torch.testing.assert_close(output.cpu(), expected)
for name, parameter in net.named_parameters():
    torch.testing.assert_close(parameter.grad.full_tensor().cpu(), whole.get_parameter(name).grad)
norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0).full_tensor()
torch.testing.assert_close(norm.cpu(), nn.utils.clip_grad_norm_(whole.parameters(), 1.0))
os.write(1, b"the same\\n")
dist.destroy_process_group()
"""


def test_two_ranks_with_sharded_layers_compute_the_same_as_one_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["replay", "--trace", "p100-no-cudnn", "--nproc", "2", "--values", "compute", "--clock", "virtual", "train.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tui.cli", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=environment)
    assert (done.returncode, done.stdout) == (0, "the same\n" * 2), done.stderr
