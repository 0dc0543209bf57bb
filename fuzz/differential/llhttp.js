// What llhttp, the parser inside Node.js, says of messages: one JSON array [side, bytes] a line in, one verdict a line out.
"use strict";

const { HTTPParser, methods } = process.binding("http_parser");

function verdict(side, bytes) {
  const parser = new HTTPParser();
  const messages = [];
  let early = [];
  const isRequest = side === "request";
  parser.initialize(isRequest ? HTTPParser.REQUEST : HTTPParser.RESPONSE, {}, 1 << 20, HTTPParser.kLenientNone);
  parser[HTTPParser.kOnHeaders | 0] = (fields, url) => {
    if (messages.length && !messages.at(-1).complete) return; // Trailers.
    early.push([fields, url]);
  };
  parser[HTTPParser.kOnHeadersComplete | 0] = (major, minor, fields, method, url, status, reason, upgrade) => {
    const all = early.flatMap(([fields]) => fields).concat(fields ?? []);
    const target = early.map(([, url]) => url).join("") + (url ?? "");
    early = [];
    const pairs = [];
    for (let at = 0; at < all.length; at += 2) pairs.push([all[at].toLowerCase(), all[at + 1]]);
    messages.push({
      start: isRequest ? [methods[method], target] : [String(status), reason],
      version: `${major}.${minor}`,
      fields: pairs,
      framing: null,
      body: "",
      complete: false,
    });
    return side === "response-to-head" ? 1 : 0;
  };
  parser[HTTPParser.kOnBody | 0] = (body) => {
    messages.at(-1).body += body.toString("latin1");
  };
  parser[HTTPParser.kOnMessageComplete | 0] = () => {
    messages.at(-1).complete = true;
  };
  const taken = parser.execute(Buffer.from(bytes, "latin1"));
  let refused = taken instanceof Error ? taken.code : null;
  if (refused === null && taken === bytes.length) parser.finish();
  else if (refused === null) refused = "switched";
  return { messages, refused };
}

for (const line of require("fs").readFileSync(0, "utf8").split("\n")) {
  if (line) console.log(JSON.stringify(verdict(...JSON.parse(line))));
}
