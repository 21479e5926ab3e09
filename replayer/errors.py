"""The errors that the virtual GPU raises on purpose. Each is one line that says what to do.

NotImplementedError
+-- NotEmulated              a call or setting of the script that the virtual GPU does not answer: named, never guessed
+-- DataDependentShape       an op whose result has a shape that only the values tell (nonzero, masked_select)

RuntimeError
+-- NotExact                 under --strict: an op that the recording does not hold exactly

MemoryError
+-- oom.OutOfMemory          the virtual device is full; the torch.cuda surface turns it into torch.OutOfMemoryError

ValueError
+-- settings.SettingsError   an allocator setting that PyTorch would refuse as well

SystemExit
+-- NotInLibrary             the library has no times of what the script trains; the line that says so is printed already

UserWarning
+-- NotEmulatedWarning       a setting that is allowed to be there, but does nothing here

raise NotEmulated("torch.cuda.MemPool", "drop the pool: the default one is emulated exactly")
"""

from __future__ import annotations

from traces.model.layouts import Shape


class NotEmulated(NotImplementedError):
    """`call` is the script's spelling of what it wanted; `advice` is what the user can do instead."""

    def __init__(self, call: str, advice: str) -> None:
        super().__init__(f"{call} is not emulated by the virtual GPU: {advice}")
        self.call = call
        self.advice = advice


class NotExact(RuntimeError):
    """Under `--strict`: `op` with these shapes was found in the recording only as `found`."""

    def __init__(self, op: str, shapes: tuple[Shape, ...], found: str) -> None:
        sizes = ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
        super().__init__(f"--strict: {op} ({sizes}) has no exact match in the recording ({found}); drop --strict to go on")


class NotInLibrary(SystemExit):
    """Ends the script, as no exception that it might catch and go on from would: what follows could only be invented."""

    def __init__(self) -> None:
        super().__init__(2)


class DataDependentShape(NotImplementedError):
    """`op` has a result whose shape depends on the values in its arguments, which a tensor without payload does not have."""

    def __init__(self, op: str) -> None:
        super().__init__(
            f"{op}: the shape of its result depends on values, which this replay does not compute and the recording does not"
            " tell; replay with --values compute, or select with a mask of fixed shape (torch.where, multiplication)"
        )
        self.op = op


class NotEmulatedWarning(UserWarning):
    """A setting of the script was taken note of but has no effect on the virtual GPU; the text names it."""
