/* A growing run of bytes, read at one end and written at the other. */
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct bytes {
    char *at;
    size_t from, to, room;
};

static inline size_t bytes_left(const struct bytes *b) { return b->to - b->from; }

static inline void bytes_clear(struct bytes *b) { b->from = b->to = 0; }

static inline void bytes_free(struct bytes *b) {
    free(b->at);
    memset(b, 0, sizeof *b);
}

/* Room for so many more bytes, at the address returned. */
static inline char *bytes_room(struct bytes *b, size_t more) {
    if (b->from == b->to) bytes_clear(b);
    if (b->room - b->to >= more) return b->at + b->to;
    if (b->from) {
        memmove(b->at, b->at + b->from, b->to - b->from);
        b->to -= b->from;
        b->from = 0;
    }
    while (b->room - b->to < more) {
        b->room = b->room ? 2 * b->room : 2048;
        b->at = realloc(b->at, b->room);
        if (!b->at) abort();
    }
    return b->at + b->to;
}

static inline void bytes_add(struct bytes *b, const char *what, size_t length) {
    memcpy(bytes_room(b, length), what, length);
    b->to += length;
}

static inline void bytes_say(struct bytes *b, const char *words) {
    bytes_add(b, words, strlen(words));
}

/* A number in base 10 or 16; printf would cost more than the rest of a token. */
static inline void bytes_number(struct bytes *b, uint64_t number, unsigned base) {
    char digits[24];
    int first = sizeof digits;
    do {
        digits[--first] = "0123456789abcdef"[number % base];
        number /= base;
    } while (number);
    bytes_add(b, digits + first, sizeof digits - first);
}
