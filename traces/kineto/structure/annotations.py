"""Ranges that libraries and scripts put around the parts of a step, by the phase that they mean.

    phase_of_annotation("## wait_for_batch ##")                                         # "loader": TorchRec and kin
    phase_of_annotation("[pl][profile][Strategy]SingleDeviceStrategy.batch_to_device")  # "h2d": Lightning
    phase_of_annotation("forward")                                                      # "forward": record_function, nvtx
    phase_of_annotation("## metrics:publish ##")                                        # ""

A range means a phase by its whole name; a part of a part ("## forward:over_arch ##") means nothing by itself. Where torch's own
ranges lie within (DataLoader, Optimizer.step), those tell more exactly. Backward passes are told by the autograd engine's own
spans, and losses by their ops.
"""

from __future__ import annotations

import re

_TORCHREC = re.compile(r"##\s*(.+?)\s*##$")
_LIGHTNING = re.compile(r"\[pl\](?:\[[^\]]*\])*(.+)$", re.IGNORECASE)
_BETWEEN_WORDS = re.compile(r"[\s-]+")
_COUNT = re.compile(r"[\s_#]*\d+$")
_PHASES = {
    "loader": "load_batch wait_for_batch wait_for_training_batch data_load data_loading load_data dataloader get_batch"
    " next_batch fetch_batch train_dataloader_next val_dataloader_next dataloader_next",
    "h2d": "copy_batch_to_gpu copy_batch_to_device batch_to_device transfer_batch_to_device to_device h2d",
    "forward": "forward forward_pass model_forward",
    "zero_grad": "zero_grad optimizer_zero_grad",
    "optimizer": "optimizer optimizer_step optim_step",
}
_PHASE_OF = {name: phase for phase, names in _PHASES.items() for name in names.split()}


def phase_of_annotation(text: str) -> str:
    """One of the phases, or "" for a range that means none."""
    if match := _TORCHREC.match(text):
        text = match[1]
    elif match := _LIGHTNING.match(text):
        text = match[1].rpartition(".")[2]
    return _PHASE_OF.get(_BETWEEN_WORDS.sub("_", _COUNT.sub("", text.strip()).lower()), "")
