"""The exceptions that the command line tells without a traceback, and "did you mean" for unknown names."""

import difflib
from collections.abc import Iterable

__all__ = ["InfeasibleError", "InputError", "ToolError", "did_you_mean"]


class InputError(ValueError):
    """Bad input from outside: a file, a key, a value or a name.

    The message says what is wrong, where (file and line, or key) and what to do. The command line prints it in one
    line and exits with code 2; library callers may catch it as a `ValueError`.
    """


class InfeasibleError(InputError):
    """The workload cannot be run on this system under this policy, whatever the time: a memory is too small.

    A sweep or a published table takes it as a result ("infeasible"), everything else as bad input.
    """


class ToolError(RuntimeError):
    """A tool that Pagetide runs is missing or failed; the message says which and what to do, or shows its output.

    The command line prints it without a traceback and exits with code 1.
    """


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that helps with an unknown `name`: the nearest of `known`, else all of them.

    >>> did_you_mean("bert-bsae", ["bert-base", "gpt2"])
    "did you mean 'bert-base'?"
    >>> did_you_mean("xyz", ["bert-base", "gpt2"])
    "known are 'bert-base', 'gpt2'"
    """
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return "known are " + ", ".join(repr(k) for k in known)
