"""Bodies of requests: one for each route and request, built before the clock starts."""

# ruff: noqa: ARG001 - every route's body is made from the same four values

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from servetune.errors import InputError
from servetune.loadgen.target import Target
from servetune.secret import redacted_text
from servetune.traffic.request_file import PreparedRequest
from servetune.workload.apis import APIS
from servetune.workload.prompts import Prompt
from servetune.workload.request import Request
from servetune.workload.workload import Workload, extra_members

Members = dict[str, Any]

SHOWN_CHARACTERS = 1000


def _completions(target: Target, workload: Workload, request: Request, prompt: Prompt) -> Members:
    return {
        "model": target.model,
        "prompt": _text(prompt) if prompt.token_ids is None else _ids(prompt),
        **_openai_sampling(target, workload, request),
    }


def _chat(target: Target, workload: Workload, request: Request, prompt: Prompt) -> Members:
    return {
        "messages": _messages(prompt),
        "model": target.model,
        **_openai_sampling(target, workload, request),
    }


def _responses(target: Target, workload: Workload, request: Request, prompt: Prompt) -> Members:
    members: Members = {
        "model": target.model,
        "input": _text(prompt) if prompt.text is not None else _messages(prompt),
        "max_output_tokens": request.output_tokens,
        "temperature": target.temperature,
        "stream": target.stream,
    }
    if workload.ignore_eos:
        members["ignore_eos"] = True
    return members


def _embeddings(target: Target, workload: Workload, request: Request, prompt: Prompt) -> Members:
    return {
        "model": target.model,
        "input": _text(prompt) if prompt.token_ids is None else _ids(prompt),
    }


def _parameters(target: Target, workload: Workload, request: Request, prompt: Prompt) -> Members:
    # A temperature of 0 is refused; without sampling the server is greedy.
    sampling: Members = {"do_sample": False}
    if target.temperature > 0:
        sampling = {"do_sample": True, "temperature": target.temperature}
    return {
        "inputs": _text(prompt),
        "parameters": {"max_new_tokens": request.output_tokens, "details": True, **sampling},
    }


def _sampling_params(
    target: Target, workload: Workload, request: Request, prompt: Prompt
) -> Members:
    prompt_members = (
        {"text": _text(prompt)} if prompt.token_ids is None else {"input_ids": _ids(prompt)}
    )
    return {
        **prompt_members,
        "sampling_params": {
            "max_new_tokens": request.output_tokens,
            "temperature": target.temperature,
            "ignore_eos": workload.ignore_eos,
        },
        "stream": target.stream,
    }


#: Function that builds the JSON body of a request, by its form (`Api.body`).
BODIES: Mapping[str, Callable[[Target, Workload, Request, Prompt], Members]] = {
    "completions": _completions,
    "chat": _chat,
    "responses": _responses,
    "embeddings": _embeddings,
    "parameters": _parameters,
    "sampling_params": _sampling_params,
}


def api_of(target: Target, workload: Workload) -> str:
    """Name of a run's API: the target's, else the workload's."""
    api = target.api or workload.api
    if api not in APIS:
        raise InputError(f"unknown API '{api}'", hint=f"known are {', '.join(APIS)}")
    return api


def answer_form(target: Target, workload: Workload) -> str:
    """Form of a run's answers (`traffic.answer.ANSWERS`)."""
    name = api_of(target, workload)
    return APIS[name].answer or name


def head_of(target: Target, workload: Workload) -> bytes:
    """Request line and headers of every request to a target, without the body's length."""
    api = APIS[api_of(target, workload)]
    path = api.path if target.stream or not api.whole_path else api.whole_path
    path = target.path or path
    accept = "text/event-stream" if target.stream else "application/json"
    return target.head("POST", path, accept=accept) + b"Content-Type: application/json\r\n"


def prepared_request(
    target: Target, workload: Workload, request: Request, prompt: Prompt
) -> PreparedRequest:
    """Request as the sender processes read it."""
    name = api_of(target, workload)
    members = BODIES[APIS[name].body or name](target, workload, request, prompt)
    further = (prompt.members, workload.extra_body, target.extra_body)
    for text in further:
        members.update(extra_members(text))
    model = prompt.model
    if model:
        members["model"] = model
    present = {name: value for name, value in members.items() if value is not None}
    messages = present.pop("messages", None)
    body = msgspec.json.encode(present)
    messages_at = (0, 0)
    if messages is not None:  # first, so that a conversation can be put before them
        inside = msgspec.json.encode(messages)[1:-1]
        begin = len(b'{"messages":[')
        messages_at = (begin, begin + len(inside))
        body = b'{"messages":[' + inside + b"]," + body[1:]
    return PreparedRequest(
        body=body,
        output_tokens=request.output_tokens if workload.ignore_eos and target.stream else 0,
        due_s=request.due_s,
        think_s=request.think_s,
        messages_at=messages_at,
        first=request.follows is None,
    )


def request_text(target: Target, workload: Workload, request: Request, prompt: Prompt) -> str:
    """Request as it would leave, for people: without its key, and cut to a screen."""
    keyless = msgspec.structs.replace(target, api_key_env=None, user_headers=())
    head = head_of(keyless, workload).decode("latin-1").replace("\r\n", "\n")
    if target.api_key_env:
        head += f"Authorization: Bearer ${target.api_key_env}\n"
    head += "".join(f"{name}: {value}\n" for name, value in target.user_headers)
    body = prepared_request(target, workload, request, prompt).body.decode("utf-8", "replace")
    body = redacted_text(body)
    if len(body) > SHOWN_CHARACTERS:
        half = SHOWN_CHARACTERS // 2
        body = f"{body[:half]} … {body[-half:]}"
    return f"{head}\n{body}"


def _openai_sampling(target: Target, workload: Workload, request: Request) -> Members:
    members: Members = {
        "max_tokens": request.output_tokens,
        "temperature": target.temperature,
        "stream": target.stream,
    }
    if target.stream:
        members["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    if workload.ignore_eos:
        members["ignore_eos"] = True
    if target.send_min_tokens:
        members["min_tokens"] = request.output_tokens
    return members


def _ids(prompt: Prompt) -> msgspec.Raw:
    return msgspec.Raw(prompt.ids_json())


def _text(prompt: Prompt) -> str:
    if prompt.text is None:
        raise InputError(
            "this route takes text, and the prompts are token ids or messages",
            hint="use the completions or chat route, or prompts made by text_prompts",
        )
    return prompt.text


def _messages(prompt: Prompt) -> Any:
    if prompt.messages is not None:
        return list(prompt.messages)
    if prompt.text is None:
        raise InputError(
            "the chat route takes text, and the prompts are token ids",
            hint="use the completions route, or prompts made by text_prompts",
        )
    return [{"role": "user", "content": prompt.text}]
