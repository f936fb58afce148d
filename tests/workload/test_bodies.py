import json

import pytest

from servetune.errors import InputError, UnknownName
from servetune.workload.apis import format_names, members_of, tool_names, tools_of
from servetune.workload.workload import one_part


def part(**members):
    return one_part(900, 10, **members).parts[0]


def test_tools_are_taken_by_number_or_by_name():
    assert len(tool_names()) == len(set(tool_names())) >= 8
    assert [tool["function"]["name"] for tool in tools_of(part(tools=3))] == list(tool_names()[:3])
    named = tools_of(part(tools=["run_query", "get_weather"]))
    assert [tool["function"]["name"] for tool in named] == ["run_query", "get_weather"]


@pytest.mark.parametrize("name", tool_names())
def test_every_tool_is_a_schema_that_an_api_takes(name):
    (tool,) = tools_of(part(tools=[name]))
    assert tool["type"] == "function"
    function = tool["function"]
    assert function["description"].endswith(".")
    parameters = function["parameters"]
    assert parameters["type"] == "object"
    assert set(parameters["required"]) <= set(parameters["properties"])
    assert all(
        "description" in each or "items" in each for each in parameters["properties"].values()
    )


def test_a_body_without_tools_and_format_says_nothing_more():
    assert members_of(part()) == ""


@pytest.mark.parametrize("name", format_names())
def test_a_named_format_is_a_strict_schema(name):
    wanted = json.loads(members_of(part(response_format=name)))["response_format"]
    assert wanted["type"] == "json_schema"
    assert wanted["json_schema"]["name"] == name
    schema = wanted["json_schema"]["schema"]
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) <= set(schema["properties"])


def test_a_format_may_be_ones_own_or_any_json():
    own = {"type": "object", "properties": {"x": {"type": "integer"}}}
    said = json.loads(members_of(part(response_format=own)))
    assert said["response_format"]["json_schema"]["schema"] == own
    said = json.loads(members_of(part(response_format="json_object")))
    assert said == {"response_format": {"type": "json_object"}}


def test_what_is_not_known_is_refused():
    with pytest.raises(UnknownName, match="hammer"):
        members_of(part(tools=["hammer"]))
    with pytest.raises(UnknownName, match="poem"):
        members_of(part(response_format="poem"))
    with pytest.raises(InputError, match="asks for 99 tools"):
        members_of(part(tools=99))
