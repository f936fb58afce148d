import pytest

from servetune.traffic.sleep_planner import GAPS_PER_SLEEP, LONGEST_S, UNPREDICTED_S, SleepPlanner

GAP_S = 0.020
"""Long enough that a rest is as long as any."""


def taught(gap_s=GAP_S, pieces=129, tokens=128, a_read=1, answers=60):
    """What a process knows after some equal answers, all of whose ends were foreseen."""
    sleep_planner = SleepPlanner()
    for answer in range(answers):
        sleep_planner.read([i * gap_s for i in range(16)], 16 * a_read)
        sleep_planner.expect_end(answer, 1.0)
        sleep_planner.ended(answer, tokens, pieces - 16 * a_read, (16, 16 * a_read))
    return sleep_planner


def test_nobody_rests_before_the_gap_between_tokens_is_known():
    assert SleepPlanner().sleep_s(0.0) == 0.0


@pytest.mark.parametrize("gap_s", [0.0005, 0.002, 0.008])
def test_a_rest_is_a_fraction_of_the_gap_so_that_no_two_tokens_share_a_stamp(gap_s):
    assert taught(gap_s).sleep_s(0.0) == pytest.approx(min(LONGEST_S, gap_s / GAPS_PER_SLEEP))


def test_answers_whose_ends_come_unforeseen_allow_short_rests_only():
    for tokens in (128, 0):
        sleep_planner = taught()
        for answer in range(60):
            sleep_planner.ended(answer, tokens, 113, (16, 16))
        assert sleep_planner.sleep_s(0.0) == UNPREDICTED_S


def test_an_end_that_is_near_cuts_a_rest_short_and_one_that_is_due_forbids_it():
    sleep_planner = taught()
    sleep_planner.expect_end("one", 5.0)
    assert sleep_planner.sleep_s(5.0) == LONGEST_S
    assert 0 < sleep_planner.sleep_s(5.0 + GAP_S - 0.001) < LONGEST_S
    assert sleep_planner.sleep_s(5.0 + GAP_S) == 0.0
    sleep_planner.ended("one", 128, 113, (16, 16))
    assert sleep_planner.sleep_s(5.0 + GAP_S) == LONGEST_S


def test_an_end_that_does_not_come_is_not_waited_for_without_end():
    sleep_planner = taught()
    sleep_planner.expect_end("stalled", 5.0)
    later_s = 5.0 + 100 * GAP_S
    sleep_planner.sleep_s(later_s)
    assert sleep_planner.sleep_s(later_s) == LONGEST_S


def test_an_answer_that_was_given_up_forbids_no_rest():
    sleep_planner = taught()
    sleep_planner.expect_end("lost", 5.0)
    sleep_planner.forget("lost")
    assert sleep_planner.sleep_s(5.0 + GAP_S) == LONGEST_S


def test_reads_of_an_answer_are_learnt_from_those_before():
    assert SleepPlanner().reads_left(128) == 128
    assert taught(pieces=33, tokens=128).reads_left(256) == pytest.approx(66, abs=2)
    assert SleepPlanner().reads_left(0) == 0


def test_a_read_that_brought_two_pieces_does_not_shift_the_end():
    sleep_planner = taught(pieces=128)
    assert sleep_planner.reads_left(128, 112) == 16
    for _ in range(64):  # answers whose streams stalled, all at once
        sleep_planner.read([i * GAP_S for i in range(16)], 19)
        assert sleep_planner.reads_left(128, 115) == pytest.approx(13, abs=1)
    sleep_planner.read([i * GAP_S for i in range(16)], 16)
    assert sleep_planner.reads_left(128, 16) == 112


def test_pieces_behind_the_last_token_are_no_reads_of_their_own():
    sleep_planner = SleepPlanner()
    for answer in range(60):
        sleep_planner.read([i * GAP_S for i in range(16)], 16)
        stalled = answer > 40  # the last but one of these brought three
        sleep_planner.ended(answer, 128, 112, (14, 17) if stalled else (16, 17))
    assert sleep_planner.reads_left(128, 112) == 16
    assert sleep_planner.reads_left(512, 500) == 12


def test_pieces_that_come_many_at_a_time_are_counted_in_reads():
    sleep_planner = taught(pieces=512, tokens=512, a_read=16)
    assert sleep_planner.reads_left(512, 256) == pytest.approx(16, abs=1)


def test_an_answer_that_outlives_what_was_asked_for_is_not_near_its_end():
    assert taught().reads_left(128, 140) == 0
