"""Forms of requests and answers besides OpenAI's, and documents, under an engine's own routes.

Which route has which form an engine's folder says (`NativeRoutes`). Refusals have the statuses
and the words of the projects that the forms come from (text-generation-inference 3.3, SGLang 0.5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from servetune.engines import engine, settings_of
from servetune.json_value import JsonObject
from servetune.simserver.requests import (
    CompletionRequest,
    RequestRefused,
    ServedModel,
    cached_content,
    ended_at_stop,
    parse_completion_request,
)
from servetune.simserver.responses import ResponseStream
from servetune.simserver.service import Service


class Form(NamedTuple):
    """Form of a route's requests and answers.

    Attributes:
        parse: Reader of a request's body; it raises `RequestRefused`.
        answer: Writer of the answer.
        error_body: Body of an error.
    """

    parse: Callable[[bytes, ServedModel], CompletionRequest]
    answer: type[ResponseStream]
    error_body: Callable[[RequestRefused], bytes]


# one event per token


class _Parameters(msgspec.Struct):
    max_new_tokens: int | None = None
    stop: list[str] | None = None
    details: bool | None = False
    best_of: int | None = None
    top_n_tokens: int | None = None
    decoder_input_details: bool | None = False


class _ParametersBody(msgspec.Struct):
    inputs: str
    parameters: _Parameters | None = None
    stream: bool | None = False


_decode_parameters = msgspec.json.Decoder(_ParametersBody).decode


def _parse_parameters(
    raw: bytes, serving: ServedModel, streamed: bool | None = None
) -> CompletionRequest:
    """The request in a body; `streamed` where the route and not the body says it."""
    try:
        body = _decode_parameters(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RequestRefused(422, f"Failed to deserialize the JSON body: {error}") from error
    asked = body.parameters or _Parameters()
    if (asked.best_of or 1) != 1 or asked.top_n_tokens or asked.decoder_input_details:
        raise _invalid("best_of, top_n_tokens and decoder_input_details are not simulated")
    if not body.inputs:
        raise _invalid("`inputs` cannot be empty")
    limit, longest = asked.max_new_tokens, serving.max_model_len
    if limit is not None and limit < 1:
        raise _invalid("`max_new_tokens` must be strictly positive")
    prompt_tokens = serving.vocabulary.count(body.inputs)
    if prompt_tokens >= longest:
        raise _invalid(f"`inputs` must have less than {longest} tokens. Given: {prompt_tokens}")
    if limit is not None and prompt_tokens + limit > longest:
        raise _invalid(
            f"`inputs` tokens + `max_new_tokens` must be <= {longest}. Given: {prompt_tokens} "
            f"`inputs` tokens and {limit} `max_new_tokens`"
        )
    return _request(
        serving,
        body.inputs,
        prompt_tokens,
        limit,
        stop=asked.stop or (),
        streamed=bool(body.stream) if streamed is None else streamed,
        details=bool(asked.details),
    )


def _invalid(message: str) -> RequestRefused:
    return RequestRefused(422, f"Input validation error: {message}", kind="validation")


class _TokenEvents(ResponseStream):
    """One event per token; the last one has the whole text and, where asked for, details."""

    __slots__ = ()

    def _add_tokens(self, sent: int, count: int) -> None:
        request = self._request
        for number in range(sent, sent + count):
            end = b'"generated_text":null,"details":null'
            if number + 1 == request.output_tokens:
                text = msgspec.json.encode(request.text())
                end = b'"generated_text":%b,"details":%b' % (text, self._details())
            self._parts.append(
                b'data: {"index":%d,"token":%b,%b}\n\n' % (number + 1, self._token(number), end)
            )

    def _add_end(self) -> None:
        pass

    def _token(self, number: int) -> bytes:
        request = self._request
        place = (request.first + number) % len(request.pieces)
        text = request.piece(number)
        return b'{"id":%d,"text":"%b","logprob":null,"special":false}' % (place, text)

    def _details(self, *more: bytes) -> bytes:
        request = self._request
        if not request.usage_at_end:
            return b"null"
        ended = {"length": "length", "stop": "stop_sequence" if request.at_stop else "eos_token"}
        members = (
            b'"finish_reason":"%b"' % ended[request.finish_reason].encode(),
            b'"generated_tokens":%d,"seed":null' % request.output_tokens,
            *(more or (b'"input_length":%d' % request.prompt_tokens,)),
        )
        return b"{%b}" % b",".join(members)

    def _whole(self) -> bytes:
        request = self._request
        tokens = b",".join(map(self._token, range(request.output_tokens)))
        details = self._details(b'"prefill":[],"tokens":[%b]' % tokens)
        text = msgspec.json.encode(request.text())
        more = b',"details":%b' % details if request.usage_at_end else b""
        return b'{"generated_text":%b%b}' % (text, more)


def _plain_error(refused: RequestRefused) -> bytes:
    kind = refused.kind if refused.status in {422, 429} else "generation"
    return msgspec.json.encode({"error": refused.message, "error_type": kind})


# events with all the text so far


class _Sampling(msgspec.Struct):
    max_new_tokens: int | None = 128
    min_new_tokens: int | None = 0
    stop: str | list[str] | None = None
    n: int | None = 1


class _SamplingBody(msgspec.Struct):
    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: _Sampling | None = None
    stream: bool | None = False
    return_logprob: bool | None = False


_decode_sampling = msgspec.json.Decoder(_SamplingBody).decode


def _parse_sampling(raw: bytes, serving: ServedModel) -> CompletionRequest:
    try:
        body = _decode_sampling(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RequestRefused(422, f"The request cannot be read: {error}") from error
    asked = body.sampling_params or _Sampling()
    prompt = body.input_ids if body.text is None else body.text
    if not prompt:
        raise RequestRefused(400, "Either text, input_ids or input_embeds should be provided.")
    if (asked.n or 1) != 1 or body.return_logprob:
        raise RequestRefused(400, "n and return_logprob are not simulated")
    words, longest = serving.vocabulary, serving.max_model_len
    prompt_tokens = words.count(prompt) if isinstance(prompt, str) else len(prompt)
    if prompt_tokens >= longest:
        raise RequestRefused(
            400,
            f"The input ({prompt_tokens} tokens) is longer than the model's context length "
            f"({longest} tokens).",
        )
    limit = asked.max_new_tokens
    if limit is not None and limit < 1:
        raise RequestRefused(400, f"max_new_tokens must be at least 1, got {limit}.")
    if limit is not None and prompt_tokens + limit > longest:
        raise RequestRefused(
            400,
            f"Requested token count exceeds the model's maximum context length of {longest} "
            f"tokens. You requested a total of {prompt_tokens + limit} tokens: {prompt_tokens} "
            f"tokens from the input messages and {limit} tokens for the completion.",
        )
    return _request(
        serving,
        prompt,
        prompt_tokens,
        limit,
        stop=[asked.stop] if isinstance(asked.stop, str) else asked.stop or (),
        least=asked.min_new_tokens or 0,
        streamed=bool(body.stream),
        details=True,
    )


class _GrownTexts(ResponseStream):
    """An event per step, with all the text so far and its token count."""

    __slots__ = ("_text",)
    _text: bytes

    def _add_tokens(self, sent: int, count: int) -> None:
        before = self._text if sent else b""
        self._text = before + b"".join(map(self._request.piece, range(sent, sent + count)))
        self._parts.append(b"data: %b\n\n" % self._so_far(self._text, sent + count))

    def _add_end(self) -> None:
        self._parts.append(b"data: [DONE]\n\n")

    def _whole(self) -> bytes:
        request = self._request
        return self._so_far(request.text().encode(), request.output_tokens)

    def _so_far(self, text: bytes, tokens: int) -> bytes:
        request = self._request
        reason: JsonObject | None = None
        if tokens == request.output_tokens:
            reason = {"type": request.finish_reason}
            reason |= {"length": tokens} if request.finish_reason == "length" else {}
        meta = {
            "id": self._id,
            "finish_reason": reason,
            "prompt_tokens": request.prompt_tokens,
            "completion_tokens": tokens,
        }
        return b'{"text":"%b","meta_info":%b}' % (text, msgspec.json.encode(meta))


def _message_error(refused: RequestRefused) -> bytes:
    return msgspec.json.encode({"error": {"message": refused.message}})


def _request(
    serving: ServedModel,
    prompt: str | list[int],
    prompt_tokens: int,
    limit: int | None,
    *,
    stop: Sequence[str],
    least: int = 0,
    streamed: bool,
    details: bool,
) -> CompletionRequest:
    """A request whose answer has `limit` tokens, or the usual length where nothing limits it."""
    left = serving.max_model_len - prompt_tokens
    usual = max(serving.answer_tokens, least)
    ends = limit is None and usual <= left
    request = CompletionRequest(
        chat=False,
        model=serving.names[0],
        prompt_tokens=prompt_tokens,
        output_tokens=usual if ends else limit or left,
        max_tokens=limit or left,
        pieces=serving.vocabulary.encoded_pieces,
        first=serving.vocabulary.first_piece(prompt),
        finish_reason="stop" if ends else "length",
        content=cached_content(prompt, serving, prompt_tokens),
        streamed=streamed,
        usage_at_end=details,
        usage_always=False,
    )
    return ended_at_stop(request, [each for each in stop if each], least)


#: Forms by the names that engines' folders have for them, and those of OpenAI's routes.
FORMS: Mapping[str, Form] = MappingProxyType(
    {
        "completions": Form(
            lambda raw, serving: parse_completion_request(raw, serving, chat=False),
            ResponseStream,
            RequestRefused.body,
        ),
        "chat": Form(
            lambda raw, serving: parse_completion_request(raw, serving, chat=True),
            ResponseStream,
            RequestRefused.body,
        ),
        "token_events": Form(
            lambda raw, serving: _parse_parameters(raw, serving, streamed=True),
            _TokenEvents,
            _plain_error,
        ),
        "token_events_whole": Form(
            lambda raw, serving: _parse_parameters(raw, serving, streamed=False),
            _TokenEvents,
            _plain_error,
        ),
        "token_events_by_body": Form(_parse_parameters, _TokenEvents, _plain_error),
        "grown_texts": Form(_parse_sampling, _GrownTexts, _message_error),
    }
)


def document(service: Service, members: Mapping[str, str], version: str) -> JsonObject:
    """A document that the engine's servers show, by the facts and settings that it names.

    Settings that the plan leaves to the engine are left out.
    """
    serving, config, plan = service.serving, service.config, service.plan
    fields = engine(plan.engine).words.fields
    facts: JsonObject = {
        **{name: getattr(plan, field) for name, field in fields.items()},
        **dict(plan.extra),
        "model": serving.root,
        "served_model": serving.names[0],
        "max_model_len": serving.max_model_len,
        "longest_prompt_tokens": serving.max_model_len - 1,
        "cache_tokens": config.capacity_blocks * config.block_tokens,
        "server": "servetune-simulated",
        "version": version,
        "simulated": True,
        "true": True,
    }
    found = {name: facts[fact] for name, fact in members.items() if facts.get(fact) is not None}
    if "*" not in members.values():
        return found
    return settings_of(msgspec.structs.replace(plan, prefill_replicas=None)) | found
