import pytest

from servetune.errors import InputError
from servetune.workload import read_trace, workload_from_client_args

MOONCAKE = [
    '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}\n',
    '{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46, 57]}\n',
]
AZURE = [
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n",
    "2023-11-16 18:17:03.9799600,4808,10\r\n",
    "2023-11-16 18:17:04.0319600,3180,8\r\n",
    "2023-11-17 18:17:03.9799600,110,27\r\n",
]
BURSTGPT = [
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
    "5,ChatGPT,472,18,490,Conversation log\n",
    "45.5,ChatGPT,1087,230,1317,Conversation log\n",
    "118,GPT-4,417,0,417,API log\n",
    "119,GPT-4,0,0,0,API log\n",
]


def test_mooncake_times_are_milliseconds_and_its_blocks_are_kept():
    trace = read_trace(MOONCAKE, name="m")
    assert trace.form == "mooncake"
    assert trace.offsets_s == pytest.approx((0.0, 3.053))
    assert trace.pairs == ((6955, 52), (6472, 26))
    assert trace.hash_ids == ((46, 47), (46, 57))


def replay(tmp_path, lines, **args):
    path = tmp_path / "trace.txt"
    path.write_text("".join(lines))
    return workload_from_client_args({"dataset_name": "trace", "dataset_path": str(path), **args})


def test_blocks_of_equal_name_are_shared_beginnings(tmp_path):
    line = '{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9, 10]}'
    workload = replay(tmp_path, [line])
    (request,) = workload.requests()
    assert request.prefix == ((7, 512), (8, 512), (9, 76))


def test_azure_times_are_dates_with_seven_decimals():
    trace = read_trace(AZURE, name="a")
    assert trace.form == "azure"
    assert trace.offsets_s == pytest.approx((0.0, 0.052, 86400.0))
    assert trace.pairs[2] == (110, 27)
    assert trace.hash_ids == ()


def test_azure_of_2024_says_the_zone():
    lines = [AZURE[0], "2024-05-10 00:00:00.009930+00:00,2162,5\n"]
    assert read_trace(lines, name="a").pairs == ((2162, 5),)


def test_burstgpt_failures_are_left_out_and_counted():
    trace = read_trace(BURSTGPT, name="b")
    assert trace.form == "burstgpt"
    assert trace.offsets_s == pytest.approx((0.0, 40.5))
    assert trace.pairs == ((472, 18), (1087, 230))
    assert trace.left_out == 2


def test_no_more_is_read_than_is_wanted():
    broken_later = [*AZURE[:3], "never read"]
    assert len(read_trace(broken_later, name="a", most=2).pairs) == 2


def test_half_the_time_scale_is_twice_the_load():
    assert read_trace(BURSTGPT, name="b", time_scale=0.5).offsets_s == pytest.approx((0.0, 20.25))


def test_blank_lines_a_byte_order_mark_and_letter_case_do_not_matter():
    lines = ["\ufefftimestamp,contexttokens,generatedtokens\n", "\n", AZURE[1], "  \n", AZURE[2]]
    assert len(read_trace(lines, name="a").pairs) == 2


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "t is empty"),
        (["\n", " \n"], "t is empty"),
        ([AZURE[0]], "t holds no request"),
        ([BURSTGPT[0], BURSTGPT[3]], "all 1 were answered with no token"),
        (["a,b\n", "1,2\n"], "t line 1: columns a, b are those of no known trace"),
        ([AZURE[0], AZURE[2], AZURE[1]], "t line 3: TIMESTAMP 2023.* before the line above"),
        ([AZURE[0], "soon,1,2\n"], "t line 2: TIMESTAMP 'soon' is not a date and time"),
        ([BURSTGPT[0], "nan,x,4,5,9,l\n"], "t line 2: Timestamp 'nan' is not a number"),
        ([BURSTGPT[0], "1,x,4.5,5,9,l\n"], "t line 2: Request tokens '4.5' is not a number of"),
        ([BURSTGPT[0], "1,x,1e30,5,9,l\n"], "t line 2: Request tokens '1e30' is not a number of"),
        ([BURSTGPT[0], "1,x,-4,5,9,l\n"], "t line 2: Request tokens -4 is less than 1"),
        ([BURSTGPT[0], "1,x,4,-5,9,l\n"], "t line 2: Response tokens -5 is less than 0"),
        ([BURSTGPT[0], "1,x\n"], "t line 2 has 2 cells, the header 6"),
        ([MOONCAKE[0], "{\n"], "t line 2 is not a JSON object"),
        ([MOONCAKE[0], "[1]\n"], "t line 2 is not a JSON object"),
        (
            [MOONCAKE[0], '{"timestamp": 30000, "output_length": 4}\n'],
            "t line 2 has no input_length",
        ),
        ([MOONCAKE[1], MOONCAKE[0]], "t line 2: timestamp 27482 is before the line above"),
        (
            ['{"timestamp": 0, "input_length": true, "output_length": 2}'],
            "input_length 'True' is not a number",
        ),
        (
            ['{"timestamp": 0, "input_length": 1, "output_length": 2, "hash_ids": ["a"]}'],
            "line 1: hash_ids is not a list",
        ),
        (
            [
                MOONCAKE[0],
                '{"timestamp": 30000, "input_length": 1, "output_length": 2, "hash_ids": "abc"}',
            ],
            "line 2: hash_ids is not a list",
        ),
        (
            ['{"timestamp": 0, "input_length": 1, "output_length": 2, "hash_ids": false}'],
            "line 1: hash_ids is not a list",
        ),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_its_line(lines, said):
    with pytest.raises(InputError, match=said) as caught:
        read_trace(lines, name="t")
    assert caught.value.hint


@pytest.mark.parametrize("scale", [0, -1, float("nan"), float("inf")])
def test_time_scales_without_meaning_are_refused(scale):
    with pytest.raises(InputError, match="time_scale"):
        read_trace(AZURE, name="a", time_scale=scale)


def test_a_workload_replays_a_trace_to_the_letter(tmp_path):
    trace = read_trace(MOONCAKE, name="m")
    workload = replay(tmp_path, MOONCAKE)
    assert not workload.closed_loop
    asked = workload.requests()
    assert [request.due_s for request in asked] == list(trace.offsets_s)
    assert [(request.input_tokens, request.output_tokens) for request in asked] == list(trace.pairs)


def test_the_number_of_requests_takes_a_traces_beginning(tmp_path):
    trace = read_trace(AZURE, name="a")
    workload = replay(tmp_path, AZURE, num_prompts=2)
    assert tuple(each.due_s for each in workload.requests()) == trace.offsets_s[:2]
    with pytest.raises(InputError, match="3 requests, not 4"):
        replay(tmp_path, AZURE, num_prompts=4)


def test_a_trace_that_changed_is_read_again(tmp_path):
    assert len(replay(tmp_path, AZURE).requests()) == 3
    assert len(replay(tmp_path, AZURE[:3]).requests()) == 2


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"dataset_name": "trace"}, "needs its file"),
        ({"time_scale": 2.0}, "--time-scale has no meaning without --trace"),
        ({"arrivals": "constant"}, "need a rate"),
        ({"arrivals": "bursty", "request_rate": 2.0}, "unknown kind of arrivals"),
        ({"duration_s": 0.0}, "duration_s"),
    ],
)
def test_contradicting_arguments_are_refused(args, said):
    with pytest.raises(InputError, match=said):
        workload_from_client_args(args)


def test_a_trace_and_a_rate_are_refused_together(tmp_path):
    with pytest.raises(InputError, match="--trace and --rate contradict"):
        replay(tmp_path, AZURE, request_rate=1.0)


def test_constant_arrivals_and_a_duration_leave_what_is_due_in_time():
    workload = workload_from_client_args(
        {"request_rate": 4.0, "arrivals": "constant", "duration_s": 2.0, "num_prompts": 100}
    )
    assert [request.due_s for request in workload.requests()] == [i / 4 for i in range(9)]


def test_a_duration_in_which_nothing_is_due_is_refused():
    workload = workload_from_client_args({"request_rate": 1e-6, "duration_s": 1.0})
    with pytest.raises(InputError, match="no request is due within 1 s"):
        workload.requests()
