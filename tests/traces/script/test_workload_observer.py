"""Which modules and parameters count as the model of a script."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import nn

from traces.model.workload import WorkloadSignature
from traces.script.workload_observer import initialized_parameters, parts_of, with_modules


class _Remote(nn.Module):
    """A module on another machine, which refuses these methods as torch.distributed.nn.RemoteModule does."""

    def parameters(self, recurse: bool = True) -> NoReturn:
        raise ValueError("Method parameters not supported for RemoteModule")

    def named_modules(self, *_: Any, **__: Any) -> NoReturn:
        raise ValueError("Method named_modules not supported for RemoteModule")


def test_modules_and_parameters_equal_those_listed_by_torch() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(shared, nn.BatchNorm1d(4)), shared)
    assert parts_of(model) == list(model.modules())
    assert [id(parameter) for parameter in initialized_parameters(model)] == [id(parameter) for parameter in model.parameters()]
    assert initialized_parameters(nn.LazyLinear(2)) == []


def test_a_model_can_contain_remote_modules() -> None:
    model = nn.Sequential(_Remote(), nn.Linear(3, 4))
    signature = with_modules(WorkloadSignature(), [model])
    assert (signature.parameters, signature.parameter_bytes) == (3 * 4 + 4, 4 * (3 * 4 + 4))


def test_a_remote_module_received_by_rpc_has_no_submodules() -> None:
    received: nn.Module = object.__new__(_Remote)  # as RemoteModule.__setstate__ makes it
    model = nn.Sequential(nn.Linear(3, 4))
    model._modules["1"] = received
    assert parts_of(model) == [model, model[0], received]
    assert with_modules(WorkloadSignature(), [model]).parameters == 3 * 4 + 4
