"""What the host reads where nothing was recorded or known: values as a healthy run would have them.

    assumed = AssumedValues(lambda: 0)
    assumed.loss()      # 1.0; after 100 training steps 0.5: a loss improves slowly, and an accuracy with it
    assumed.share()     # 0.5; after 100 training steps 0.75: of comparisons, how many hold
    assumed.count(6)    # 3: so many of six elements, where a result's size depends on them

So what a script does only when a loss improves it does: it saves the best model, goes on training, keeps its learning rate.

Note [Loops end]
    A script may ask again and again until a number is small. What it reads beyond a thousand scalars within one training step
    halves from one to the next, and a condition that has been false so often is true for once. Where no data comes from the
    host meanwhile, as it does in a loop over batches, numbers that are made in one place halve after a hundred: a solver whose
    steps are rejected makes them smaller each time, and after a thousand they would be nothing, so that none ends it.
    A selection from two or more elements never takes all of them: a loop that goes on with what is left
    (`boxes = boxes[iou < 0.5]`) comes to one element, which is left out for once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

HALF_AFTER = 100  # training steps after which a loss has halved
WITHOUT_DATA = 97  # numbers made in one place since data came from the host
PATIENCE = 997  # scalars read within one step before numbers begin to shrink; a prime: a loop may ask several conditions


class AssumedValues:
    """`trained` tells how many training steps there were. Not `improving`: every float is 1.0, every count 0."""

    def __init__(self, trained: Callable[[], int], *, improving: bool = True) -> None:
        self._trained = trained
        self.improving = improving
        self._step = 0
        self._asked = 0
        self._made_at: Counter[Hashable] = Counter()

    def loss(self, place: Hashable = None) -> float:
        """Of any float: positive, finite, smaller after each training step. `place`: where the script makes it."""
        if not self.improving:
            return 1.0
        step = self._step_now()
        too_many = max(self._asked - PATIENCE, 0)
        if place is not None:
            self._made_at[place] += 1
            too_many = max(too_many, self._made_at[place] - WITHOUT_DATA)
        return HALF_AFTER / (HALF_AFTER + step) * 0.5 ** min(too_many, 60)

    def share(self) -> float:
        """How many of an unknown number of comparisons hold."""
        return 1 - self.loss() / 2 if self.improving else 0.0

    def count(self, elements: int) -> int:
        """How many of so many elements are counted or selected: their share, rounded half up. See Note [Loops end]."""
        if elements <= 1:
            return 0 if self.decide() else elements
        return min(int(self.share() * elements + 0.5), elements - 1)

    def decide(self) -> bool:
        """A condition that the host asks for. See Note [Loops end]."""
        self.note_scalar()
        return self.improving and self._asked % PATIENCE == 0

    def note_scalar(self) -> None:
        """The host reads a single unrecorded value."""
        self._step_now()
        self._asked += 1

    def note_data(self) -> None:
        """The host sends data: a loop over batches goes on."""
        self._made_at.clear()

    def _step_now(self) -> int:
        """How many training steps there were; what was counted before the last one is forgotten."""
        step = self._trained()
        if step != self._step:
            self._step, self._asked = step, 0
            self._made_at.clear()
        return step
