/* When each token really left, as a binary file in the machine's order of bytes.

   Per request: int64 tokens, int64 connection, int64 arrived_ns, int64 asked_ns, then one int64
   per token. arrived_ns is when the kernel had its last byte, asked_ns when the server had
   read it; a token's time is taken just before the send that hands its event's last byte to the
   kernel. All are CLOCK_MONOTONIC. Nothing is written while there is work: only when the server has been idle
   for a while, and at its end. A request whose connection was lost before its end has none. */
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include "stream.h"

#define TRUTH_ROOM ((size_t)16 << 30) /* of address space, not of memory */

static char *truth;
static size_t truth_from, truth_to;
static int truth_fd = -1;

static void truth_keep(struct stream *s) {
    if (truth_fd < 0) return;
    int64_t head[4] = {s->asked.tokens, s->serial, s->arrived_ns, s->asked_ns};
    memcpy(truth + truth_to, head, sizeof head);
    truth_to += sizeof head;
    memcpy(truth + truth_to, s->stamps, sizeof *s->stamps * s->asked.tokens);
    truth_to += sizeof *s->stamps * s->asked.tokens;
}

static void truth_write(void) {
    while (truth_fd >= 0 && truth_from < truth_to) {
        ssize_t written = write(truth_fd, truth + truth_from, truth_to - truth_from);
        if (written <= 0) {
            perror("truth");
            exit(1);
        }
        truth_from += written;
    }
}

static void truth_open(const char *path) {
    if (!path) return;
    FILE *file = fopen(path, "w");
    truth = mmap(NULL, TRUTH_ROOM, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!file || truth == MAP_FAILED) {
        perror(path);
        exit(2);
    }
    truth_fd = fileno(file);
}
