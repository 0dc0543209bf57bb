"""Writes what two independent parsers, h11 and llhttp, say of every message of the corpus: crates/http1/tests/http1/golden.jsonl.

Usage, with h11 installed (requirements.txt) and Node.js 20 for llhttp:  python3 fuzz/differential/record.py
"""

import json
import pathlib
import subprocess

import h11
from h11._connection import _body_framing

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ROOT / "crates" / "http1" / "tests" / "http1"
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
SIDES = ["request", "response", "request", "response-to-head"]


def unescape(text):
    return text.encode("latin-1").decode("unicode_escape").encode("latin-1")


def entries():
    """Name, side and bytes of each message: the table, then the fuzzers' corpus without its four bytes of options."""
    for line in (TESTS / "classics.txt").read_text(encoding="ascii").split("\n"):
        if line and not line.startswith("#"):
            name, side, text = line.split(" | ", 2)
            yield name, side, unescape(text)
    for target in ("head", "framing", "chunk"):
        for path in sorted((TESTS / "corpus" / target).iterdir()):
            data = path.read_bytes()
            side = "request" if target == "chunk" else SIDES[data[0] & 3]
            yield f"{target}/{path.name}", side, (CHUNKED if target == "chunk" else b"") + data[4:]


def checksum(data):
    """FNV-1a of 64 bits."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{value:016x}"


def text(data):
    return bytes(data).decode("latin-1")


def connect(side):
    if side == "request":
        return h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    client = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    method = "HEAD" if side == "response-to-head" else "GET"
    # A 101 is an answer to one who asked for it.
    client.send(h11.Request(method=method, target="/", headers=[("Host", "a"), ("Connection", "upgrade"), ("Upgrade", "x")]))
    client.send(h11.EndOfMessage())
    return client


def by_h11(side, data):
    """Messages one by one, each on a connection of its own: which ones a connection carries is its user's choice."""
    messages, refused = [], None
    while data and refused is None:
        connection = connect(side)
        message, body, complete = None, b"", False
        connection.receive_data(data)
        try:
            while not complete:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    if message and message["framing"] == "close" and connection.their_state is h11.SEND_BODY:
                        connection.receive_data(b"")
                        continue
                    break
                if event is h11.PAUSED:
                    break
                if isinstance(event, (h11.Request, h11.Response, h11.InformationalResponse)):
                    message = {
                        "start": [text(event.method), text(event.target)]
                        if side == "request"
                        else [str(event.status_code), text(event.reason)],
                        "version": text(event.http_version),
                        "fields": [[text(name), text(value)] for name, value in event.headers],
                        "framing": "0",
                    }
                    messages.append(message)
                    if isinstance(event, h11.InformationalResponse):
                        complete = True
                    else:
                        asked = b"HEAD" if side == "response-to-head" else b"GET"
                        kind, how = _body_framing(event.method if side == "request" else asked, event)
                        message["framing"] = {"content-length": str(*how[:1]), "chunked": "chunked", "http/1.0": "close"}[kind]
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    complete = True
        except h11.RemoteProtocolError as error:
            refused = str(error).split(":")[0]
        if message:
            message["body"], message["complete"] = text(body), complete
        if not complete:
            break
        data = b"" if message["framing"] == "close" else connection.trailing_data[0]
    return {"messages": messages, "refused": refused}


def by_llhttp(all_entries):
    lines = "".join(json.dumps([side, text(data)]) + "\n" for _, side, data in all_entries)
    script = pathlib.Path(__file__).with_name("llhttp.js")
    done = subprocess.run(["node", "--no-deprecation", script], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def main():
    everything = list(entries())
    with open(TESTS / "golden.jsonl", "w", encoding="ascii") as out:
        for (name, side, data), llhttp in zip(everything, by_llhttp(everything), strict=True):
            entry = {"name": name, "side": side, "sum": checksum(data), "h11": by_h11(side, data), "llhttp": llhttp}
            out.write(json.dumps(entry, separators=(",", ":")) + "\n")
    print(len(everything), "messages")


main()
