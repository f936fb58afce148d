"""One vocabulary: a noun has one name, one type and one default in all verbs, or a reason."""

from collections import defaultdict

import pytest

from servetune import api
from servetune.api.request import Request, fields_of

#: Fields whose options have other names in some verbs, and why.
OTHER_NAMES = {
    "adapter": "bench has --adapter-component, as an adapter is a component to whoever sends",
    "load": "doctor has a load test (--load-test), deploy study a load to compare at (--load)",
}

#: Fields of another type in some verbs, and why.
OTHER_TYPES = {
    "adapter": "bench asks one adapter, deploy sagemaker hosts several",
    "concurrency": "tune and bench run several levels; a prediction and a simulation have one",
    "container": "deploy sagemaker takes any image of AWS, compose and Kubernetes know two",
    "dataset": "an estimate knows the lengths of two data sets, a load sends any file",
    "input_tokens": "a prediction has one length, a load a law of lengths",
    "instances": "deploy study compares several numbers of instances",
    "load": "two options; see OTHER_NAMES",
    "name": "deploy orphans deletes several by their names",
    "output_tokens": "a prediction has one length, a load a law of lengths",
    "quantization": "calibrate chooses among several",
    "only_status": "a list of runs has one state, a benchmark job is asked for its own",
    "rate": "bench runs several levels; tune sweeps client arguments, a simulation has one",
    "target": "an estimate has quantities to split by, a registry places of deployments",
}

#: Fields with another default in some verbs, and why.
OTHER_DEFAULTS = {
    "confidence": "a limit of an estimate need hold less surely than a measured search ends",
    "constraints": "pages of many runs have those of each",
    "copies": "a bundle's fill its machine, SageMaker's are components; bench counts those there",
    "concurrency": "bench must send something, tune sends as llm-optimizer does, calibrate plans",
    "container": "see OTHER_TYPES",
    "engine": "a list of runs has those of all engines",
    "dataset": "simulate and estimate say that their data set is random, bench draws lengths",
    "gpu": "a bundle is for the trial's GPU, a prediction for what is here",
    "image": "a bundle has the engine's image, tune one only in a container",
    "input_tokens": "bench has LLMPerf's lengths, tune and predictions llm-optimizer's",
    "instance": "a bundle is for the trial's instance",
    "instances": "see OTHER_TYPES",
    "load": "see OTHER_NAMES",
    "model": "a running server says what it serves",
    "name": "a calibration is named after its journal, a service after its model",
    "num_gpus": "a simulated server takes as many as its own arguments need",
    "objective": "pages of many runs have that of each",
    "output_json": "a summary is beside its journal",
    "output_tokens": "bench has LLMPerf's lengths, tune and predictions llm-optimizer's",
    "port": "trials take a free port, a service the usual one",
    "price_per_hour_usd": "a price comes with an instance, a record or the catalogue",
    "rate": "a sample of a workload comes as that does",
    "requests": "bench is a quick look, a trial needs a 99th percentile; both help texts say so",
    "role_arn": "an endpoint is made with the role of its bundle, which may leave it open",
    "run": "a deployment that is registered has the run of its bundle",
    "routing": "bench takes turns, SageMaker's component routes by load",
    "seed": "bench sends new prompts each time, which no server has in its cache",
    "slo": "tune's goodput is only of limits that are given, as in llm-optimizer",
    "target": "see OTHER_TYPES",
    "trial": "a load test finds its trial by its load, a registration by the bundle",
    "tokenizer": "a load's model has one; a workload alone names no model",
    "tolerance": "repeated runs show their noise themselves",
    "tensor_parallel": "an estimate compares splits, a simulation has one",
}

#: Options of bench that tune has not, and why. All others about what is sent are in both.
BENCH_ALONE = {
    "urls": "tune measures one server, at --url",
    "routing": "over several servers",
    "grace_s": "a trial's requests in flight have 30 s when its duration is over",
    "max_failures": "a trial ends early when it plainly misses its constraints",
    "cold": "trials compare servers, and connections are opened before each",
    "keep_saturated": "no trial is ended because its server cannot follow",
    "against": "a study is compared by --compare",
    "trial": "of --against",
    "copies": "of --against",
    "machines": "of --against",
    "tolerance": "of --against",
    "engine_log": "of --against",
    "compat": "a journal's figures have one definition",
    "scrape_s": "trials read metrics each second",
    "dcgm_url": "a study may have many servers, DCGM is of one machine",
    "out": "a study writes to --output-json or --output-dir",
    "quiet": "progress of a study is one line per trial",
    "words_seed": "hidden; a trial's words differ by its key",
}

#: Spellings of rivals and short ones: the option that has them wherever it is.
SPELLINGS = {
    "concurrency": ("--concurrency", "--max-concurrency", "-c"),
    "requests": ("--requests", "--num-prompts", "-n"),
    "input_tokens": ("--input-tokens", "--input-len"),
    "output_tokens": ("--output-tokens", "--output-len"),
    "rate": ("--rate", "--request-rate"),
    "seed": ("--seed",),
    "header": ("--header",),
    "num_gpus": ("--num-gpus", "--gpus"),
    "engine": ("--engine", "--framework"),
    "quantization": ("--quantization", "--precision"),
    "constraints": ("--constraints", "--limits"),
    "request_timeout_s": ("--request-timeout", "--timeout"),
    "poll_s": ("--poll-s", "--poll-every"),
}

#: What each verb that sends or predicts a load must have.
LOADED = ("bench", "tune", "simulate")


def verbs():
    for name in api.__all__:
        kind = getattr(api, name)
        if isinstance(kind, type) and issubclass(kind, Request) and kind.verb:
            yield kind


def options():
    """Verb and field of every option that has a name."""
    for kind in verbs():
        for field in fields_of(kind):
            if not field.option.position:
                yield kind.verb, field


def shown_default(field):
    default = field.option.default or field.default
    return str(default) if default not in (None, (), "", False) else ""


def differing(aspect):
    """Names of fields of which verbs have another aspect, with what each has."""
    found = defaultdict(lambda: defaultdict(list))
    for verb, field in options():
        found[field.name][aspect(field)].append(verb)
    return {name: dict(by) for name, by in found.items() if len(by) > 1}


ASPECTS = {
    "names": (lambda field: field.names, OTHER_NAMES),
    "type": (lambda field: (type(field.type).__name__, field.many), OTHER_TYPES),
    "default": (shown_default, OTHER_DEFAULTS),
}


@pytest.mark.parametrize("aspect", ASPECTS)
def test_a_noun_is_the_same_in_all_verbs_or_has_a_reason(aspect):
    read, reasons = ASPECTS[aspect]
    found = differing(read)
    assert {name: found[name] for name in found.keys() - reasons.keys()} == {}
    assert reasons.keys() - found.keys() == set(), "a reason for what does not differ any more"
    assert all(reasons.values())


def test_an_option_is_the_same_field_everywhere():
    fields = defaultdict(set)
    for _, field in options():
        for spelling in field.names:
            fields[spelling].add(field.name)
    assert {name: found for name, found in fields.items() if len(found) > 1} == {}


def test_rivals_spellings_work_in_every_verb():
    for verb, field in options():
        if field.name in SPELLINGS:
            assert field.names == SPELLINGS[field.name], f"{verb} {field.name}"


@pytest.mark.parametrize("verb", LOADED)
def test_each_verb_with_a_load_has_the_whole_vocabulary(verb):
    names = {field.name for each, field in options() if each == verb}
    assert {name for name in SPELLINGS if name not in _NOT_LOAD} <= names


_NOT_LOAD = ("num_gpus", "engine", "quantization", "request_timeout_s", "poll_s")


def test_tune_sends_all_that_bench_can_or_there_is_a_reason():
    by_verb = defaultdict(dict)
    for verb, field in options():
        by_verb[verb][field.name] = field
    of_bench = {name for name, field in by_verb["bench"].items() if field.group != "SageMaker"}
    of_bench |= {field.name for field in fields_of(api.Bench) if field.option.position}
    assert of_bench - by_verb["tune"].keys() == BENCH_ALONE.keys()


def test_both_defaults_of_the_number_of_requests_have_their_reason():
    words = {verb: field.option.default for verb, field in options() if field.name == "requests"}
    assert "100 or two for each user, for a quick look; tune and" in words["bench"]
    for verb in ("tune", "simulate"):
        assert "1000, so that ten lie beyond the 99th percentile; bench sends 100" in words[verb]
