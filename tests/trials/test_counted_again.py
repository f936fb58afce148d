import pytest

from servetune.store import Results
from servetune.trials.record import _counted_again

CHECK = {"requests": 4, "server_tokens": 40, "counted_tokens": 41}


@pytest.mark.parametrize(
    ("results", "tokens"),
    [
        ({"completed": 4, "token_check": CHECK}, 41),
        ({"completed": 5, "token_check": CHECK}, None),  # one answer was not counted
        ({"completed": 4, "token_check": None}, None),
        ({}, None),
    ],
)
def test_tokens_are_counted_again_in_every_answer_or_not_at_all(results, tokens):
    assert _counted_again(Results(results)) == tokens
