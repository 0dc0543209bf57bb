"""The gateway of docs/models.md, asked by the packages openai and anthropic, before a server that answers in both forms.

Usage: run.py GATEWAY, with both packages installed; see `make models`.
"""

import http.server
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import anthropic
import openai

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "models.md"
PROMPT, ANSWER = 19, 10
WORDS = ["Hello", " there", "!"]


class Model(http.server.BaseHTTPRequestHandler):
    """Answers in the form of the path that it is asked by."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if asked["messages"][0]["content"] == "fail":
            return self.reply(503, "application/json", b'{"error":{"message":"overloaded"}}')
        is_message = self.path.endswith("/messages")
        if asked.get("stream"):
            return self.stream(message_events() if is_message else chunks(asked))
        answer = message() if is_message else completion()
        return self.reply(200, "application/json", json.dumps(answer).encode())

    def reply(self, status, kind, body):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, events):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for name, data in events:
            text = (f"event: {name}\n" if name else "") + f"data: {data}\n\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text.encode()))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_):
        pass


def usage():
    return {"prompt_tokens": PROMPT, "completion_tokens": ANSWER, "total_tokens": PROMPT + ANSWER}


def completion():
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "".join(WORDS)}}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage()}


def chunks(asked):
    frame = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    for word in WORDS:
        choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
        yield None, json.dumps({**frame, "choices": [choice], "usage": None})
    if (asked.get("stream_options") or {}).get("include_usage"):
        yield None, json.dumps({**frame, "choices": [], "usage": usage()})
    yield None, "[DONE]"


def message(content=None, output=ANSWER):
    content = [{"type": "text", "text": "".join(WORDS)}] if content is None else content
    return {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "content": content, "stop_reason": "end_turn",
        "stop_sequence": None, "usage": {"input_tokens": PROMPT, "output_tokens": output},
    }


def message_events():
    events = [
        {"type": "message_start", "message": message([], 0)},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}} for word in WORDS),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
         "usage": {"output_tokens": ANSWER}},
        {"type": "message_stop"},
    ]
    return ((event["type"], json.dumps(event)) for event in events)


class Gateway:
    """The binary on the files of the page, before this server."""

    def __init__(self, binary, port, directory):
        rules, plans = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.S)
        rules = rules.replace("0.0.0.0:8080", "127.0.0.1:0").replace("127.0.0.1:9001", f"127.0.0.1:{port}")
        rules = rules.replace("127.0.0.1:9002", f"127.0.0.1:{port}")
        (directory / "plans.toml").write_text(plans)
        for name, text in re.findall(r"`(\w+\.json)`:\n\n```json\n(.*?)```", PAGE.read_text(), re.S):
            (directory / name).write_text(text)
        (directory / "gateway.toml").write_text(rules + '\n[admin]\naddress = "127.0.0.1:0"\n')
        subprocess.run([binary, "check", "--strict", "-c", directory / "gateway.toml"], check=True, stdout=subprocess.DEVNULL)
        self.log = open(directory / "log", "w+")
        command = [binary, "run", "-c", directory / "gateway.toml"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self.log)
        self.address, self.admin = self.addresses(directory / "log")

    def addresses(self, log):
        for _ in range(100):
            for line in log.read_text().splitlines():
                if '"started"' in line:
                    started = json.loads(line)
                    return started["listeners"], started["admin"]
            time.sleep(0.1)
        sys.exit(f"the gateway does not start: {log.read_text()}")

    def used(self, limit):
        with urllib.request.urlopen(f"http://{self.admin}/metrics") as page:
            lines = page.read().decode().splitlines()
        values = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(f'sluicegate_limit_used_total{{limit="{limit}"}}')]
        return sum(map(float, values))


def check(what, expected, found):
    if expected != found:
        sys.exit(f"{what}: {expected} expected, {found} found")
    print(f"ok: {what}: {found}")


def ask_openai(gateway):
    client = openai.OpenAI(base_url=f"http://{gateway.address}/v1", api_key="sk-free", max_retries=0)
    ask = lambda **more: client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": more.pop("content", "Hi")}], **more
    )
    check("openai, an answer", "Hello there!", ask(max_tokens=500).choices[0].message.content)
    check("openai, its tokens", PROMPT + ANSWER, gateway.used("tokens"))
    for options, tokens in [({"stream_options": {"include_usage": True}}, PROMPT + ANSWER), ({}, len(WORDS))]:
        before = gateway.used("tokens")
        words = [part.choices[0].delta.content for part in ask(max_tokens=500, stream=True, **options) if part.choices]
        check(f"openai, a stream {options}", WORDS, words)
        check("openai, its tokens", tokens, gateway.used("tokens") - before)
    before = gateway.used("tokens")
    try:
        ask(max_tokens=500, content="fail")
    except openai.InternalServerError as error:
        check("openai, a failure", 503, error.status_code)
    check("openai, its tokens", 0, gateway.used("tokens") - before)
    try:
        ask(max_tokens=20_000)
        sys.exit("openai: what does not fit is admitted")
    except openai.RateLimitError as error:
        check("openai, a refusal", "rate_limit_exceeded", error.code)
        secs = int(error.response.headers["retry-after"])
        check("openai, its wait", f"{secs}000", error.response.headers["retry-after-ms"])
    team = openai.OpenAI(base_url=f"http://{gateway.address}/v1", api_key="sk-team", max_retries=0)
    answer = team.chat.completions.with_raw_response.create(
        model="m", messages=[{"role": "user", "content": "Hi"}], max_tokens=20_000
    )
    check("openai, a plan", True, answer.parse().choices[0].message.content.startswith("Hello"))
    check("openai, what is left", True, int(answer.headers["x-ratelimit-remaining-tokens"]) >= 0)


def ask_anthropic(gateway):
    client = anthropic.Anthropic(base_url=f"http://{gateway.address}", api_key="sk-ant", max_retries=0)
    asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    check("anthropic, an answer", "Hello there!", client.messages.create(max_tokens=500, **asked).content[0].text)
    check("anthropic, its tokens", PROMPT + ANSWER, gateway.used("message-tokens"))
    before = gateway.used("message-tokens")
    with client.messages.stream(max_tokens=500, **asked) as stream:
        check("anthropic, a stream", WORDS, list(stream.text_stream))
    check("anthropic, its tokens", PROMPT + ANSWER, gateway.used("message-tokens") - before)
    try:
        client.messages.create(max_tokens=20_000, **asked)
        sys.exit("anthropic: what does not fit is admitted")
    except anthropic.RateLimitError as error:
        check("anthropic, a refusal", "rate_limit_error", error.body["error"]["type"])


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as directory:
        gateway = Gateway(sys.argv[1], server.server_address[1], pathlib.Path(directory))
        try:
            ask_openai(gateway)
            ask_anthropic(gateway)
        finally:
            gateway.process.terminate()
            gateway.process.wait()


if __name__ == "__main__":
    main()
