"""Recognizes training phases by the names of profiler ranges, such as "forward".

    phase_of_annotation("## wait_for_batch ##")                                         # "loader": TorchRec and others
    phase_of_annotation("[pl][profile][Strategy]SingleDeviceStrategy.batch_to_device")  # "h2d": Lightning
    phase_of_annotation("forward")                                                      # "forward": record_function, nvtx
    phase_of_annotation("## metrics:publish ##")                                        # ""
    is_iteration("execute_context_1(888)_generation_4(4)")                              # True: vLLM
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


# names of the ranges that inference servers (vLLM and its forks, SGLang) and training loops put around their iterations
_ITERATION = re.compile(
    r"execute_(?:\w+_)?context_\w*\(.*|execute_(?:model|new_\d+_cached_\d+)\b.*|step\[.+\]"
    r"|(?:(?:train(?:ing)?|eval(?:uation)?|inference|model|global)[ _-])?(?:step|iter|iteration|batch)(?:[ _#:-]*\d+)?",
    re.IGNORECASE,
)


def is_iteration(text: str) -> bool:
    """Return True if the name of a profiler range shows that it is one iteration of a loop."""
    return _ITERATION.fullmatch(text.strip()) is not None


def phase_of_annotation(text: str) -> str:
    if match := _TORCHREC.match(text):
        text = match[1]
    elif match := _LIGHTNING.match(text):
        text = match[1].rpartition(".")[2]
    return _PHASE_OF.get(_BETWEEN_WORDS.sub("_", _COUNT.sub("", text.strip()).lower()), "")
