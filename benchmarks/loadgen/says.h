/* What the server says: one event of a stream at a time, as an OpenAI-like server writes it.

   Text is joined from pieces that are known beforehand, so that an event costs a few hundred
   bytes of copying, which is little beside the system call that sends it. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "bytes.h"

enum usage { USAGE_NONE, USAGE_END, USAGE_EVERY, USAGE_ASKED };

struct shape {
    const char *model;
    int tokens_per_chunk;
    bool crlf, comments, final_newline, tricky, tools;
    const char *reasoning; /* the member that carries it, or NULL */
    const char *role;      /* NULL, "first" or "early" */
    enum usage usage;
    int prompt_tokens; /* 0: as the body suggests */
};

/* What one request asked for. */
struct question {
    bool chat, stream, usage_at_end, usage_on_every;
    int tokens, prompt_tokens;
    unsigned number;
};

static const char *const PLAIN_WORDS[] = {
    " the",  " time", " has", " come",    " to", " talk", " of", " many",
    " things", " and", " why", " the", " sea", " is",   " so", " hot",
};

/* Words that a reader of bytes may take for something else. */
static const char *const TRICKY_WORDS[] = {
    "\\n\\ndata: [DONE]\\n\\n",
    " \\\"completion_tokens\\\":9,",
    " \\\"content\\\":\\\"\\\"",
    "\\\\",
    " \xe6\x9d\xb1\xe4\xba\xac",
    "\\ud83d\\ude00",
    "}]}",
    "\\r\\n: ping\\r\\n",
    " \\\"finish_reason\\\":\\\"stop\\\"",
    "\xc2\x85",
    "\xe2\x80\xa8",
    " null",
    "[]",
};

static inline const char *line_end(const struct shape *shape) {
    return shape->crlf ? "\r\n" : "\n";
}

static inline void say_words(struct bytes *out, const struct shape *shape, int first, int count) {
    const char *const *words = shape->tricky ? TRICKY_WORDS : PLAIN_WORDS;
    size_t known = shape->tricky ? sizeof TRICKY_WORDS / sizeof *words
                                 : sizeof PLAIN_WORDS / sizeof *words;
    for (int i = first; i < first + count; i++) bytes_say(out, words[(size_t)i % known]);
}

static inline void say_usage(struct bytes *out, const struct question *asked, int so_far) {
    bytes_say(out, ",\"usage\":{\"prompt_tokens\":");
    bytes_number(out, asked->prompt_tokens, 10);
    bytes_say(out, ",\"total_tokens\":");
    bytes_number(out, asked->prompt_tokens + so_far, 10);
    bytes_say(out, ",\"completion_tokens\":");
    bytes_number(out, so_far, 10);
    bytes_say(out, "}");
}

static inline void say_start(struct bytes *out, const struct shape *shape,
                             const struct question *asked, const char *what) {
    bytes_say(out, "{\"id\":\"");
    bytes_say(out, asked->chat ? "chatcmpl-" : "cmpl-");
    bytes_number(out, asked->number, 10);
    bytes_say(out, "\",\"object\":\"");
    bytes_say(out, what);
    bytes_say(out, "\",\"created\":1790000000,\"model\":\"");
    bytes_say(out, shape->model);
    bytes_say(out, "\",\"choices\":[");
}

static inline const char *chunk_name(const struct question *asked) {
    return asked->chat ? "chat.completion.chunk" : "text_completion";
}

static inline void open_event(struct bytes *out, const struct shape *shape) {
    if (shape->comments) {
        bytes_say(out, ": ping");
        bytes_say(out, line_end(shape));
        bytes_say(out, line_end(shape));
    }
    bytes_say(out, "data: ");
}

static inline void close_event(struct bytes *out, const struct shape *shape) {
    bytes_say(out, line_end(shape));
    bytes_say(out, line_end(shape));
}

/* Content of a chat chunk: reasoning in the first half, tool calls in the last, as asked. */
static inline void say_delta(struct bytes *out, const struct shape *shape,
                             const struct question *asked, int first, int count) {
    int half = asked->tokens / 2;
    if (shape->reasoning && first < half) {
        bytes_say(out, "\"");
        bytes_say(out, shape->reasoning);
        bytes_say(out, "\":\"");
        say_words(out, shape, first, count);
        bytes_say(out, "\"");
    } else if (shape->tools && first >= half) {
        bool opens = first - count < half;
        bytes_say(out, "\"tool_calls\":[{\"index\":0,");
        if (opens) bytes_say(out, "\"id\":\"call_1\",\"type\":\"function\",");
        bytes_say(out, "\"function\":{");
        if (opens) bytes_say(out, "\"name\":\"look_up\",");
        bytes_say(out, "\"arguments\":\"");
        say_words(out, shape, first, count);
        bytes_say(out, "\"}}]");
    } else {
        bytes_say(out, "\"content\":\"");
        say_words(out, shape, first, count);
        bytes_say(out, "\"");
    }
}

/* One event with the next tokens; the last carries the reason why it is the last. */
static inline void say_tokens(struct bytes *out, const struct shape *shape,
                              const struct question *asked, int first, int count) {
    bool last = first + count == asked->tokens;
    open_event(out, shape);
    say_start(out, shape, asked, chunk_name(asked));
    if (asked->chat) {
        bytes_say(out, "{\"index\":0,\"delta\":{");
        say_delta(out, shape, asked, first, count);
        bytes_say(out, "},\"logprobs\":null,\"finish_reason\":");
    } else {
        bytes_say(out, "{\"index\":0,\"text\":\"");
        say_words(out, shape, first, count);
        bytes_say(out, "\",\"logprobs\":null,\"finish_reason\":");
    }
    bool calls = shape->tools && asked->chat;
    bytes_say(out, !last ? "null" : calls ? "\"tool_calls\"" : "\"length\"");
    bytes_say(out, "}]");
    if (asked->usage_on_every) say_usage(out, asked, first + count);
    bytes_say(out, "}");
    close_event(out, shape);
}

/* The chunk before all others, which names the role and carries nothing. */
static inline void say_role(struct bytes *out, const struct shape *shape,
                            const struct question *asked) {
    open_event(out, shape);
    say_start(out, shape, asked, chunk_name(asked));
    bytes_say(out, "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                   "\"logprobs\":null,\"finish_reason\":null}]}");
    close_event(out, shape);
}

static inline void say_end(struct bytes *out, const struct shape *shape,
                           const struct question *asked) {
    if (asked->usage_at_end) {
        open_event(out, shape);
        say_start(out, shape, asked, chunk_name(asked));
        bytes_say(out, "]");
        say_usage(out, asked, asked->tokens);
        bytes_say(out, "}");
        close_event(out, shape);
    }
    open_event(out, shape);
    bytes_say(out, "[DONE]");
    if (shape->final_newline) close_event(out, shape);
}

/* An answer that is not streamed. */
static inline void say_whole(struct bytes *out, const struct shape *shape,
                             const struct question *asked) {
    say_start(out, shape, asked, asked->chat ? "chat.completion" : "text_completion");
    bytes_say(out, asked->chat
                       ? "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\""
                       : "{\"index\":0,\"text\":\"");
    say_words(out, shape, 0, asked->tokens);
    bytes_say(out, asked->chat ? "\"}" : "\"");
    bytes_say(out, ",\"logprobs\":null,\"finish_reason\":\"length\"}]");
    say_usage(out, asked, asked->tokens);
    bytes_say(out, "}");
}
