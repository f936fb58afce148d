/* One connection with its answer, and how connections wait: a binary heap for those whose next
   tokens have a time, a ring for those that are written to all the time. */
#pragma once

#include "says.h"

/* An event that is not on its way yet: where it ends, in the text and then on the wire. */
struct mark {
    uint64_t text_end, wire_end;
    int tokens;
};

struct stream {
    int fd;
    unsigned serial;
    struct bytes in;   /* what came and is not understood yet */
    struct bytes text; /* events before HTTP frames them */
    struct bytes out;  /* framed, not taken by the kernel yet */
    uint64_t text_from, wire_from; /* how much went before what text and out hold */
    struct mark *marks;
    int marks_from, marks_to, marks_room;
    int64_t *stamps;
    int stamps_room;
    struct question asked;
    int made, stamped;
    int64_t arrived_ns, asked_ns, due_ns;
    bool answering, blocked, closes;
    int in_heap;                 /* its place + 1, 0 for none */
    struct stream *next, *before; /* of those that are written to all the time */
};

static struct stream **heap;
static int heap_count, heap_room;
static struct stream ring = {.next = &ring, .before = &ring};

static void heap_put(int place, struct stream *s) {
    heap[place] = s;
    s->in_heap = place + 1;
}

static void heap_sink(int place, struct stream *s) {
    for (int child; (child = 2 * place + 1) < heap_count; place = child) {
        if (child + 1 < heap_count && heap[child + 1]->due_ns < heap[child]->due_ns) child++;
        if (heap[child]->due_ns >= s->due_ns) break;
        heap_put(place, heap[child]);
    }
    heap_put(place, s);
}

static void heap_rise(int place, struct stream *s) {
    for (int parent; place && heap[parent = (place - 1) / 2]->due_ns > s->due_ns; place = parent)
        heap_put(place, heap[parent]);
    heap_put(place, s);
}

static void heap_add(struct stream *s) {
    if (heap_count == heap_room) {
        heap_room = heap_room ? 2 * heap_room : 1024;
        heap = realloc(heap, sizeof *heap * heap_room);
        if (!heap) abort();
    }
    heap_rise(heap_count++, s);
}

static void heap_remove(struct stream *s) {
    int place = s->in_heap - 1;
    s->in_heap = 0;
    struct stream *last = heap[--heap_count];
    if (last == s) return;
    heap_sink(place, last);
    heap_rise(last->in_heap - 1, last);
}

static void ring_add(struct stream *s) {
    s->next = &ring;
    s->before = ring.before;
    ring.before = s->before->next = s;
}

static void ring_remove(struct stream *s) {
    s->before->next = s->next;
    s->next->before = s->before;
    s->next = s->before = NULL;
}
