from servetune.workload.request import Request
from servetune.workload.sampler import PerfectCache, hit_fraction


def asked(index, input_tokens, *prefix, **members):
    return Request(
        index=index,
        due_s=0.0,
        input_tokens=input_tokens,
        output_tokens=10,
        prefix=prefix,
        **members,
    )


def test_only_what_was_asked_before_is_found():
    cache = PerfectCache()
    assert cache.look_up([(1, 100), (2, 50)]) == 0
    assert cache.look_up([(1, 100), (3, 50)]) == 100
    assert cache.look_up([(1, 100), (2, 80)]) == 150
    assert cache.look_up([(1, 100), (2, 80)]) == 180


def test_a_content_is_known_only_behind_the_same_beginning():
    cache = PerfectCache()
    cache.look_up([(1, 100), (2, 50)])
    assert cache.look_up([(2, 50)]) == 0
    assert cache.look_up([(1, 60), (2, 50)]) == 60  # it begins elsewhere, whatever follows
    assert cache.look_up([(1, 100), (2, 50)]) == 150


def test_the_hit_fraction_counts_tokens_of_all_prompts():
    requests = [asked(i, 300, (5, 200)) for i in range(10)]
    assert hit_fraction(requests) == 9 * 200 / (10 * 300)
    assert hit_fraction([asked(i, 300) for i in range(3)]) == 0
    assert hit_fraction([]) == 0


def test_a_prompts_last_token_is_always_computed():
    assert hit_fraction([asked(i, 100, (1, 100)) for i in range(2)]) == 99 / 200


def test_an_answer_is_found_in_the_next_turn_after_a_prompt_known_whole():
    first = asked(0, 100, (1, 100), answer_id=2)
    second = asked(1, 140, (1, 100), (2, 10), (3, 30))
    assert hit_fraction([first, second]) == 110 / 240
    unknown = asked(0, 100, (1, 60), answer_id=2)
    after = asked(1, 140, (1, 60), (2, 10), (3, 30))
    assert hit_fraction([unknown, after]) == 60 / 240
