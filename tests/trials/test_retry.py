"""Flaky is tried again, broken is not, and what keeps breaking is left alone."""

from servetune.store import Failure
from servetune.trials.launch import Launch
from servetune.trials.retry import Attempts, cause_of


def failure(kind="died", reason="vllm ended with exit code 1: boom at 0x7f"):
    return Failure(kind=kind, reason=reason)


def test_numbers_do_not_make_another_cause():
    one = failure(reason="died after 12.5 s at 0x7fab on port 41233")
    other = failure(reason="died after 9 s at 0x1 on port 8000")
    assert cause_of(one) == cause_of(other)
    assert cause_of(failure(kind="load")) != cause_of(failure())


def test_the_same_cause_twice_is_broken():
    attempts = Attempts(retries=5)
    assert attempts.trial_failed("t", failure(), server_died=True) == "again"
    assert attempts.trial_failed("t", failure(), server_died=True) == "broken"


def test_other_causes_are_tried_again_until_the_retries_are_used_up():
    attempts = Attempts(retries=2)
    said = [attempts.trial_failed("t", failure(reason=word), server_died=False) for word in "abc"]
    assert said == ["again", "again", "broken"]
    assert [attempt["reason"] for attempt in attempts.of("t")] == ["a", "b"]


def test_by_default_a_failure_is_tried_again_twice():
    for attempts in (Attempts(), Attempts(retries=Launch().retries)):
        said = [attempts.start_failed(failure(reason=word)) for word in "abc"]
        assert said == ["again", "again", "broken"]


def test_trials_are_judged_each_by_itself():
    attempts = Attempts(retries=2)
    assert attempts.trial_failed("t", failure(), server_died=True) == "again"
    assert attempts.trial_failed("u", failure(), server_died=True) == "again"


def test_what_no_repetition_changes_is_not_repeated():
    attempts = Attempts(retries=2)
    assert attempts.trial_failed("t", failure("refused"), server_died=False) == "broken"
    assert Attempts(retries=2).start_failed(failure("settings")) == "broken"


def test_a_start_that_fails_twice_alike_ends_the_configuration_with_its_own_reason():
    attempts = Attempts(retries=2)
    assert attempts.start_failed(failure()) == "again"
    assert attempts.quarantine is None
    attempts.start_failed(failure())
    assert attempts.quarantine == failure()


def test_a_port_that_others_take_is_chance():
    attempts = Attempts(retries=3)
    said = [attempts.start_failed(failure("port_busy"), by_chance=True) for _ in range(4)]
    assert said == ["again", "again", "again", "broken"]


def test_two_broken_trials_in_a_row_are_a_quarantine_and_a_result_between_them_is_not():
    attempts = Attempts(retries=0)
    attempts.trial_failed("t", failure(), server_died=True)
    attempts.trial_ended()
    attempts.trial_failed("u", failure(), server_died=True)
    assert attempts.quarantine is None
    attempts.trial_failed("v", failure(), server_died=True)
    assert attempts.quarantine.kind == "quarantined"
    assert "boom" in attempts.quarantine.reason


def test_trials_that_fail_on_a_living_server_quarantine_nothing():
    attempts = Attempts(retries=0)
    for key in "tuvw":
        attempts.trial_failed(key, failure("load"), server_died=False)
    assert attempts.quarantine is None


def test_a_start_that_failed_is_told_of_with_the_next_trial_only():
    attempts = Attempts(retries=2)
    attempts.start_failed(failure(), server_log="logs/server-001.log")
    [told] = attempts.of("t")
    assert (told["of"], told["server_log"]) == ("start", "logs/server-001.log")
    attempts.trial_ended()
    assert attempts.of("u") == []
