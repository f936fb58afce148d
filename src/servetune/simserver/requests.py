"""Requests of OpenAI's completions and chat routes, as far as time depends on them.

Members that change what a model would say and not when (temperature, tools, a grammar) are
read over. What would change the number of answers or of tokens and is not simulated is
refused: a silent difference would be measured as if it were the engine's.

Refusals have the default engine's statuses and types (`entrypoints/openai`, November 2026).
"""

from __future__ import annotations

import msgspec

from servetune.json_value import JsonObject
from servetune.simserver.vocabulary import MESSAGE_TOKENS, OPENING_TOKENS, Vocabulary
from servetune.workload.request import Piece

DEFAULT_COMPLETION_TOKENS = 16
"""Answer length of the completions route without `max_tokens`: OpenAI's default."""


class RequestRefused(Exception):
    """A request that is answered with an error."""

    def __init__(
        self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """Body of the error, as a real server has it."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status,
        }
        return msgspec.json.encode({"error": error})


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """Served model that requests are checked against.

    Attributes:
        names: Names by which the model may be requested; answers carry the first.
        root: The model as it was given on the command line.
        answer_tokens: Length of a chat answer that nothing limits: a real model would end it.
        cached_block_tokens: Block size of the prefix cache; `None` without one.
        any_model: Whether requests for a model of any name are answered.
    """

    names: tuple[str, ...]
    root: str
    max_model_len: int
    vocabulary: Vocabulary
    answer_tokens: int = 256
    cached_block_tokens: int | None = None
    any_model: bool = False


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, and the answer that it will get when its tokens have come.

    Attributes:
        pieces: Encoded text of the tokens; token i of the answer is piece `first + i`, round
            and round.
        content: Content of the prompt, for the prefix cache.
        priority: Smaller is served first by an engine that schedules by priority.
        max_tokens: Largest answer that the client allows; the context if it states none.
        finish_reason: `length`, or `stop` where the answer ends by itself.
        usage_at_end: Whether the end of the answer tells the counts.
        usage_always: Whether every chunk does.
        at_stop: Whether a stop string ended it.
    """

    chat: bool
    model: str
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    pieces: tuple[bytes, ...]
    first: int
    finish_reason: str
    streamed: bool
    content: tuple[Piece, ...] = ()
    priority: int = 0
    usage_at_end: bool
    usage_always: bool
    at_stop: bool = False

    def piece(self, number: int) -> bytes:
        """Text of one token, ready to stand in JSON."""
        return self.pieces[(self.first + number) % len(self.pieces)]

    def text(self, tokens: int | None = None) -> str:
        count = self.output_tokens if tokens is None else tokens
        return b"".join(self.piece(i) for i in range(count)).decode()


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _Message(msgspec.Struct):
    role: str
    content: str | list[JsonObject] | None = None


class _Body(msgspec.Struct):
    """Members of both routes."""

    model: str | None = None
    prompt: str | list[int | str | list[int]] | None = None
    messages: list[_Message] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = 0
    ignore_eos: bool | None = False
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    n: int | None = 1
    best_of: int | None = None
    echo: bool | None = False
    logprobs: bool | int | None = None
    prompt_logprobs: int | None = None
    use_beam_search: bool | None = False
    add_generation_prompt: bool | None = True
    priority: int | None = 0

    @property
    def reads_text(self) -> bool:
        """Whether a tokenizer must read the prompt."""
        prompt = self.prompt[0] if isinstance(self.prompt, list) and self.prompt else self.prompt
        return self.messages is not None or isinstance(prompt, str)


_decode = msgspec.json.Decoder(_Body).decode


def parse_completion_request(raw: bytes, serving: ServedModel, *, chat: bool) -> CompletionRequest:
    """The request in a body.

    Raises:
        RequestRefused: It cannot be served.
    """
    body = _decoded(raw)
    model = _model(body, serving)
    _require_simulated(body)
    prompt_tokens, seed = _prompt(body, serving.vocabulary, chat=chat)
    output_tokens, most, finish_reason = _answer_tokens(body, prompt_tokens, serving, chat=chat)
    words = serving.vocabulary
    options = body.stream_options or _StreamOptions()
    if body.stream_options is not None and not body.stream:
        raise RequestRefused(400, "Stream options can only be defined when `stream=True`.")
    request = CompletionRequest(
        chat=chat,
        model=model,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        max_tokens=most,
        pieces=words.encoded_pieces,
        first=words.first_piece(seed),
        finish_reason=finish_reason,
        streamed=bool(body.stream),
        content=cached_content(seed, serving, prompt_tokens),
        priority=body.priority or 0,
        usage_at_end=bool(options.include_usage),
        usage_always=bool(options.include_usage and options.continuous_usage_stats),
    )
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return ended_at_stop(request, [stop for stop in stops if stop], body.min_tokens or 0)


def tokenized(raw: bytes, serving: ServedModel) -> JsonObject:
    """The answer of `/tokenize`.

    Raises:
        RequestRefused: It cannot be served.
    """
    body = _decoded(raw)
    _model(body, serving)
    vocabulary = serving.vocabulary
    if body.messages is not None:
        ids = [i for text in _texts(body.messages) for i in vocabulary.ids(text)]
        opening = OPENING_TOKENS if body.add_generation_prompt else 0
        around = MESSAGE_TOKENS * len(body.messages) + opening
        ids = [0] * around + ids
    elif isinstance(body.prompt, str):
        ids = vocabulary.ids(body.prompt)
    else:
        raise RequestRefused(400, "prompt must be a string, or messages a list", param="prompt")
    return {"count": len(ids), "max_model_len": serving.max_model_len, "tokens": ids}


def _decoded(raw: bytes) -> _Body:
    try:
        return _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RequestRefused(400, f"The request cannot be read: {error}") from error


def _model(body: _Body, serving: ServedModel) -> str:
    if not body.model or serving.any_model:
        return serving.names[0]
    if body.model not in serving.names:
        raise RequestRefused(
            404,
            f"The model `{body.model}` does not exist. Valid aliases: {', '.join(serving.names)}.",
            kind="NotFoundError",
            param="model",
        )
    return body.model


def _require_simulated(body: _Body) -> None:
    """Refuse what would change how much is computed and is not simulated."""
    unsupported = {
        "n": (body.n or 1) != 1,
        "best_of": (body.best_of or 1) != 1,
        "use_beam_search": bool(body.use_beam_search),
        "echo": bool(body.echo),
        "logprobs": bool(body.logprobs),
        "prompt_logprobs": body.prompt_logprobs is not None,
    }
    for name, given in unsupported.items():
        if given:
            raise RequestRefused(
                400, f"{name} is not simulated: leave it out, or ask a real engine", param=name
            )


def _prompt(body: _Body, vocabulary: Vocabulary, *, chat: bool) -> tuple[int, str | list[int]]:
    """Length of the prompt in tokens, and the seed of the answer's words."""
    if chat:
        if not body.messages:
            raise RequestRefused(400, "messages must be a list of at least one", param="messages")
        texts = _texts(body.messages)
        around = MESSAGE_TOKENS * len(texts) + OPENING_TOKENS
        return around + sum(vocabulary.count(text) for text in texts), "\n".join(texts)
    prompt = body.prompt
    if prompt is None or prompt == "":
        raise RequestRefused(
            400,
            "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
            param="prompt",
        )
    if not prompt:
        raise RequestRefused(400, "You must pass at least one prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]  # type: ignore[assignment]  # a batch of one
    seed: str | list[int]
    if isinstance(prompt, str):
        count, seed = vocabulary.count(prompt), prompt
    elif all(isinstance(token, int) for token in prompt):
        count, seed = len(prompt), [token for token in prompt if isinstance(token, int)]
    else:
        raise RequestRefused(
            400, "several prompts in one request are not simulated: send them apart", param="prompt"
        )
    if count == 0:
        raise RequestRefused(400, "The decoder prompt cannot be empty", param="prompt")
    return count, seed


def cached_content(
    prompt: str | list[int], serving: ServedModel, prompt_tokens: int
) -> tuple[Piece, ...]:
    """Content that a prompt begins with, up to its number of tokens."""
    if serving.cached_block_tokens is None:
        return ()
    kept: list[Piece] = []
    left = prompt_tokens
    for content_id, tokens in serving.vocabulary.content(prompt, serving.cached_block_tokens):
        if left <= 0:
            break
        kept.append((content_id, min(tokens, left)))
        left -= tokens
    return tuple(kept)


def _invalid(message: str, param: str, value: int) -> RequestRefused:
    """A refusal as a real server's validation error reads."""
    return RequestRefused(400, f"{message} (parameter={param}, value={value})", param=param)


def _texts(messages: list[_Message]) -> list[str]:
    texts = []
    for message in messages:
        content = message.content
        if isinstance(content, list):
            if any(part.get("type", "text") != "text" for part in content):
                raise RequestRefused(400, "only text parts are simulated", param="messages")
            content = "".join(str(part.get("text", "")) for part in content)
        texts.append(content or "")
    return texts


def _answer_tokens(
    body: _Body, prompt_tokens: int, serving: ServedModel, *, chat: bool
) -> tuple[int, int, str]:
    """Tokens of the answer, the most that it might have, and the reason of its end."""
    limit, name, longest = body.max_tokens, "max_tokens", serving.max_model_len
    if chat and body.max_completion_tokens is not None:
        limit, name = body.max_completion_tokens, "max_completion_tokens"
    if limit is not None and limit > longest:
        raise _invalid(
            f"{name}={limit} cannot be greater than max_model_len={longest}. "
            "Please request fewer output tokens.",
            name,
            limit,
        )
    if prompt_tokens > longest:
        # A real server stops reading a text at the first token too many, and knows no more of it.
        some = "at least " if body.reads_text or prompt_tokens == longest + 1 else ""
        stated = longest + 1 if some else prompt_tokens
        raise _invalid(
            f"This model's maximum context length is {longest} tokens. However, your prompt "
            f"contains {some}{stated} input tokens, which exceeds this limit even without any "
            "output tokens. Please reduce the length of the input prompt.",
            "input_tokens",
            stated,
        )
    if limit is None and not chat:
        limit = DEFAULT_COMPLETION_TOKENS
    most_left = longest - prompt_tokens
    most = most_left if limit is None else min(limit, most_left)  # as a real server does, silently
    if most < 1:
        raise _invalid(f"max_tokens must be at least 1, got {most}.", "max_tokens", most)
    least = body.min_tokens or 0
    if least < 0:
        raise RequestRefused(400, f"min_tokens must be greater than or equal to 0, got {least}.")
    if least > most:
        raise RequestRefused(
            400, f"min_tokens must be less than or equal to max_tokens={most}, got {least}."
        )
    if limit is not None or body.ignore_eos:
        return most, most, "length"
    usual = max(serving.answer_tokens, least)
    return (usual, most_left, "stop") if usual <= most_left else (most_left, most_left, "length")


def ended_at_stop(
    request: CompletionRequest, stops: list[str], min_tokens: int
) -> CompletionRequest:
    """The answer up to the first stop string that its words hold, if they hold one."""
    if not stops:
        return request
    text, kept = request.text(), len(request.text(min_tokens))
    places = [place for stop in stops if (place := text.find(stop, kept)) >= 0]
    if not places:
        return request
    place = min(places)
    stop_length = min(len(stop) for stop in stops if text.startswith(stop, place))
    tokens, length = 0, 0
    pieces: list[bytes] = []
    while length < place + stop_length:  # the tokens that the stop string took were computed
        piece = request.piece(tokens)
        pieces.append(piece[: max(0, place - length)])
        length += len(piece)
        tokens += 1
    return msgspec.structs.replace(
        request,
        output_tokens=tokens,
        pieces=tuple(pieces),
        first=0,
        finish_reason="stop",
        at_stop=True,
    )
