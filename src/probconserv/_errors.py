"""The one family of exceptions: catch `ProbConservError` to catch them all."""


class ProbConservError(ValueError):
    """Anything this library refuses to do; the message says why and what to do instead."""


class InputError(ProbConservError):
    """An argument breaks a rule: its shape, dtype, device or values."""


class InfeasibleError(ProbConservError):
    """The field cannot satisfy the constraint exactly, or constraints contradict each other."""


class DegenerateError(ProbConservError):
    """A density was asked of a field that has none: some direction has no variance."""
