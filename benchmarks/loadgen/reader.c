/* The leanest client: closed loop over keep-alive connections, one thread, one epoll.

   What it reports is what a client can know at best on this machine: the clock is read once
   after each read, before the bytes are looked at; then HTTP chunks and lines are cut, and an
   event counts as content by the member that it has. It does not decode JSON. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bytes.h"

enum phase { HEAD, SIZE, DATA, DATA_END, TRAILER, TO_CLOSE };

struct reader {
    int fd;
    enum phase phase;
    uint64_t chunk_left;
    struct bytes kept; /* a line that is not whole yet */
    int64_t sent_ns, last_ns;
    int events, usage_tokens;
    bool busy, chunked, done, failed;
};

static int port = 8000, concurrency = 64, requests = 640, output_tokens = 256, input_tokens = 32;
static bool completions;
static int epoll_fd, begun, ended, failed;
static uint64_t all_tokens, all_events;
static int64_t first_sent_ns;
static struct bytes question, ttft_ns, gaps_ns; /* both of int64_t */
static char buffer[1 << 18];

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void keep(struct bytes *times, int64_t ns) { bytes_add(times, (char *)&ns, sizeof ns); }

/* ---- what an event says */

static const char *const CONTENT[] = {
    "\"delta\":{\"content\":\"", "\"index\":0,\"text\":\"", "\"delta\":{\"reasoning",
    "\"delta\":{\"tool_calls\"",
};

static bool is_content(const char *line, size_t length) {
    static size_t likely;
    for (size_t i = 0; i < 4; i++) {
        size_t which = (likely + i) % 4, size = strlen(CONTENT[which]);
        if (memmem(line, length, CONTENT[which], size)) {
            likely = which;
            return true;
        }
    }
    return false;
}

static void take_usage(struct reader *r, const char *line, size_t length) {
    static const char NAME[] = "\"completion_tokens\":";
    const char *at = memmem(line, length, NAME, sizeof NAME - 1);
    if (at) r->usage_tokens = atoi(at + sizeof NAME - 1);
}

static void take_line(struct reader *r, const char *line, size_t length, int64_t at_ns) {
    if (length && line[length - 1] == '\r') length--;
    if (length < 6 || memcmp(line, "data: ", 6)) return;
    line += 6;
    length -= 6;
    if (length == 6 && !memcmp(line, "[DONE]", 6)) {
        r->done = true;
        return;
    }
    /* Usage is the last member of its event, so that its end is where to look. */
    size_t tail = length < 120 ? length : 120;
    take_usage(r, line + length - tail, tail);
    if (!is_content(line, length)) return;
    if (r->events++) keep(&gaps_ns, at_ns - r->last_ns);
    else keep(&ttft_ns, at_ns - r->sent_ns);
    r->last_ns = at_ns;
}

static void take_text(struct reader *r, const char *text, size_t length, int64_t at_ns) {
    const char *end = text + length, *newline;
    while (text < end && (newline = memchr(text, '\n', end - text))) {
        if (bytes_left(&r->kept)) {
            bytes_add(&r->kept, text, newline - text);
            take_line(r, r->kept.at + r->kept.from, bytes_left(&r->kept), at_ns);
            bytes_clear(&r->kept);
        } else {
            take_line(r, text, newline - text, at_ns);
        }
        text = newline + 1;
    }
    if (text < end) bytes_add(&r->kept, text, end - text);
}

/* ---- HTTP */

/* One line of the head, or of the framing, whole once its newline is there. */
static const char *take_framing(struct reader *r, const char *at, const char *end, bool *whole) {
    const char *newline = memchr(at, '\n', end - at);
    *whole = newline != NULL;
    bytes_add(&r->kept, at, (newline ? newline : end) - at);
    if (newline) bytes_add(&r->kept, "", 1);
    return newline ? newline + 1 : end;
}

static void take_head_line(struct reader *r, const char *line) {
    if (!strncmp(line, "HTTP/", 5)) r->failed = strncmp(line + 8, " 200", 4) != 0;
    if (!strncasecmp(line, "transfer-encoding:", 18)) r->chunked = true;
    if (*line == '\r' || *line == 0) r->phase = r->chunked ? SIZE : TO_CLOSE;
}

static void finish(struct reader *r, int64_t at_ns);

static void take_framing_line(struct reader *r, const char *line, int64_t at_ns) {
    bool empty = *line == '\r' || *line == 0;
    if (r->phase == HEAD) {
        take_head_line(r, line);
    } else if (r->phase == SIZE) {
        r->chunk_left = strtoull(line, NULL, 16);
        r->phase = r->chunk_left ? DATA : TRAILER;
    } else if (r->phase == DATA_END) {
        r->phase = SIZE;
    } else if (r->phase == TRAILER && empty) {
        finish(r, at_ns);
    }
}

/* The line that framing interrupts is put aside; only one of the two is ever incomplete. */
static void take(struct reader *r, struct bytes *framing, const char *at, size_t length,
                 int64_t at_ns) {
    const char *end = at + length;
    while (at < end) {
        if (r->phase == DATA || r->phase == TO_CLOSE) {
            uint64_t there = end - at;
            if (r->phase == DATA && there > r->chunk_left) there = r->chunk_left;
            take_text(r, at, there, at_ns);
            at += there;
            if (r->phase == DATA && !(r->chunk_left -= there)) r->phase = DATA_END;
            continue;
        }
        struct bytes text = r->kept;
        bool whole;
        r->kept = *framing;
        at = take_framing(r, at, end, &whole);
        *framing = r->kept;
        r->kept = text;
        if (!whole) continue;
        const char *line = framing->at + framing->from;
        bytes_clear(framing);
        take_framing_line(r, line, at_ns);
    }
}

/* ---- connections */

static struct bytes *framings; /* one beside each reader */
static struct reader *readers;

static void join(struct reader *r) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1;
    r->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(r->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(r->fd, (struct sockaddr *)&address, sizeof address)) {
        perror("connect");
        exit(3);
    }
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = r - readers};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, r->fd, &event);
}

static void begin(struct reader *r) {
    if (begun == requests) return;
    begun++;
    if (r->fd < 0) join(r);
    r->phase = HEAD;
    r->events = r->usage_tokens = 0;
    r->done = r->failed = r->chunked = false;
    r->busy = true;
    r->sent_ns = now_ns();
    if (!first_sent_ns) first_sent_ns = r->sent_ns;
    if (send(r->fd, question.at, question.to, MSG_NOSIGNAL) != (ssize_t)question.to) {
        perror("send");
        exit(3);
    }
}

static void finish(struct reader *r, int64_t at_ns) {
    if (bytes_left(&r->kept)) { /* the last line, which nobody ended */
        take_line(r, r->kept.at + r->kept.from, bytes_left(&r->kept), at_ns);
        bytes_clear(&r->kept);
    }
    bool sound = r->done && !r->failed;
    if (!sound) failed++;
    all_events += r->events;
    all_tokens += r->usage_tokens ? r->usage_tokens : r->events;
    ended++;
    r->busy = false;
    begin(r);
}

static void leave(struct reader *r) {
    bool busy = r->busy;
    close(r->fd);
    r->fd = -1;
    if (busy) finish(r, now_ns());
}

static void read_some(struct reader *r) {
    ssize_t got = recv(r->fd, buffer, sizeof buffer, MSG_DONTWAIT);
    int64_t at_ns = now_ns();
    if (got > 0) take(r, &framings[r - readers], buffer, got, at_ns);
    else if (got == 0 || (errno != EAGAIN && errno != EINTR)) leave(r);
}

/* ---- the run */

static void prepare(void) {
    struct bytes body = {0};
    bytes_say(&body, completions ? "{\"model\":\"fake\",\"prompt\":\""
                                 : "{\"model\":\"fake\",\"messages\":[{\"role\":\"user\","
                                   "\"content\":\"");
    for (int i = 0; i < input_tokens; i++) bytes_say(&body, " word");
    bytes_say(&body, completions ? "\"" : "\"}]");
    bytes_say(&body, ",\"stream\":true,\"temperature\":0,\"ignore_eos\":true,"
                     "\"stream_options\":{\"include_usage\":true},\"max_tokens\":");
    bytes_number(&body, output_tokens, 10);
    bytes_say(&body, "}");
    bytes_say(&question, completions ? "POST /v1/completions" : "POST /v1/chat/completions");
    bytes_say(&question, " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                         "Content-Length: ");
    bytes_number(&question, bytes_left(&body), 10);
    bytes_say(&question, "\r\n\r\n");
    bytes_add(&question, body.at, bytes_left(&body));
    bytes_free(&body);
}

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void tell(const char *name, struct bytes *times) {
    int64_t *ns = (int64_t *)(times->at + times->from);
    size_t count = bytes_left(times) / sizeof *ns;
    if (!count) {
        printf("\"%s\": null, ", name);
        return;
    }
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += ns[i];
    qsort(ns, count, sizeof *ns, by_size);
    printf("\"%s\": {\"mean\": %.4f, \"p50\": %.4f, \"p99\": %.4f}, ", name, sum / count / 1e6,
           ns[count / 2] / 1e6, ns[(size_t)(count * 0.99)] / 1e6);
}

static double cpu_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec +
           (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void report(double wall_s, double load_cpu_s) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("{\"client\": \"c-reader\", \"requests\": %d, \"failed\": %d, \"tokens\": %lu, "
           "\"events\": %lu, \"wall_s\": %.4f, \"tokens_per_s\": %.1f, \"cpu_s\": %.4f, ",
           ended, failed, all_tokens, all_events, wall_s, all_tokens / wall_s, load_cpu_s);
    tell("ttft_ms", &ttft_ns);
    tell("itl_ms", &gaps_ns);
    printf("\"peak_rss_mb\": %.1f}\n", used.ru_maxrss / 1024.0);
}

static void read_options(int argc, char **argv) {
    static const struct option OPTIONS[] = {
        {"port", required_argument, NULL, 'p'},
        {"concurrency", required_argument, NULL, 'c'},
        {"requests", required_argument, NULL, 'n'},
        {"output-tokens", required_argument, NULL, 'o'},
        {"input-tokens", required_argument, NULL, 'i'},
        {"completions", no_argument, NULL, 'C'},
        {0},
    };
    for (int which; (which = getopt_long(argc, argv, "", OPTIONS, NULL)) != -1;) {
        switch (which) {
            case 'p': port = atoi(optarg); break;
            case 'c': concurrency = atoi(optarg); break;
            case 'n': requests = atoi(optarg); break;
            case 'o': output_tokens = atoi(optarg); break;
            case 'i': input_tokens = atoi(optarg); break;
            case 'C': completions = true; break;
            default: exit(2);
        }
    }
}

int main(int argc, char **argv) {
    read_options(argc, argv);
    prepare();
    readers = calloc(concurrency, sizeof *readers);
    framings = calloc(concurrency, sizeof *framings);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < concurrency; i++) join(&readers[i]);
    int64_t start_ns = now_ns();
    double start_cpu_s = cpu_s();
    for (int i = 0; i < concurrency; i++) begin(&readers[i]);
    static struct epoll_event events[512];
    while (ended < requests) {
        int count = epoll_wait(epoll_fd, events, 512, -1);
        for (int i = 0; i < count; i++) read_some(&readers[events[i].data.u32]);
    }
    report((now_ns() - start_ns) / 1e9, cpu_s() - start_cpu_s);
    return failed ? 1 : 0;
}
