"""Threads of numpy's matrix library (BLAS): one for matrices of a few hundred rows.

They are multiplied before several threads have met. On two cores that others use as well, a
decision took ten times the processor time with the library's own choice, one thread per core.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

_ONE_AT_A_TIME = threading.RLock()
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def by_one_thread(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, with every matrix operation inside it done by one thread."""

    @functools.wraps(function)
    def alone(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        # The number is the process's: of two at once, the later would restore the earlier's.
        with _ONE_AT_A_TIME, ThreadpoolController().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return alone
