/* A streaming server that does not think, for measuring the clients of streaming servers.

   One thread, one epoll. Every request is answered by as many tokens as it asks for, at set
   times (--ttft-us, --itl-us) or as fast as its socket takes them, and the true times at which
   tokens were handed to the kernel are kept. `server --help` lists the shapes that answers can
   take; they are told in says.h.

   Truth (--truth FILE) is binary, in the machine's order of bytes. Per request: int64 tokens,
   int64 connection, int64 arrived_ns, int64 asked_ns, then one int64 per token. arrived_ns is
   when its first byte was read, asked_ns when its last was; a token's time is taken just before
   the send that hands its event's last byte to the kernel. All are CLOCK_MONOTONIC. Nothing is
   written while there is work: only when the server has been idle for a while, and at its end. */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "says.h"

#define TRUTH_ROOM ((size_t)16 << 30) /* of address space, not of memory */
#define IDLE_NS 200000000
#define BACKLOG 4096

static struct shape shape = {.model = "fake", .tokens_per_chunk = 1, .final_newline = true,
                             .usage = USAGE_END};
static int64_t ttft_ns, itl_ns;
static int chunks_per_write = 1;
static bool split, close_delimited, reuse_port;
static const char *truth_path;

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

static int epoll_fd;
static struct stream **heap;
static int heap_count, heap_room;
static struct stream ring = {.next = &ring, .before = &ring};
static unsigned request_count, connection_count;
static int open_answers;
static char *truth;
static size_t truth_from, truth_to;
static int truth_fd = -1;
static volatile sig_atomic_t stopped;
static uint64_t random_state = 88172645463325252ull;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static size_t draw(size_t below) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % below;
}

/* ---- who is due when: a binary heap for set times, a ring for no time at all */

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

/* Where an answer waits for its next tokens. */
static void wait_turn(struct stream *s) {
    if (s->made == s->asked.tokens) return;
    if (itl_ns == 0 && s->made > 0) {
        if (!s->next && !s->blocked) ring_add(s);
        return;
    }
    s->due_ns = s->asked_ns + ttft_ns + s->made * itl_ns;
    heap_add(s);
}

/* ---- truth */

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

static void truth_open(void) {
    if (!truth_path) return;
    FILE *file = fopen(truth_path, "w");
    truth = mmap(NULL, TRUTH_ROOM, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!file || truth == MAP_FAILED) {
        perror(truth_path);
        exit(2);
    }
    truth_fd = fileno(file);
}

/* ---- sending */

static void stream_close(struct stream *s) {
    if (s->in_heap) heap_remove(s);
    if (s->next) ring_remove(s);
    if (s->answering) open_answers--;
    close(s->fd);
    bytes_free(&s->in);
    bytes_free(&s->text);
    bytes_free(&s->out);
    free(s->marks);
    free(s->stamps);
    free(s);
}

/* Time stamps of all events that end among what the kernel has now. */
static void stamp(struct stream *s, int64_t at_ns) {
    while (s->marks_from < s->marks_to && s->marks[s->marks_from].wire_end <= s->wire_from) {
        for (int i = 0; i < s->marks[s->marks_from].tokens; i++) s->stamps[s->stamped++] = at_ns;
        s->marks_from++;
    }
}

/* Send what there is; false once the connection is gone. */
static bool flush(struct stream *s) {
    while (bytes_left(&s->out)) {
        size_t length = bytes_left(&s->out);
        if (split && length > 1) length = 1 + draw(length);
        int64_t at_ns = now_ns();
        ssize_t sent = send(s->fd, s->out.at + s->out.from, length, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EINTR) continue;
            if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
            s->blocked = true;
            if (s->next) ring_remove(s);
            return true;
        }
        s->out.from += sent;
        s->wire_from += sent;
        stamp(s, at_ns);
    }
    return true;
}

static void frame(struct stream *s, size_t length) {
    if (close_delimited) {
        bytes_add(&s->out, s->text.at + s->text.from, length);
    } else {
        bytes_number(&s->out, length, 16);
        bytes_say(&s->out, "\r\n");
        bytes_add(&s->out, s->text.at + s->text.from, length);
        bytes_say(&s->out, "\r\n");
    }
    uint64_t tail = close_delimited ? 0 : 2;
    uint64_t text_to = s->text_from + length;
    uint64_t wire_to = s->wire_from + bytes_left(&s->out) - tail;
    for (int i = s->marks_from; i < s->marks_to && s->marks[i].text_end <= text_to; i++) {
        if (s->marks[i].text_end > s->text_from)
            s->marks[i].wire_end = wire_to - (text_to - s->marks[i].text_end);
    }
    s->text.from += length;
    s->text_from = text_to;
}

/* Frame the text: an event a chunk, or cut anywhere with a rest that stays for the next time. */
static void frame_text(struct stream *s, bool last) {
    if (split) {
        size_t stays = last ? 0 : draw(bytes_left(&s->text));
        while (bytes_left(&s->text) > stays)
            frame(s, 1 + draw(bytes_left(&s->text) - stays));
        return;
    }
    for (int i = s->marks_from; i < s->marks_to; i++) {
        if (s->marks[i].text_end > s->text_from) frame(s, s->marks[i].text_end - s->text_from);
    }
    if (bytes_left(&s->text)) frame(s, bytes_left(&s->text));
}

static void mark(struct stream *s, int tokens) {
    uint64_t end = s->text_from + bytes_left(&s->text);
    s->marks[s->marks_to++] = (struct mark){end, UINT64_MAX, tokens};
}

static void answer_done(struct stream *s) {
    truth_keep(s);
    s->answering = false;
    open_answers--;
}

/* The next write of an answer; false once the connection is gone. */
static bool step(struct stream *s) {
    if (s->made == 0 && s->asked.chat && shape.role && !strcmp(shape.role, "first")) {
        say_role(&s->text, &shape, &s->asked);
        mark(s, 0);
    }
    for (int i = 0; i < chunks_per_write && s->made < s->asked.tokens; i++) {
        int left = s->asked.tokens - s->made;
        int count = left < shape.tokens_per_chunk ? left : shape.tokens_per_chunk;
        say_tokens(&s->text, &shape, &s->asked, s->made, count);
        mark(s, count);
        s->made += count;
    }
    bool last = s->made == s->asked.tokens;
    if (last) say_end(&s->text, &shape, &s->asked);
    frame_text(s, last);
    if (last && !close_delimited) bytes_say(&s->out, "0\r\n\r\n");
    return s->blocked || flush(s);
}

static void say_head(struct stream *s, const char *status, const char *type, size_t length) {
    bytes_say(&s->out, "HTTP/1.1 ");
    bytes_say(&s->out, status);
    bytes_say(&s->out, "\r\ndate: Sat, 21 Nov 2026 00:00:00 GMT\r\nserver: loadgen\r\n"
                       "content-type: ");
    bytes_say(&s->out, type);
    if (length != SIZE_MAX) {
        bytes_say(&s->out, "\r\ncontent-length: ");
        bytes_number(&s->out, length, 10);
    } else {
        bytes_say(&s->out, close_delimited ? "\r\nconnection: close"
                                           : "\r\ntransfer-encoding: chunked");
    }
    bytes_say(&s->out, "\r\n\r\n");
}

static bool say_page(struct stream *s, const char *status, const char *words) {
    say_head(s, status, "application/json", strlen(words));
    bytes_say(&s->out, words);
    return flush(s);
}

static bool whole_answer(struct stream *s) {
    bytes_clear(&s->text);
    say_whole(&s->text, &shape, &s->asked);
    say_head(s, "200 OK", "application/json", bytes_left(&s->text));
    bytes_add(&s->out, s->text.at + s->text.from, bytes_left(&s->text));
    s->text.from = s->text.to;
    s->marks[s->marks_to++] =
        (struct mark){0, s->wire_from + bytes_left(&s->out), s->asked.tokens};
    s->made = s->asked.tokens;
    return flush(s);
}

/* ---- understanding what is asked */

static const char *after_member(const char *body, size_t length, const char *member) {
    const char *at = memmem(body, length, member, strlen(member));
    if (!at) return NULL;
    at += strlen(member);
    while (at < body + length && (*at == ' ' || *at == ':')) at++;
    return at;
}

static bool says_true(const char *body, size_t length, const char *member) {
    const char *at = after_member(body, length, member);
    return at && at < body + length && *at == 't';
}

static int number_of(const char *body, size_t length, const char *member, int otherwise) {
    const char *at = after_member(body, length, member);
    return at && at < body + length && isdigit((unsigned char)*at) ? atoi(at) : otherwise;
}

/* Numbers of a list of token ids, or spaces between words: near enough for a usage. */
static int counted_prompt(const char *body, size_t length) {
    const char *ids = after_member(body, length, "\"prompt\"");
    const char *end = body + length;
    int count = 1;
    if (ids && ids < end && *ids == '[') {
        for (; ids < end && *ids != ']'; ids++) count += *ids == ',';
        return count;
    }
    for (const char *at = body; at < end; at++) count += *at == ' ';
    return count;
}

static void understand(struct stream *s, const char *body, size_t length, bool chat) {
    int tokens = number_of(body, length, "\"max_tokens\"", 16);
    tokens = number_of(body, length, "\"max_completion_tokens\"", tokens);
    bool end = says_true(body, length, "\"include_usage\"");
    bool every = end && says_true(body, length, "\"continuous_usage_stats\"");
    enum usage usage = shape.usage;
    s->asked = (struct question){
        .chat = chat,
        .stream = says_true(body, length, "\"stream\""),
        .tokens = tokens > 0 ? tokens : 1,
        .prompt_tokens = shape.prompt_tokens ? shape.prompt_tokens : counted_prompt(body, length),
        .number = request_count++,
        .usage_at_end = usage == USAGE_ASKED ? end : usage != USAGE_NONE,
        .usage_on_every = usage == USAGE_ASKED ? every : usage == USAGE_EVERY,
    };
}

static bool begin_answer(struct stream *s) {
    int tokens = s->asked.tokens, marks = tokens / shape.tokens_per_chunk + 4;
    if (tokens > s->stamps_room) {
        s->stamps = realloc(s->stamps, sizeof *s->stamps * (s->stamps_room = tokens));
    }
    if (marks > s->marks_room) {
        s->marks = realloc(s->marks, sizeof *s->marks * (s->marks_room = marks));
    }
    if (!s->stamps || !s->marks) abort();
    s->marks_from = s->marks_to = s->made = s->stamped = 0;
    s->answering = true;
    s->closes = close_delimited && s->asked.stream;
    open_answers++;
    if (s->asked.stream) {
        say_head(s, "200 OK", "text/event-stream; charset=utf-8", SIZE_MAX);
        if (s->asked.chat && shape.role && !strcmp(shape.role, "early")) {
            say_role(&s->text, &shape, &s->asked);
            mark(s, 0);
            frame_text(s, true);
        }
        if (ttft_ns > 0 && !flush(s)) return false;
    }
    wait_turn(s);
    return true;
}

static bool respond(struct stream *s, const char *path, size_t path_length, const char *body,
                    size_t length) {
#define IS(route) (path_length == strlen(route) && !memcmp(path, route, path_length))
    bool chat = IS("/v1/chat/completions");
    if (chat || IS("/v1/completions")) {
        s->asked_ns = now_ns();
        understand(s, body, length, chat);
        return begin_answer(s);
    }
    if (IS("/v1/models")) {
        char words[512];
        snprintf(words, sizeof words,
                 "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\","
                 "\"created\":1790000000,\"owned_by\":\"loadgen\",\"root\":\"%s\","
                 "\"max_model_len\":1048576}]}",
                 shape.model, shape.model);
        return say_page(s, "200 OK", words);
    }
    if (IS("/health") || IS("/ping")) return say_page(s, "200 OK", "{}");
    return say_page(s, "404 Not Found", "{\"error\":{\"message\":\"no such route\"}}");
}

/* Length of the body that a head announces; -1 where it is sent in chunks. */
static long body_length(const char *head, const char *end) {
    for (const char *line = head; line < end;) {
        if (!strncasecmp(line, "content-length:", 15)) return atol(line + 15);
        if (!strncasecmp(line, "transfer-encoding:", 18)) return -1;
        const char *next = memchr(line, '\n', end - line);
        line = next ? next + 1 : end;
    }
    return 0;
}

/* Take one request from what came, if one is whole; false once the connection is gone. */
static bool take_request(struct stream *s) {
    if (s->answering || !bytes_left(&s->in)) return true;
    const char *from = s->in.at + s->in.from;
    size_t length = bytes_left(&s->in);
    const char *head_end = memmem(from, length, "\r\n\r\n", 4);
    if (!head_end) return true;
    long body = body_length(from, head_end);
    if (body < 0) return say_page(s, "411 Length Required", "{}") && false;
    size_t head = head_end + 4 - from;
    if (length < head + body) return true;
    const char *path = memchr(from, ' ', head);
    if (!path) return false;
    path++;
    size_t path_length = strcspn(path, " ?\r");
    s->in.from += head + body;
    return respond(s, path, path_length, from + head, body);
}

static bool read_all(struct stream *s) {
    for (;;) {
        bytes_room(&s->in, 4096);
        size_t room = s->in.room - s->in.to - 1;
        ssize_t got = recv(s->fd, s->in.at + s->in.to, room, MSG_DONTWAIT);
        if (got == 0) return false;
        if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
        if (!bytes_left(&s->in)) s->arrived_ns = now_ns();
        s->in.to += got;
        s->in.at[s->in.to] = 0;
        if ((size_t)got < room) return true;
    }
}

/* After any progress: what is over ends, what waits goes on. */
static bool settle(struct stream *s) {
    if (s->answering && s->made == s->asked.tokens && !bytes_left(&s->out)) {
        answer_done(s);
        if (s->closes) return false;
        if (bytes_left(&s->in)) s->arrived_ns = now_ns();
        return take_request(s);
    }
    return true;
}

/* ---- the loop */

static void accept_all(int listener) {
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
        int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct stream *s = calloc(1, sizeof *s);
        if (!s) abort();
        s->fd = fd;
        s->serial = connection_count++;
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                    .data.ptr = s};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
    }
}

static void serve_event(struct stream *s, uint32_t events) {
    bool alive = true;
    if (events & EPOLLOUT && s->blocked) {
        s->blocked = false;
        alive = flush(s);
        if (alive && !s->blocked && !s->in_heap && s->answering) wait_turn(s);
    }
    if (alive && events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        alive = read_all(s) && take_request(s);
    if (!alive || !settle(s)) stream_close(s);
}

static void serve_due(void) {
    while (heap_count && heap[0]->due_ns <= now_ns()) {
        struct stream *s = heap[0];
        heap_remove(s);
        if (!(s->asked.stream ? step(s) : whole_answer(s))) {
            stream_close(s);
            continue;
        }
        wait_turn(s);
        if (!settle(s)) stream_close(s);
    }
}

static void serve_ring(void) {
    for (struct stream *s = ring.next, *next; s != &ring; s = next) {
        next = s->next;
        bool alive = step(s);
        if (alive && s->next && s->made == s->asked.tokens) ring_remove(s);
        if (!alive || !settle(s)) stream_close(s);
    }
}

static int wait_events(struct epoll_event *events, int room) {
    int64_t wait_ns = IDLE_NS;
    if (ring.next != &ring) {
        wait_ns = 0;
    } else if (heap_count) {
        wait_ns = heap[0]->due_ns - now_ns();
        if (wait_ns < 0) wait_ns = 0;
    }
    struct timespec wait = {wait_ns / 1000000000, wait_ns % 1000000000};
    int count = epoll_pwait2(epoll_fd, events, room, &wait, NULL);
    if (count == 0 && !open_answers) truth_write();
    return count;
}

static void serve(int listener) {
    static struct epoll_event events[512];
    while (!stopped) {
        int count = wait_events(events, 512);
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr) serve_event(events[i].data.ptr, events[i].events);
            else accept_all(listener);
        }
        if (heap_count) serve_due();
        if (ring.next != &ring) serve_ring();
    }
    truth_write();
}

static int listen_at(int port) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (reuse_port) setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, BACKLOG)) {
        perror("listen");
        exit(3);
    }
    getsockname(listener, (struct sockaddr *)&address, &length);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &event);
    printf("listening on %d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

/* ---- the command line */

static const struct option OPTIONS[] = {
    {"port", required_argument, NULL, 'p'},
    {"ttft-us", required_argument, NULL, 'f'},
    {"itl-us", required_argument, NULL, 'i'},
    {"tokens-per-chunk", required_argument, NULL, 'k'},
    {"chunks-per-write", required_argument, NULL, 'w'},
    {"split", no_argument, NULL, 's'},
    {"crlf", no_argument, NULL, 'c'},
    {"comments", no_argument, NULL, 'o'},
    {"no-final-newline", no_argument, NULL, 'n'},
    {"tricky", no_argument, NULL, 'y'},
    {"usage", required_argument, NULL, 'u'},
    {"prompt-tokens", required_argument, NULL, 'P'},
    {"reasoning", optional_argument, NULL, 'r'},
    {"tools", no_argument, NULL, 't'},
    {"role-chunk", optional_argument, NULL, 'R'},
    {"content-length", required_argument, NULL, 'l'},
    {"reuse-port", no_argument, NULL, 'e'},
    {"model", required_argument, NULL, 'm'},
    {"truth", required_argument, NULL, 'T'},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static const char HELP[] =
    "server [options]: prints 'listening on PORT' once it is ready; ends on SIGTERM\n"
    "  --port N               0 takes a free one (default)\n"
    "  --ttft-us N            from a request's last byte to its first token\n"
    "  --itl-us N             per token; 0 sends as fast as the sockets take\n"
    "  --tokens-per-chunk N   tokens in an event (1)\n"
    "  --chunks-per-write N   events in a write (1)\n"
    "  --split                cut HTTP chunks and writes anywhere, inside lines too\n"
    "  --crlf                 lines of events end in CRLF\n"
    "  --comments             ': ping' before every event\n"
    "  --no-final-newline     nothing after the last event's text\n"
    "  --tricky               words of escapes and of what looks like protocol\n"
    "  --usage HOW            none, end (default), every, or asked: as the request says\n"
    "  --prompt-tokens N      what usage says of prompts (counted roughly)\n"
    "  --reasoning[=MEMBER]   first half of a chat answer in 'reasoning_content' or MEMBER\n"
    "  --tools                last half of a chat answer as arguments of a tool call\n"
    "  --role-chunk[=early]   empty chunk before the first token, or at once\n"
    "  --content-length off   answers end with their connection instead of in chunks\n"
    "  --reuse-port           several servers may share the port\n"
    "  --model NAME           what /v1/models says (fake)\n"
    "  --truth FILE           true times, see server.c\n";

static enum usage usage_named(const char *name) {
    static const char *const NAMES[] = {"none", "end", "every", "asked"};
    for (int i = 0; i < 4; i++) {
        if (!strcmp(name, NAMES[i])) return i;
    }
    fprintf(stderr, "--usage is none, end, every or asked, not %s\n", name);
    exit(2);
}

static int count_of(const char *words) {
    int count = atoi(words);
    return count > 0 ? count : 1;
}

static int read_options(int argc, char **argv) {
    int port = 0;
    for (int which; (which = getopt_long(argc, argv, "", OPTIONS, NULL)) != -1;) {
        switch (which) {
            case 'p': port = atoi(optarg); break;
            case 'f': ttft_ns = atoll(optarg) * 1000; break;
            case 'i': itl_ns = atoll(optarg) * 1000; break;
            case 'k': shape.tokens_per_chunk = count_of(optarg); break;
            case 'w': chunks_per_write = count_of(optarg); break;
            case 's': split = true; break;
            case 'c': shape.crlf = true; break;
            case 'o': shape.comments = true; break;
            case 'n': shape.final_newline = false; break;
            case 'y': shape.tricky = true; break;
            case 'u': shape.usage = usage_named(optarg); break;
            case 'P': shape.prompt_tokens = atoi(optarg); break;
            case 'r': shape.reasoning = optarg ? optarg : "reasoning_content"; break;
            case 't': shape.tools = true; break;
            case 'R': shape.role = optarg ? optarg : "first"; break;
            case 'l': close_delimited = !strcmp(optarg, "off"); break;
            case 'e': reuse_port = true; break;
            case 'm': shape.model = optarg; break;
            case 'T': truth_path = optarg; break;
            case 'h': fputs(HELP, stdout); exit(0);
            default: fputs(HELP, stderr); exit(2);
        }
    }
    return port;
}

static void stop(int signal) {
    (void)signal;
    stopped = 1;
}

int main(int argc, char **argv) {
    int port = read_options(argc, argv);
    signal(SIGTERM, stop);
    signal(SIGINT, stop);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    truth_open();
    serve(listen_at(port));
    return 0;
}
