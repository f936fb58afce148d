"""A request's prefix is made of pieces that its prompt has room for."""

import msgspec
import pytest

from servetune.errors import InputError
from servetune.workload import Request


def test_a_request_shares_nothing_unless_it_says_so() -> None:
    request = Request(index=0, due_s=0.0, input_tokens=10, output_tokens=2)
    assert (request.prefix, request.prefix_tokens, request.answer_id) == ((), 0, None)


def test_a_prefix_goes_through_json() -> None:
    request = Request(
        index=0, due_s=0.0, input_tokens=70, output_tokens=2, prefix=((7, 50), (8, 20)), answer_id=9
    )
    assert request.prefix_tokens == 70
    assert msgspec.json.decode(msgspec.json.encode(request), type=Request) == request


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        (((7, 50), (8, 21)), "prefix of 71 tokens in a prompt of 70"),
        (((7, 0),), r"piece \(7, 0\)"),
        (((-1, 4),), r"piece \(-1, 4\)"),
    ],
)
def test_a_prefix_that_cannot_be_is_refused(prefix, message) -> None:
    with pytest.raises(InputError, match=message):
        Request(index=0, due_s=0.0, input_tokens=70, output_tokens=2, prefix=prefix)


def test_a_turn_follows_a_request_before_it():
    def turn(index, follows):
        return Request(index=index, due_s=0.0, input_tokens=1, output_tokens=1, follows=follows)

    assert turn(3, 1).follows == 1
    for follows in (3, 4, -1):
        with pytest.raises(InputError, match="which is not before it"):
            turn(3, follows)
