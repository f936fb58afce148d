import pytest

from servetune.perf.load_steps import nearest_load, whole_load


def tried(copies: int = 1, most: int = 3000) -> list[int]:
    return [users for users in range(copies, most) if users == whole_load(users, copies)]


def test_every_number_is_tried_up_to_128_and_64_in_each_octave_beyond() -> None:
    assert tried()[:128] == list(range(1, 129))
    assert len([users for users in tried() if 1024 <= users < 2048]) == 64
    steps = [b / a for a, b in zip(tried()[127:], tried()[128:], strict=False)]
    assert max(steps) <= 1 + 1 / 64


def test_copies_have_equally_many_users_each() -> None:
    assert tried(copies=8, most=8 * 3000) == [8 * users for users in tried()]
    assert whole_load(27, copies=8) == 24
    assert whole_load(5, copies=8) == 5  # fewer users than copies


@pytest.mark.parametrize("copies", [1, 3, 8])
def test_the_nearest_load_is_that_of_the_whole_list(copies: int) -> None:
    numbers = tried(copies)
    for limit in range(copies, 2900, 61):
        held, failing = numbers[0], limit + 37
        up = nearest_load(held, failing, copies, lambda users, limit=limit: users <= limit)
        assert up == max(users for users in numbers if users <= limit)
        if limit > copies:
            at_least = nearest_load(
                numbers[-1], copies, copies, lambda users, limit=limit: users >= limit
            )
            assert at_least == min(users for users in numbers if users >= limit)


def test_a_load_that_is_not_among_the_tried_ones_may_be_the_nearest() -> None:
    assert nearest_load(131, 128, 131, lambda users: users >= 131) == 131


def test_a_gap_of_the_ladder_takes_few_predictions() -> None:
    asked: list[int] = []

    def holds(users: int) -> bool:
        asked.append(users)
        return users <= 1500

    assert nearest_load(1024, 2048, 1, holds) == 1488
    assert len(asked) <= 6
