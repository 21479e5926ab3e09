"""Decides which training phase each call of an op belongs to.

    splitter = PhaseSplitter()
    splitter.enter("loader", 0); splitter.leave("loader", 5)
    splitter.op(PLAIN, 7)            # forward begins where the loader ended
    splitter.op(LOSS, 20)
    splitter.enter("backward", 30); splitter.leave("backward", 60)
    splitter.close(61)               # [Segment("loader", 0, 5), ("forward", 5, 20), ("loss", 20, 30), ("backward", 30, 61)]

The phases "forward", "loss" and "other" begin with their first op, and end when the next phase begins. Time between two phases
belongs to the second phase.

Note [After a backward pass]
    After a backward pass, a script may clip gradients or read values, so these ops belong to the phase "other". The next
    forward pass of the step, for example of another micro-batch, begins with the first of these events (FORWARD):
    - an outermost module is called while gradients are enabled
    - a compiled function is called, and autograd records it
    - the backward pass built a graph (`create_graph=True`), and autograd records an op, for example of a gradient penalty
    Autograd gives each recorded op a new sequence number, which the importer and the replayer compare. Many profiles contain no
    module calls. In such a profile, the importer also begins a forward pass at an op that autograd records, if another backward
    pass follows.
    The recorder compares the number only before the next backward pass or loss function. If there are no module calls, the
    forward pass therefore begins at the end of the previous phase.

Note [Zero_grad after a loss]
    A script may call `zero_grad` between its loss and the backward pass, and then multiply the loss by the scale of a gradient
    scaler. The recorder does not see this multiplication. After a loss and `zero_grad`, an op therefore begins the backward
    pass, unless the op belongs to an outermost module that is called with gradients.

Note [Copies to the GPU]
    The recorder does not see ops that create a tensor, so a copy to the GPU after such ops also begins the phase "h2d". In a
    forward pass, in a loss and after other ops, a copy belongs to the current phase. The same is true of a call that moves a
    module, such as `nn.CrossEntropyLoss().cuda()`, which may copy nothing.

Note [Ops before the batch]
    After the optimizer, a script may compute metrics or average weights before it loads the next batch. The recorder does not
    see these ops. Ops outside of modules therefore belong to "other" if a batch is loaded or copied to the GPU after them, and
    before any loss or backward pass. Ops between the start of a step and the first call of a module also belong to "other",
    and so do ops between the optimizer and the end of a step. The importer sees what follows. A replay looks at the recorded
    step.

Note [Before the first phase]
    If `begin_ns` is set, the time between `begin_ns` and the first phase counts as "other". If the first phase is "loader",
    this time counts as waiting for data, because the script enters the loader first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

PLAIN, LOSS, ASIDE, READ, FORWARD = range(5)  # for FORWARD, see Note [After a backward pass]

CLOSURE = "Optimizer.closure"  # the recorder's range around the function that a script passes to an optimizer's `step`

# The loss phase begins with one of the ops in LOSS_OPS. For example, `cross_entropy_loss` calls `nll_loss_forward`.
LOSS_OPS = frozenset(
    "cross_entropy_loss nll_loss nll_loss_nd nll_loss2d nll_loss_forward nll_loss2d_forward log_softmax _log_softmax mse_loss"
    " l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div ctc_loss _ctc_loss"
    " hinge_embedding_loss cosine_embedding_loss margin_ranking_loss triplet_margin_loss soft_margin_loss multi_margin_loss"
    " multilabel_margin_loss multilabel_margin_loss_forward poisson_nll_loss".split()
)

# Optimizers and gradient scalers call ops with names such as `_foreach_add_`, `_fused_adam_` and `_amp_update_scale_`.
READ_OPS = frozenset("item _local_scalar_dense is_nonzero".split())
ASIDE_OPS = frozenset(
    "empty empty_strided empty_permuted empty_like zeros zeros_like ones ones_like full full_like scalar_tensor arange range"
    " linspace logspace eye tril_indices triu_indices fft_fftfreq fft_rfftfreq bartlett_window blackman_window hamming_window"
    " hann_window kaiser_window randperm rand rand_like randn randn_like randint randint_like normal zero_ fill_ normal_"
    " uniform_ random_ exponential_ bernoulli_ cauchy_ geometric_ log_normal_".split()
)

_ASIDE_BEGINNINGS = ("_foreach_", "_fused_", "_amp_")

_OPEN_ENDED = frozenset({"forward", "loss", "backward", "other"})
_BESIDE = (ASIDE, READ)


class Segment(NamedTuple):
    name: str
    start_ns: int
    end_ns: int


# faster than `Segment(...)`
new_segment: Callable[[tuple[str, int, int]], Segment] = partial(tuple.__new__, Segment)


def op_class(name: str) -> int:
    bare = name.rpartition("::")[2].partition(".")[0]
    if bare in LOSS_OPS:
        return LOSS
    if bare in READ_OPS:
        return READ
    return ASIDE if bare in ASIDE_OPS or bare.startswith(_ASIDE_BEGINNINGS) else PLAIN


class PhaseSplitter:
    def __init__(self) -> None:
        self.current = ""  # name of the current segment, or "" before the first event
        self.inside = False
        self.segments: list[Segment] = []
        self.begin_ns: int | None = None  # start of the step, see Note [Before the first phase]
        self._start_ns = 0
        self._boundary_ns: int | None = None  # end of the last segment that was entered
        self._after_backward = False
        self._may_copy = True  # see Note [Copies to the GPU]

    @property
    def boundary_ns(self) -> int | None:
        return self._boundary_ns

    @property
    def begins_at_copy(self) -> bool:
        # see Note [Copies to the GPU]
        return self._boundary_ns is not None or self._may_copy

    @property
    def is_after_backward(self) -> bool:
        return self._after_backward and not self.inside and self.current in ("backward", "other")

    @property
    def state(self) -> tuple[object, ...]:
        return self.current, self.inside, self._after_backward, self._boundary_ns is None, len(self.segments)

    def enter(self, name: str, now_ns: int) -> bool:
        """Enter a phase. Return True if a new segment begins."""
        if self.inside or (name == "h2d" and not self.begins_at_copy):
            return False
        self.inside = self._may_copy = True
        self._after_backward = False
        return self._begin(name, now_ns)

    def leave(self, name: str, now_ns: int, *, open_ended: bool = False) -> None:
        """End the phase `name`. With `open_ended`, the phase lasts until the next phase begins."""
        if self.inside and self.current == name:
            self.inside = False
            self._boundary_ns = None if open_ended else now_ns
            self._after_backward = name == "backward"

    def op(self, kind: int, now_ns: int) -> bool:
        """Handle the call of an op. Return True if a new phase begins with this op."""
        if kind in (LOSS, FORWARD) and not self.inside:
            self._after_backward = False
        if not self.begins_phase(kind):
            return False
        self._may_copy = kind == ASIDE
        if kind == LOSS:
            return self._begin("loss", now_ns)
        if kind == PLAIN and self.current == "zero_grad" and self.segments and self.segments[-1].name == "loss":
            return self._begin("backward", now_ns)  # see Note [Zero_grad after a loss]
        return self._begin("other" if kind in _BESIDE or self._after_backward else "forward", now_ns)

    def begins_phase(self, kind: int) -> bool:
        if self.inside:
            return False
        if self._boundary_ns is not None:
            return True
        if kind == LOSS:
            return self.current != "loss"
        # see Note [After a backward pass]
        return self.current not in _OPEN_ENDED or (self.current == "other" and kind not in _BESIDE and not self._after_backward)

    def close(self, now_ns: int) -> list[Segment]:
        if self.current:
            self.segments.append(new_segment((self.current, self._start_ns, now_ns)))
        self._after_backward &= self.current == "backward"
        done, self.segments = self.segments, []
        self.current, self.inside, self._boundary_ns, self._may_copy = "", False, None, True
        return done

    def _begin(self, name: str, now_ns: int) -> bool:
        boundary_ns, self._boundary_ns = self._boundary_ns, None
        current = self.current
        if name == current:
            return False
        if current:
            if boundary_ns is not None:
                now_ns = boundary_ns
            self.segments.append(new_segment((current, self._start_ns, now_ns)))
        elif self.begin_ns is not None:
            if name not in ("loader", "other"):
                now_ns = max(now_ns, self.begin_ns)  # the profiler may have started later than the call that began the step
                self.segments.append(new_segment(("other", self.begin_ns, now_ns)))
            else:
                now_ns = self.begin_ns
        self.current, self._start_ns = name, now_ns
        return True
