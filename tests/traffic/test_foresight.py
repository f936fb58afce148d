import pytest

from servetune.traffic.foresight import GAPS_A_REST, LONGEST_S, UNFORESEEN_S, Foresight


def taught(gap_s=0.010, reads=129, tokens=128, answers=60):
    """What a process knows after some equal answers, all of whose ends were foreseen."""
    foresight = Foresight()
    for answer in range(answers):
        foresight.read([i * gap_s for i in range(16)])
        foresight.nearly_over(answer, 1.0)
        foresight.over(answer, reads, tokens, whole=True)
    return foresight


def test_nobody_rests_before_the_gap_between_tokens_is_known():
    assert Foresight().rest_s(0.0) == 0.0


@pytest.mark.parametrize("gap_s", [0.0005, 0.002, 0.008])
def test_a_rest_is_a_fraction_of_the_gap_so_that_no_two_tokens_share_a_stamp(gap_s):
    assert taught(gap_s).rest_s(0.0) == pytest.approx(min(LONGEST_S, gap_s / GAPS_A_REST))


def test_answers_whose_ends_come_unforeseen_allow_short_rests_only():
    foresight = taught()
    for answer in range(60):
        foresight.over(answer, 129, 128, whole=True)
    assert foresight.rest_s(0.0) == UNFORESEEN_S


def test_an_end_that_is_near_cuts_a_rest_short_and_one_that_is_due_forbids_it():
    foresight = taught()
    foresight.nearly_over("one", 5.0)
    assert foresight.rest_s(5.0) == LONGEST_S
    assert 0 < foresight.rest_s(5.0 + 0.010 - 0.001) < LONGEST_S
    assert foresight.rest_s(5.0 + 0.010) == 0.0
    foresight.over("one", 129, 128, whole=True)
    assert foresight.rest_s(5.0 + 0.010) == LONGEST_S


def test_an_end_that_does_not_come_is_not_waited_for_without_end():
    foresight = taught()
    foresight.nearly_over("stalled", 5.0)
    later_s = 5.0 + 100 * 0.010
    foresight.rest_s(later_s)
    assert foresight.rest_s(later_s) == LONGEST_S


def test_reads_of_an_answer_are_learnt_from_those_before():
    assert Foresight().reads_before_last(128) == 127
    assert taught(reads=33, tokens=128).reads_before_last(256) == pytest.approx(65, abs=2)
    assert Foresight().reads_before_last(0) == 0
