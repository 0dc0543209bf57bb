#!/usr/bin/env python3
"""Rules of gateways in SQLite, behind a small HTTP server, with a cache in front of the database.

A gateway follows it: [rules] follow = "http://127.0.0.1:9800/rules". See README.md beside this file.
Nothing but the standard library is needed (Python 3.11 or later).
"""

import argparse
import hashlib
import hmac
import http.server
import json
import os
import re
import sqlite3
import sys
import threading
import tomllib
from urllib.parse import unquote, urlsplit

# In this order they are written: what others name comes first.
KINDS = ("upstream", "limit", "bandwidth", "route")
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
# A gateway takes no larger text.
MAX_TEXT = 1 << 20
MAX_BODY = 64 << 10
# Dots of keys in a line: each is a table in the one before.
MAX_DOTS = 32

SCHEMA = """
CREATE TABLE IF NOT EXISTS rule (
    kind  TEXT NOT NULL CHECK (kind IN ('upstream', 'limit', 'bandwidth', 'route')),
    name  TEXT NOT NULL,
    place REAL NOT NULL,          -- the order within a kind: the first route that matches wins
    body  TEXT NOT NULL,          -- the keys of the section in TOML, without its name
    PRIMARY KEY (kind, name)
);
CREATE TABLE IF NOT EXISTS change (
    time   TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')),
    kind   TEXT NOT NULL,
    name   TEXT NOT NULL,
    before TEXT,                  -- NULL: the rule was new
    after  TEXT                   -- NULL: it is gone
);
"""


class Wrong(Exception):
    """A request that cannot be met: a status, and how to mend it."""

    def __init__(self, status, detail):
        super().__init__(detail)
        self.status = status


def text_of(rules):
    """The rules as the gateway reads them."""
    parts = ["# Written by rules_service.py. Change the rules there.\n"]
    for kind, name, body in rules:
        parts.append(f'\n[[{kind}]]\nname = "{name}"\n{body.rstrip()}\n')
    return "".join(parts)


def check(kind, name, body):
    """Refuses whatever would not be one entry of the text."""
    if kind not in KINDS:
        raise Wrong(404, f"There are no rules of this kind. Kinds: {', '.join(KINDS)}.")
    if not NAME.fullmatch(name):
        raise Wrong(422, "A name is 1 to 64 of A-Z a-z 0-9 . _ -")
    if len(body.encode(errors="surrogateescape")) > MAX_BODY:
        raise Wrong(413, f"A rule has at most {MAX_BODY} bytes.")
    if any(line.count(".") > MAX_DOTS for line in re.sub(r'"[^"\n]*"|\'[^\'\n]*\'', "", body).splitlines()):
        raise Wrong(422, f"A line has more than {MAX_DOTS} dots outside of texts. Write tables as {{ inline = 1 }}.")
    try:
        keys = tomllib.loads(body)
        whole = tomllib.loads(text_of([(kind, name, body)]))
        # Headers in the body would end the entry; they are written as inline tables.
        is_entry = "name" not in keys and whole == {kind: [{"name": name, **keys}]}
    # A number may be too long to be one.
    except (ValueError, RecursionError) as error:
        raise Wrong(422, f"The body is no TOML: {error}. Send the keys of the section, without its header and name.")
    if not is_entry:
        raise Wrong(422, "The body has a name or a header. Send keys only, and tables as { inline = 1 }.")


class Rules:
    """The database. Each change is one transaction, with a line in the table of changes."""

    def __init__(self, path):
        self.lock = threading.Lock()
        # Two connections: the version that one sees does not change by its own writes.
        self.reader, self.writer = (self.open(path) for _ in range(2))
        self.cached = None

    @staticmethod
    def open(path):
        database = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(SCHEMA)
        return database

    def text(self):
        """The text and its tag: rendered when the database has changed, else from memory."""
        with self.lock:
            (version,) = self.reader.execute("PRAGMA data_version").fetchone()
            if self.cached is None or self.cached[0] != version:
                text = text_of(self.all(self.reader)).encode()
                self.cached = (version, text, f'"{hashlib.sha256(text).hexdigest()}"')
            return self.cached[1:]

    @staticmethod
    def all(database):
        order = " ".join(f"WHEN '{kind}' THEN {at}" for at, kind in enumerate(KINDS))
        return database.execute(f"SELECT kind, name, body FROM rule ORDER BY CASE kind {order} END, place, name").fetchall()

    def get(self, kind, name):
        with self.lock:
            row = self.reader.execute("SELECT body FROM rule WHERE kind = ? AND name = ?", (kind, name)).fetchone()
        if row is None:
            raise Wrong(404, f"There is no {kind} {name}.")
        return row[0]

    def put(self, kind, name, body, before=None, if_match=None):
        """Creates or replaces a rule; whether it is new. A new one comes last, or before another one."""
        check(kind, name, body)

        def work(database, old):
            if old is None:
                place = self.place(database, kind, before)
                database.execute("INSERT INTO rule VALUES (?, ?, ?, ?)", (kind, name, place, body))
            else:
                database.execute("UPDATE rule SET body = ? WHERE kind = ? AND name = ?", (body, kind, name))
            if len(text_of(self.all(database)).encode()) > MAX_TEXT:
                raise Wrong(422, "All rules together would be larger than 1 MiB.")
            return old is None, body

        return self.change(kind, name, if_match, work)

    def delete(self, kind, name, if_match=None):
        def work(database, old):
            if old is None:
                raise Wrong(404, f"There is no {kind} {name}.")
            database.execute("DELETE FROM rule WHERE kind = ? AND name = ?", (kind, name))
            return None, None

        return self.change(kind, name, if_match, work)

    def change(self, kind, name, if_match, work):
        with self.lock:
            self.writer.execute("BEGIN IMMEDIATE")
            try:
                tag = f'"{hashlib.sha256(text_of(self.all(self.writer)).encode()).hexdigest()}"'
                if if_match not in (None, "*", tag):
                    raise Wrong(412, "The rules are others than you have read. Read them again.")
                key = (kind, name)
                row = self.writer.execute("SELECT body FROM rule WHERE kind = ? AND name = ?", key).fetchone()
                old = row and row[0]
                result, new = work(self.writer, old)
                line = (kind, name, old, new)
                self.writer.execute("INSERT INTO change (kind, name, before, after) VALUES (?, ?, ?, ?)", line)
                self.writer.execute("COMMIT")
                return result
            except BaseException:
                self.writer.execute("ROLLBACK")
                raise

    @staticmethod
    def place(database, kind, before):
        places = dict(database.execute("SELECT name, place FROM rule WHERE kind = ?", (kind,)))
        if before is None:
            return max(places.values(), default=0) + 1
        if before not in places:
            raise Wrong(404, f"There is no {kind} {before}.")
        # Numbered anew each time: there is always room between two of them.
        order = sorted(places, key=lambda name: (places[name], name))
        for at, name in enumerate(order):
            database.execute("UPDATE rule SET place = ? WHERE kind = ? AND name = ?", (at + 1, kind, name))
        return order.index(before) + 0.5


class Handler(http.server.BaseHTTPRequestHandler):
    """GET /rules, and GET, PUT and DELETE of /rules/KIND/NAME."""

    protocol_version = "HTTP/1.1"
    server_version = "rules-service"
    timeout = 10

    def do_GET(self):
        self.serve(self.get)

    do_HEAD = do_GET

    def do_PUT(self):
        self.serve(self.put)

    def do_DELETE(self):
        self.serve(self.delete)

    def serve(self, work):
        try:
            self.check_token()
            work(*self.rule())
        except Wrong as wrong:
            # The body may not have been read.
            self.close_connection = True
            self.answer(wrong.status, json.dumps({"detail": str(wrong)}).encode(), "application/json")
        except (OSError, sqlite3.Error) as error:
            self.close_connection = True
            self.log_error("the database, the token or the client: %s", error)
            self.answer(503, b'{"detail": "The service cannot answer; see its log."}', "application/json")

    def check_token(self):
        # Read each time, so that another token needs no restart.
        with open(self.server.token_file, "rb") as file:
            token = file.read(4096).strip()
        sent = self.headers.get("Authorization", "").encode("latin-1")
        if not token or not hmac.compare_digest(sent, b"Bearer " + token):
            raise Wrong(401, "Send the token: Authorization: Bearer TOKEN.")

    def rule(self):
        """The kind and name of the path; neither: all rules."""
        match urlsplit(self.path).path.split("/")[1:]:
            case ["rules"]:
                return None, None
            case ["rules", kind, name]:
                return unquote(kind), unquote(name)
            case _:
                raise Wrong(404, "There are /rules and /rules/KIND/NAME.")

    def get(self, kind, name):
        if kind:
            return self.answer(200, self.server.rules.get(kind, name).encode(), "application/toml")
        text, tag = self.server.rules.text()
        tags = [own.strip().removeprefix("W/") for own in self.headers.get("If-None-Match", "").split(",")]
        if tag in tags:
            return self.answer(304, b"", None, tag)
        return self.answer(200, text, "application/toml", tag)

    def put(self, kind, name):
        if not kind:
            raise Wrong(405, "Name a rule: PUT /rules/KIND/NAME.")
        try:
            body = self.body().decode()
        except UnicodeDecodeError:
            raise Wrong(422, "The body is not UTF-8.")
        query = dict(part.split("=", 1) for part in urlsplit(self.path).query.split("&") if "=" in part)
        before = unquote(query["before"]) if "before" in query else None
        is_new = self.server.rules.put(kind, name, body, before, self.headers.get("If-Match"))
        self.answer(201 if is_new else 200, b"", None, self.server.rules.text()[1])

    def delete(self, kind, name):
        if not kind:
            raise Wrong(405, "Name a rule: DELETE /rules/KIND/NAME.")
        self.server.rules.delete(kind, name, self.headers.get("If-Match"))
        self.answer(200, b"", None, self.server.rules.text()[1])

    def body(self):
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch(r"[0-9]{1,9}", length):
            raise Wrong(411, "Send a body with a Content-Length.")
        if int(length) > MAX_BODY:
            raise Wrong(413, f"A rule has at most {MAX_BODY} bytes.")
        body = self.rfile.read(int(length))
        if len(body) != int(length):
            raise Wrong(400, "The body broke off: nothing has changed.")
        return body

    def answer(self, status, body, content_type, tag=None):
        self.send_response(status)
        if tag:
            self.send_header("ETag", tag)
        if content_type:
            self.send_header("Content-Type", content_type)
        if status != 304:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


def serve(rules, arguments):
    host, _, port = arguments.listen.rpartition(":")
    server = Server((host, int(port)), Handler)
    server.rules, server.token_file = rules, arguments.token_file
    print(f"listening on http://{host}:{server.server_port}/rules", flush=True)
    server.serve_forever()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", default="rules.db")
    parser.add_argument("--token-file", default="rules.token", help="the token that requests bring, in one line")
    commands = parser.add_subparsers(dest="command", required=True)
    listen = commands.add_parser("serve", help="answer gateways")
    listen.add_argument("--listen", default="127.0.0.1:9800", help="this machine alone, unless you say otherwise")
    commands.add_parser("show", help="print the text that gateways get")
    commands.add_parser("changes", help="print the last changes")
    for name, help in (("put", "create or replace a rule; its keys come from standard input"), ("delete", "remove one")):
        command = commands.add_parser(name, help=help)
        command.add_argument("kind", choices=KINDS)
        command.add_argument("name")
        if name == "put":
            command.add_argument("--before", help="a new one comes before this one")
    arguments = parser.parse_args()
    # The rules may have secrets in them.
    os.umask(0o077)
    rules = Rules(arguments.database)
    match arguments.command:
        case "serve":
            serve(rules, arguments)
        case "show":
            sys.stdout.write(rules.text()[0].decode())
        case "changes":
            for time_, kind, name, before, after in rules.reader.execute("SELECT * FROM change ORDER BY rowid DESC LIMIT 20"):
                word = "created" if before is None else "deleted" if after is None else "replaced"
                print(f"{time_} {kind} {name} {word}")
        case "put":
            rules.put(arguments.kind, arguments.name, sys.stdin.read(MAX_BODY + 1), arguments.before)
        case "delete":
            rules.delete(arguments.kind, arguments.name)


if __name__ == "__main__":
    try:
        main()
    except (Wrong, OSError, sqlite3.Error) as wrong:
        sys.exit(f"rules_service.py: {wrong}")
    except KeyboardInterrupt:
        sys.exit(0)
