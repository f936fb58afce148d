"""A server whose answers are honest or not, by the number of its sequences.

8 and 16 answer as requested; 32 counts a thousand times the tokens; 64 cuts answers short; 128
sends a quarter of the text and counts all tokens; 256 refuses all requests but the first.
"""

import argparse
import itertools
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COUNTS_MORE, CUTS, SENDS_LESS, REFUSES = 32, 64, 128, 256
ANSWERED = 8


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--max-num-seqs", type=int)
    arguments, _ = parser.parse_known_args()
    kind, numbers = arguments.max_num_seqs, itertools.count()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def reply(self, status: int, content: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.reply(200, "application/json", b'{"data": [{"id": "tiny"}]}')

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked_tokens = asked.get("max_tokens", 1)
            if kind == REFUSES and next(numbers) >= ANSWERED:
                self.reply(503, "application/json", b'{"error": {"message": "too busy"}}')
                return
            sent = {CUTS: asked_tokens // 4, SENDS_LESS: asked_tokens // 4}.get(kind, asked_tokens)
            counted = {COUNTS_MORE: 1000 * asked_tokens, CUTS: sent}.get(kind, asked_tokens)
            events = [{"choices": [{"index": 0, "text": "word "}]} for _ in range(sent)]
            usage = {"prompt_tokens": 16, "completion_tokens": counted}
            events.append({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
            events.append({"choices": [], "usage": usage})
            body = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
            self.reply(200, "text/event-stream", f"{body}data: [DONE]\n\n".encode())

    ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler).serve_forever()


main()
