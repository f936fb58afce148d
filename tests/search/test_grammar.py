import pytest

from servetune.errors import GrammarError
from servetune.search import Space, parse_settings

SERVER_TYPES = {"tensor_parallel_size": int, "gpu_memory_utilization": float, "enforce_eager": bool}


def server(text):
    return list(Space(server=parse_settings(text, types=SERVER_TYPES)).servers())


def test_the_published_example_is_nine_servers_and_three_clients():
    space = Space(
        server=parse_settings(
            "tensor_parallel_size=[1,2,4];max_num_batched_tokens=[4096,8192,16384]",
            types=SERVER_TYPES,
        ),
        client=parse_settings(
            "max_concurrency=[32,64,128];num_prompts=1000;dataset_name=sharegpt", types={}
        ),
    )
    servers, clients = list(space.servers()), list(space.clients())
    assert len(servers) == 9
    assert len(clients) == 3
    assert servers[1] == {"tensor_parallel_size": 1, "max_num_batched_tokens": 8192}
    assert clients[0] == {"max_concurrency": 32, "num_prompts": 1000, "dataset_name": "sharegpt"}
    assert len(space) == 27


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=range(1,4)", [{"a": 1}, {"a": 2}, {"a": 3}]),
        ("a=range(1, 8, 3)", [{"a": 1}, {"a": 4}, {"a": 7}]),
        ("a=[1,2,]", [{"a": 1}, {"a": 2}]),
        ("--max-num-seqs=8", [{"max_num_seqs": 8}]),
        ("a*b=[(1,4),(2,2)]", [{"a": 1, "b": 4}, {"a": 2, "b": 2}]),
        ("a*b=[[1,4],[2,2]]", [{"a": 1, "b": 4}, {"a": 2, "b": 2}]),
        ("a*b=(1,4)", [{"a": 1, "b": 4}]),
        ("a*b=[1,4]", [{"a": 1, "b": 4}]),
        ("a*b:(int,float)=[(1,4)]", [{"a": 1, "b": 4.0}]),
        ("a=[auto,fp8]", [{"a": "auto"}, {"a": "fp8"}]),
        ("a:str=8", [{"a": "8"}]),
        ("a:float=8", [{"a": 8.0}]),
        ("a=8.0", [{"a": 8}]),
        ("a=0.5", [{"a": 0.5}]),
        ("a=1e3", [{"a": 1000}]),
        ("a=[True,false]", [{"a": True}, {"a": False}]),
        ("a=None", [{"a": None}]),
        ("a='x;y'", [{"a": "x;y"}]),
        (r"a='x\';y'", [{"a": r"x\';y"}]),
        ('a="x"', [{"a": "x"}]),
        ("a=don't", [{"a": "don't"}]),
        ("a=x=y", [{"a": "x=y"}]),
        ("a=1;;b=2", [{"a": 1, "b": 2}]),
        ("a=inf", [{"a": float("inf")}]),
        ("a=.5", [{"a": 0.5}]),
        ("a=''", [{"a": ""}]),
        ("a=x'y'", [{"a": "x'y'"}]),
        ("a=[x 'y,z]", [{"a": "x 'y"}, {"a": "z"}]),
        ("a=XX", [{"a": "XX"}]),
        ("a:json=[1,{}]", [{"a": "1"}, {"a": "{}"}]),
        ("a=-3", [{"a": -3}]),
        ("a=null", [{"a": None}]),
        ("a:bool=true", [{"a": True}]),
        ("a:float=inf", [{"a": float("inf")}]),
        ("a=1e400", [{"a": float("inf")}]),
        ("tensor_parallel_size=2.0", [{"tensor_parallel_size": 2}]),
        ("gpu_memory_utilization=1", [{"gpu_memory_utilization": 1.0}]),
        ("enforce_eager=True", [{"enforce_eager": True}]),
    ],
)
def test_settings_are_read(text, expected):
    assert server(text) == expected
    for got, wanted in zip(server(text), expected, strict=True):
        assert [type(v) for v in got.values()] == [type(v) for v in wanted.values()]


def test_json_values_keep_their_quotes():
    text = '{"method":"ngram","num_speculative_tokens":5}'
    assert server(f"speculative_config={text};b=1") == [{"speculative_config": text, "b": 1}]
    assert [s["c"] for s in server(f'c=[{text},{{"method":"mtp"}}]')] == [text, '{"method":"mtp"}']
    assert server("c={'method': 'ngram', 'draft': None}") == [
        {"c": '{"method": "ngram", "draft": null}'}
    ]


def test_a_list_value_is_swept_as_json_when_nested():
    assert server("cudagraph_capture_sizes=[[1,2,4],[8]]") == [
        {"cudagraph_capture_sizes": "[1,2,4]"},
        {"cudagraph_capture_sizes": "[8]"},
    ]


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("a=[1,2", 2, "not closed"),
        ("a=1,2]", 5, "unbalanced"),
        ("a=[]", 2, "empty list"),
        ("a=[1,,2]", 5, "empty value"),
        ("b=1;a", 4, "no value"),
        ("b=1;a=", 4, "no value"),
        ("a=1;a=2", 4, "given twice"),
        ("a=range(5,1)", 2, "is empty"),
        ("a=range(x,1)", 2, "cannot read range"),
        ("a:integer=1", 2, "unknown type"),
        ("a*b=[(1,2,3)]", 5, "2 names but 3 values"),
        ("a*b=[1,2,3]", 4, "2 names but 3 values"),
        ("a*b=7", 4, "needs 2 values together"),
        ("tensor_parallel_size=two", 21, "takes an integer"),
        ("tensor_parallel_size=[1,2.5]", 24, "takes an integer"),
        ("enforce_eager=maybe", 14, "takes true or false"),
        ("a=[4,8,4]", 7, "same value twice"),
        ("a=range(1,10000000000)", 2, "9,999,999,999 values"),
        ("tensor_parallel_size=1e400", 21, "takes an integer"),
        ("a='x", 2, "not closed"),
        ("a={x:1}", 2, "not JSON"),
        ("=3", 0, "not a name"),
        ("a:json=nonsense", 7, "'nonsense' is not JSON"),
        ("gpu_memory_utilization=much", 23, "takes a number, got 'much'"),
        ("a=1; b =", 4, "'b =' has no value|'b' has no value"),
        ("a*?=(1,2)", 2, "not a name"),
        ("a*b:(int,float,int)=(1,2)", 4, "2 names but 3 types"),
        ("a= [1,,2]", 6, "empty value"),
        ("a=range(1)", 2, "cannot read range"),
        ("a=range(1,2,3,4)", 2, "cannot read range"),
        ("a=range(1,9,0)", 2, "cannot read range"),
        ("a=range(0,10001)", 2, "10,001 values"),
        ("a=[1]]", 5, "unbalanced"),
        ("a=[1]x", 2, "unbalanced"),
        ("a*b:(int,int)=[(1,2),(3,x)]", 24, "b takes an integer"),
    ],
)
def test_a_mistake_is_refused_with_its_place(text, position, says):
    with pytest.raises(GrammarError, match=says) as caught:
        server(text)
    assert caught.value.position == position


def test_unknown_client_names_are_refused_with_the_known_ones():
    with pytest.raises(GrammarError, match="unknown client argument 'max_concurency'") as caught:
        parse_settings(
            "num_prompts=3;max_concurency=[1,2]",
            types={},
            known=["max_concurrency", "num_prompts"],
            kind="client argument",
        )
    assert caught.value.position == 14
    assert "did you mean max_concurrency" in caught.value.hint


def test_true_and_one_are_different_values():
    assert [s["a"] for s in server("a=[1,True]")] == [1, True]


def test_no_text_is_one_empty_configuration():
    assert server("") == [{}]
    assert server(" ; ") == [{}]


def test_a_range_may_have_ten_thousand_values():
    assert len(server("a=range(0,10000)")) == 10_000


def test_every_known_name_stands_in_the_hint_with_those_that_are_close():
    with pytest.raises(GrammarError, match="unknown setting 'zz'") as caught:
        parse_settings("zz=1", types={}, known=["alpha", "beta"])
    assert caught.value.hint == "known names are alpha, beta"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a", "write name=value"),
        ("=3", "write name=value;name=value"),
        ("a=[4,8,4]", "leave one out"),
        ("a:integer=1", "types are int, float, bool, str, json"),
        ("a=[]", "give at least one value"),
        ("a*b=7", "write [(1,1),...]"),
        ("a*b*c=7", "write [(1,1,1),...]"),
        ("a=range(x,1)", "write range(start,end) or range(start,end,step)"),
        ("a=range(5,5)", "the end is not included"),
        ("a=range(0,10001)", "give a larger step"),
        ("a={x:1}", 'quote names: {"method":"ngram"}'),
    ],
)
def test_a_mistake_says_how_to_go_on(text, hint):
    with pytest.raises(GrammarError) as caught:
        server(text)
    assert caught.value.hint == hint


def test_none_leaves_a_setting_out_whatever_its_type():
    types = {"quantization": str, "max_num_seqs": int, "enforce_eager": bool}
    for name in types:
        (axis,) = parse_settings(f"{name}=None", types=types)
        assert axis.rows == ((None,),)
    (axis,) = parse_settings('quantization="None"', types=types)
    assert axis.rows == (("None",),)
