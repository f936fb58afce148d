import msgspec
import pytest

from servetune.errors import GrammarError, InputError, UnknownName
from servetune.workload import (
    AllAtOnce,
    Constant,
    Gamma,
    MarkovBursts,
    Piecewise,
    Poisson,
    Ramp,
    Scheduled,
    Sine,
    arrivals_of,
    format_arrivals,
    parse_arrivals,
    workload_from_client_args,
)

WRITTEN = {
    "kind=all_at_once": AllAtOnce(),
    "kind=constant,rate_per_s=4": Constant(4.0),
    "kind=poisson,rate_per_s=0.25": Poisson(0.25),
    "kind=poisson,rate_per_s=0.25,count=15": Poisson(0.25, 15),
    "kind=gamma,rate_per_s=4,burstiness=0.5": Gamma(4.0, 0.5),
    "kind=mmpp,rates_per_s=[2,40],dwell_s=[30,5]": MarkovBursts((2.0, 40.0), (30.0, 5.0)),
    "kind=piecewise,steps=[[60,2],[30,8.5]],repeat=true": Piecewise(
        ((60.0, 2.0), (30.0, 8.5)), repeat=True
    ),
    "kind=ramp,from_per_s=1,to_per_s=9,over_s=60,shape=exponential": Ramp(
        1.0, 9.0, 60.0, shape="exponential"
    ),
    "kind=sine,mean_per_s=5,amplitude_per_s=4,period_s=600,gaps=even": Sine(
        5.0, 4.0, 600.0, gaps="even"
    ),
    "kind=scheduled,times_s=[0,0.5,1.25],time_scale=2": Scheduled((0.0, 0.5, 1.25), 2.0),
}


@pytest.mark.parametrize(("text", "law"), WRITTEN.items())
def test_a_law_is_read_and_written_alike(text, law):
    assert parse_arrivals(text) == law
    assert format_arrivals(law) == text


def test_blanks_dashes_quotes_and_round_brackets_are_taken():
    text = " kind = 'piecewise' , steps = ( (60, 2), [30, 8.5] ) , repeat = True "
    assert parse_arrivals(text) == Piecewise(((60.0, 2.0), (30.0, 8.5)), repeat=True)
    assert parse_arrivals("kind=ramp,from-per-s=1,to-per-s=2,over-s=3") == Ramp(1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("text", "at", "words"),
    [
        ("", 0, "a name"),
        ("gamma", 0, "a name"),
        ("rate_per_s=4", 0, "need a kind"),
        ("kind=gama,rate_per_s=4", 5, "did you mean gamma"),
        ("kind=[1],rate_per_s=4", 5, "unknown kind"),
        ("kind=gamma,rate=4", 11, "known names are kind, rate_per_s, burstiness"),
        ("kind=gamma", 5, "needs rate_per_s"),
        ("kind=gamma,rate_per_s=fast", 22, "expected float"),
        ("kind=gamma,rate_per_s=-1", 22, "must be positive"),
        ("kind=gamma,rate_per_s=", 22, "a value must stand"),
        ("kind=gamma,rate_per_s=4,", 24, "a name"),
        ("kind=gamma;rate_per_s=4", 10, "',' must stand"),
        ("kind=gamma,rate_per_s=4,rate_per_s=4", 24, "given twice"),
        ("kind=mmpp,rates_per_s=[2,40,dwell_s=[9,1]", 35, "',' must stand"),
        ("kind=mmpp,dwell_s=[9,1],rates_per_s=[2,40", 36, "never closed"),
        ("kind=mmpp,dwell_s=[9,1],rates_per_s=(2,40]", 41, "must stand"),
        ("kind=piecewise,steps=[60,2]", 21, "expected array"),
        ("kind=piecewise,steps=[(60,-2)]", 21, "rate of -2"),
        ("kind=ramp,from_per_s=1,to_per_s=9,over_s=60,shape=cubic", 50, "linear, exponential"),
        ("kind=sine,mean_per_s=4,period_s=60,amplitude_per_s=5", 51, "at most 4"),
    ],
)
def test_a_mistake_is_reported_with_its_place(text, at, words):
    with pytest.raises(GrammarError) as told:
        parse_arrivals(text)
    assert told.value.position == at
    assert words in f"{told.value.message} {told.value.hint}"


def test_tables_are_refused_by_name():
    with pytest.raises(UnknownName, match="gama"):
        arrivals_of({"kind": "gama"})
    with pytest.raises(InputError, match="has no 'rate'"):
        arrivals_of({"kind": "gamma", "rate": 3})


def test_the_clients_argument_takes_any_law():
    args = {"arrivals": "kind=gamma,rate_per_s=4,burstiness=0.5", "num_prompts": 20}
    workload = workload_from_client_args(args)
    assert workload.arrivals == Gamma(4.0, 0.5)
    assert msgspec.json.decode(msgspec.json.encode(workload), type=type(workload)) == workload
    assert [r.due_s for r in workload.requests()] == sorted(r.due_s for r in workload.requests())


def test_a_rate_may_be_swept_beside_a_law():
    args = {"arrivals": "kind=gamma,burstiness=0.5", "request_rate": 7.0}
    assert workload_from_client_args(args).arrivals == Gamma(7.0, 0.5)
    for both in ("kind=gamma,rate_per_s=4", "kind=sine,mean_per_s=4,amplitude_per_s=1,period_s=9"):
        with pytest.raises(InputError, match="contradicts"):
            workload_from_client_args({"arrivals": both, "request_rate": 7.0})
    named = workload_from_client_args({"arrivals": "gamma", "request_rate": 7.0})
    assert named.arrivals == Gamma(7.0, 1.0)
    with pytest.raises(InputError, match="more than a name"):
        workload_from_client_args({"arrivals": "mmpp", "request_rate": 7.0})


def test_times_that_were_seen_ask_as_many_requests():
    args = {"arrivals": "kind=scheduled,times_s=[0,0.5,2]"}
    assert [r.due_s for r in workload_from_client_args(args).requests()] == [0.0, 0.5, 2.0]
    with pytest.raises(InputError, match="end after 3 of 9"):
        workload_from_client_args({**args, "num_prompts": 9}).requests()
    limited = {**args, "num_prompts": 9, "duration_s": 1.0}
    assert len(workload_from_client_args(limited).requests()) == 2
