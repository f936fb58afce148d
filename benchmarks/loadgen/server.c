/* A streaming server that does not think, for measuring the clients of streaming servers.

   One thread, one epoll. Every request is answered by as many tokens as it asks for, at set
   times (--ttft-us, --itl-us) or as fast as its socket takes them, and the true times at which
   tokens were handed to the kernel are kept. `server --help` lists the shapes that answers can
   take; what is said is in says.h, what is kept in truth.h. */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "says.h"
#include "stream.h"
#include "truth.h"

#define IDLE_NS 200000000
#define BACKLOG 4096

static struct shape shape = {.model = "fake", .tokens_per_chunk = 1, .final_newline = true,
                             .usage = USAGE_END};
static int64_t ttft_ns, itl_ns;
static int chunks_per_write = 1;
static bool split, close_delimited, reuse_port;
static const char *truth_path;

static int epoll_fd;
static unsigned request_count, connection_count;
static int open_answers;
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

/* When the kernel had the last bytes that were read, by our clock; now, where it does not say. */
static int64_t came_ns(struct msghdr *message) {
    int64_t at_ns = now_ns();
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SO_TIMESTAMPNS) continue;
        struct timespec came, now;
        memcpy(&came, CMSG_DATA(c), sizeof came);
        clock_gettime(CLOCK_REALTIME, &now);
        int64_t ago_ns = (int64_t)(now.tv_sec - came.tv_sec) * 1000000000 + now.tv_nsec -
                         came.tv_nsec;
        if (ago_ns > 0) at_ns -= ago_ns;
    }
    return at_ns;
}

static bool read_all(struct stream *s) {
    for (;;) {
        char *at = bytes_room(&s->in, 4096);
        size_t room = s->in.room - s->in.to - 1;
        struct iovec piece = {at, room};
        char control[128];
        struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
                                 .msg_controllen = sizeof control};
        ssize_t got = recvmsg(s->fd, &message, MSG_DONTWAIT);
        if (got == 0) return false;
        if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
        s->arrived_ns = came_ns(&message);
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
        return take_request(s);
    }
    return true;
}

/* ---- the loop */

static void accept_all(int listener) {
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
        int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
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
    truth_open(truth_path);
    serve(listen_at(port));
    return 0;
}
