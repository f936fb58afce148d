"""Numbers of users between which a largest load is sought.

Copies of a model have equally many users each, so that several serve as many times what one does.
Every number of users of a copy is tried up to 128, then 64 in each octave: the next one is at most
1.6% more.
"""

from __future__ import annotations

from collections.abc import Callable

#: Octaves have so many numbers, where they have as many whole ones: two to this power.
_OCTAVE_BITS = 6


def whole_load(users: int, copies: int = 1) -> int:
    """The largest number of users, up to `users`, that is tried on so many copies.

    Fewer users than copies are left as they are.
    """
    return users if users < copies else copies * _number(_place(users // copies))


def nearest_load(held: int, failing: int, copies: int, holds: Callable[[int], bool]) -> int:
    """The number of users nearest to one that fails that holds, by halving what is between.

    Args:
        held: Number that holds, itself one that is tried (`whole_load`).
        failing: Number, larger or smaller, that does not.
        copies: Copies that share the users.
        holds: Whether a number holds.
    """
    each = copies if min(held, failing) >= copies else 1
    good = first = _place(held // each)
    bad = _place(failing // each)
    if each * _number(bad) != failing > held:  # the next one fails as well
        bad += 1
    while abs(bad - good) > 1:
        middle = (good + bad) // 2
        if holds(each * _number(middle)):
            good = middle
        else:
            bad = middle
    return held if good == first else each * _number(good)


def _number(place: int) -> int:
    """The number of users at a place among those that are tried."""
    octave = max(0, (place >> _OCTAVE_BITS) - 1)
    return place - (octave << _OCTAVE_BITS) << octave


def _place(users: int) -> int:
    """Place of the largest number, up to `users`, that is tried."""
    octave = max(0, users.bit_length() - 1 - _OCTAVE_BITS)
    return (octave << _OCTAVE_BITS) + (users >> octave)
