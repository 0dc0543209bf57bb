/**
 * Tests of the client. SLUICEGATE is the path of the gateway's binary:
 *
 *     SLUICEGATE=/usr/bin/sluicegate node --test test_sluicegate.mjs
 *
 * Where an answer must come, the timeout is long and the client's clock is one that the test moves: a busy machine changes
 * no result. Where none must come, the timeout is short.
 */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import fs from "node:fs";
import http from "node:http";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { describe, test as nodeTest } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Worker } from "node:worker_threads";
import { Sluicegate, SluicegateError } from "./sluicegate.mjs";

const LONG = 30_000;

const test = (name, run) => nodeTest(name, { timeout: 4 * LONG }, run);

const config = (port) => `
[[listener]]
address = "127.0.0.1:${port}"
decides = "json"
[[listener]]
address = "unix:check.sock"
decides = "json"
[[limit]]
name = "per-key"
key = "header:x-api-key"
rate = "3/1h"
[[limit]]
name = "per-pair"
key = ["client-ip", "header:x-api-key"]
rate = "3/1h"
[[route]]
name = "api"
limits = ["per-key", "per-pair"]
`;

/** A client. Its clock stands still until `clock.ms` is changed. */
function makeClient(t, address, options = {}, clock = { ms: 1000 }) {
  const client = new Sluicegate(address, { timeout: LONG, now: () => clock.ms, ...options });
  t.after(() => client.close());
  return client;
}

async function until(isTrue) {
  const end = performance.now() + LONG;
  while (!isTrue()) {
    assert.ok(performance.now() < end, `never true: ${isTrue}`);
    await sleep(1);
  }
}

/** The results of `ask(number)`, one after the other. */
async function inTurn(count, ask) {
  const results = [];
  for (let number = 0; number < count; number++) results.push(await ask(number));
  return results;
}

const atOnce = (count, ask) => Promise.all(Array.from({ length: count }, (_, number) => ask(number)));

function computeFor(ms) {
  const end = performance.now() + ms;
  while (performance.now() < end);
}

function makeDirectory(t) {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "sluicegate-"));
  t.after(() => fs.rmSync(directory, { recursive: true, force: true }));
  return directory;
}

async function freePort() {
  const probe = net.createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => probe.once("listening", resolve));
  const { port } = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  return port;
}

/** The real gateway, in a directory of its own. */
class Gateway {
  static async start(t) {
    const binary = process.env.SLUICEGATE;
    assert.ok(binary && fs.existsSync(binary), "SLUICEGATE must be the path of the gateway's binary");
    const gateway = new Gateway();
    t.after(() => gateway.kill());
    gateway.binary = path.resolve(binary);
    gateway.directory = makeDirectory(t);
    // Another program may take the port before the gateway does.
    for (let tries = 0; tries < 3; tries++) {
      gateway.port = await freePort();
      if (await gateway.start()) return gateway;
    }
    assert.fail(`the gateway does not start:\n${fs.readFileSync(path.join(gateway.directory, "log"))}`);
  }

  get address() {
    return `127.0.0.1:${this.port}`;
  }

  async start() {
    const file = path.join(this.directory, "gateway.toml");
    fs.writeFileSync(file, config(this.port));
    const log = fs.openSync(path.join(this.directory, "log"), "a");
    const child = spawn(this.binary, ["run", "--config", file], { cwd: this.directory, stdio: ["ignore", log, log] });
    fs.closeSync(log);
    this.child = child;
    this.exited = new Promise((resolve) => child.once("exit", resolve));
    const end = performance.now() + 60_000;
    while (performance.now() < end && child.exitCode === null) {
      if (await this.isHealthy()) return child.exitCode === null;
      await sleep(20);
    }
    await this.kill();
    return false;
  }

  isHealthy() {
    return new Promise((resolve) => {
      const asked = http.get(`http://${this.address}/healthz`, { agent: false, timeout: 5000 }, (answer) => {
        answer.resume();
        resolve(answer.statusCode === 200);
      });
      asked.on("timeout", () => asked.destroy());
      asked.on("error", () => resolve(false));
    });
  }

  async stop() {
    this.child.kill("SIGSTOP");
    const tasks = `/proc/${this.child.pid}/task`;
    const isStopped = (task) => /\) T /.test(fs.readFileSync(`${tasks}/${task}/stat`, "latin1"));
    await until(() => fs.readdirSync(tasks).every(isStopped));
  }

  async kill() {
    this.child?.kill("SIGKILL");
    await this.exited;
  }
}

function httpAnswer(body, status = "200 OK", more = "") {
  const text = typeof body === "string" ? body : JSON.stringify(body);
  const head = `HTTP/1.1 ${status}\r\ncontent-type: application/json\r\n${more}`;
  return `${head}content-length: ${Buffer.byteLength(text)}\r\n\r\n${text}`;
}

function decision(allowed, remaining, retry_after_ms, reset_ms) {
  return httpAnswer({ allowed, limit: "l", remaining, limit_value: 5, retry_after_ms, reset_ms, shadow: false });
}

const allowed = (retryAfterMs = 0) => decision(true, 4, retryAfterMs, 1200);
const refused = (retryAfterMs) => decision(false, 0, retryAfterMs, retryAfterMs);
const never = () => new Promise(() => {});

/** Speaks the protocol as badly as a test wants: `behave(number, socket)` gives the answer, or null to close. */
class Stub {
  connections = 0;
  ended = 0;
  questions = [];
  sockets = new Set();

  static async start(t, behave, where = { port: 0, host: "127.0.0.1" }) {
    const stub = new Stub();
    stub.behave = behave;
    const server = net.createServer((socket) => stub.serve(socket)).listen(where);
    await new Promise((resolve, reject) => server.once("listening", resolve).once("error", reject));
    stub.address = where.path ? `unix:${where.path}` : `127.0.0.1:${server.address().port}`;
    stub.port = server.address().port;
    t.after(() => {
      server.close();
      for (const socket of stub.sockets) socket.destroy();
    });
    return stub;
  }

  serve(socket) {
    this.connections++;
    this.sockets.add(socket);
    let got = "";
    socket.on("error", () => {});
    socket.on("close", () => {
      this.sockets.delete(socket);
      this.ended++;
    });
    socket.setEncoding("utf8").on("data", async (piece) => {
      got += piece;
      const [, length, body] = /^POST \/v1\/check HTTP\/1\.1\r\n.*content-length: (\d+)\r\n\r\n(.*)$/s.exec(got) ?? [];
      if (length === undefined || Buffer.byteLength(body) < Number(length)) return;
      assert.equal(Buffer.byteLength(body), Number(length), "more than one question at a time");
      got = "";
      const answer = await this.behave(this.questions.push(JSON.parse(body)), socket);
      if (answer === null) socket.destroy();
      else if (answer) socket.write(answer);
    });
  }
}

describe("the real gateway", () => {
  test("three pass and the fourth is refused", async (t) => {
    const clock = { ms: 1000 };
    const client = makeClient(t, (await Gateway.start(t)).address, {}, clock);
    const ask = () => client.allowRequest("per-key", "a");
    const passed = await inTurn(3, ask);
    for (const [number, { resetMs, ...others }] of passed.entries()) {
      const numbers = { remaining: 2 - number, limitValue: 3, retryAfterMs: 0 };
      assert.deepEqual(others, { allowed: true, limit: "per-key", ...numbers, shadow: false, source: "gateway" });
      assert.ok(resetMs > 0 && resetMs <= 3_600_000, resetMs);
    }
    const refusal = await ask();
    assert.deepEqual([refusal.allowed, refusal.source], [false, "gateway"]);
    assert.ok(refusal.retryAfterMs > 0 && refusal.retryAfterMs <= 3_600_000, refusal.retryAfterMs);
    clock.ms += 500;
    const again = await ask();
    assert.deepEqual([again.allowed, again.source], [false, "remembered"]);
    assert.equal(again.retryAfterMs, refusal.retryAfterMs - 500);
    clock.ms += 500;
    assert.equal((await ask()).source, "gateway");
    assert.equal((await client.allowRequest("per-key", "b")).allowed, true);
    assert.deepEqual(client.stats(), { asked: 6, askedAgain: 0, remembered: 1, failures: 0, skipped: 0 });
    assert.equal(client.lastFailure, null);
  });

  test("a key of several parts", async (t) => {
    const client = makeClient(t, (await Gateway.start(t)).address);
    const decisions = await inTurn(4, () => client.allowRequest("per-pair", ["192.0.2.7", "a"]));
    assert.deepEqual(decisions.map((one) => one.allowed), [true, true, true, false]);
    assert.equal((await client.allowRequest("per-pair", ["192.0.2.8", "a"])).allowed, true);
  });

  test("a cost", async (t) => {
    const client = makeClient(t, (await Gateway.start(t)).address);
    assert.equal((await client.allowRequest("per-key", "a", 2)).remaining, 1);
    assert.equal((await client.allowRequest("per-key", "a", 2)).allowed, false);
    assert.equal((await client.allowRequest("per-key", "a")).allowed, true, "a refusal of cost 2 says nothing of cost 1");
    const tooMuch = await client.allowRequest("per-key", "b", 4);
    assert.deepEqual([tooMuch.allowed, tooMuch.retryAfterMs], [false, null]);
  });

  test("mistakes of the caller are errors and no failures", async (t) => {
    const client = makeClient(t, (await Gateway.start(t)).address);
    const wrong = [
      [404, "no-such", "a", 1],
      [400, "per-pair", "a", 1],
      [400, "per-key", null, 1],
      [400, "per-key", "", 1],
      [400, "per-key", "a", 0],
      [400, "per-key", "\ud800", 1],
      [413, "per-key", "a".repeat(1024 * 1024), 1],
      [413, "per-key", "é".repeat(600 * 1024), 1],
    ];
    for (const [status, ...question] of wrong) {
      const isRight = (error) => error instanceof SluicegateError && error.status === status && error.detail.length > 0;
      await assert.rejects(client.allowRequest(...question), isRight, String(question).slice(0, 40));
    }
    // The last two were not even asked.
    assert.deepEqual(client.stats(), { asked: 6, askedAgain: 0, remembered: 0, failures: 0, skipped: 0 });
    assert.equal((await client.allowRequest("per-key", "a")).source, "gateway");
  });

  test("of many questions at once three pass", async (t) => {
    const gateway = await Gateway.start(t);
    for (const remember of [0, 1024]) {
      const client = makeClient(t, gateway.address, { remember });
      const ask = () => client.allowRequest("per-key", `key of ${remember}`);
      const decisions = [...(await atOnce(200, ask)), ...(await atOnce(40, () => inTurn(5, ask))).flat()];
      assert.equal(decisions.filter((one) => one.allowed).length, 3);
      const { asked, remembered, failures, skipped } = client.stats();
      assert.deepEqual([asked + remembered, failures, skipped], [400, 0, 0]);
      assert.equal(remembered > 0, remember > 0);
    }
  });

  test("questions at once get their own answers", async (t) => {
    const client = makeClient(t, (await Gateway.start(t)).address);
    const ask = (number) => inTurn(3, async () => (await client.allowRequest("per-key", `key ${number}`)).remaining);
    assert.deepEqual(await atOnce(200, ask), Array(200).fill([2, 1, 0]));
  });

  test("stopped, killed and back", async (t) => {
    const clock = { ms: 1000 };
    const gateway = await Gateway.start(t);
    const client = makeClient(t, gateway.address, {}, clock);
    const refusing = makeClient(t, gateway.address, { onFailure: "refuse" }, clock);
    const ask = () => client.allowRequest("per-key", "a");
    for (const one of [client, refusing]) {
      assert.equal((await one.allowRequest("per-key", "a")).source, "gateway");
      one._timeout = 50;
    }
    await gateway.stop();
    const unknown = { limit: "per-key", remaining: null, limitValue: null, resetMs: null, shadow: false, source: "default" };
    assert.deepEqual(await ask(), { allowed: true, retryAfterMs: 0, ...unknown });
    assert.deepEqual(await refusing.allowRequest("per-key", "a"), { allowed: false, retryAfterMs: null, ...unknown });
    await gateway.kill();
    client._timeout = LONG;
    await inTurn(2, ask);
    assert.match(client.lastFailure, /ECONNREFUSED/);
    assert.deepEqual(client.stats(), { asked: 4, askedAgain: 0, remembered: 0, failures: 3, skipped: 0 });
    assert.ok(await gateway.start());
    clock.ms += 999;
    assert.equal((await ask()).source, "default");
    assert.equal(client.stats().skipped, 1);
    clock.ms += 1;
    assert.equal((await ask()).source, "gateway");
    assert.equal((await ask()).source, "gateway");
  });

  test("a kept connection outlives its gateway", async (t) => {
    const gateway = await Gateway.start(t);
    const client = makeClient(t, gateway.address);
    await client.allowRequest("per-key", "a");
    await gateway.kill();
    assert.ok(await gateway.start());
    assert.equal((await client.allowRequest("per-key", "a")).source, "gateway");
    assert.equal(client.stats().failures, 0);
  });

  test("the default timeout holds with the real clock", async (t) => {
    const gateway = await Gateway.start(t);
    await gateway.stop();
    const client = new Sluicegate(gateway.address);
    t.after(() => client.close());
    const start = performance.now();
    const { allowed, source } = await client.allowRequest("per-key", "a");
    const took = performance.now() - start;
    assert.deepEqual([allowed, source], [true, "default"]);
    assert.ok(took >= 19 && took < 5000, String(took)); // 20 ms, less the rest of a ms, and a very busy machine
  });

  test("a Unix socket", async (t) => {
    const client = makeClient(t, `unix:${(await Gateway.start(t)).directory}/check.sock`);
    const decisions = await inTurn(4, () => client.allowRequest("per-key", "u"));
    assert.deepEqual(decisions.map((one) => [one.allowed, one.remaining]), [[true, 2], [true, 1], [true, 0], [false, 0]]);
  });

  test("a program ends by itself while connections are kept", async (t) => {
    const program = `
      import { Sluicegate } from ${JSON.stringify(new URL("./sluicegate.mjs", import.meta.url).href)};
      const gate = new Sluicegate(${JSON.stringify((await Gateway.start(t)).address)}, { timeout: ${LONG} });
      // A kept connection keeps the process alive again while it has a question.
      for (let i = 0; i < 3; i++) console.log((await gate.allowRequest("per-key", "a")).remaining);`;
    const child = spawn(process.execPath, ["--input-type=module", "-e", program], { stdio: ["ignore", "pipe", "inherit"] });
    t.after(() => child.kill("SIGKILL"));
    let printed = "";
    child.stdout.on("data", (piece) => (printed += piece));
    await until(() => child.exitCode !== null && child.stdout.readableEnded);
    assert.deepEqual([child.exitCode, printed], [0, "2\n1\n0\n"]);
  });
});

describe("slow answers", () => {
  test("a trickle does not extend the deadline", async (t) => {
    const stub = await Stub.start(t, async (_, socket) => {
      // A right answer, if one waits for it.
      for (const byte of httpAnswer("{}", "200 OK", `x: ${"x".repeat(3000)}\r\n`)) {
        if (socket.destroyed) break;
        socket.write(byte);
        await sleep(5);
      }
      return null;
    });
    const client = makeClient(t, stub.address, { timeout: 100 });
    const start = performance.now();
    const { allowed, source } = await client.allowRequest("l", "k");
    assert.ok(performance.now() - start >= 99);
    assert.deepEqual([allowed, source], [true, "default"]);
    assert.equal(client.stats().failures, 1);
    assert.match(client.lastFailure, /in time/);
  });

  test("a late answer is not that of the next question", async (t) => {
    let answerLate;
    const late = new Promise((resolve) => (answerLate = resolve));
    const stub = await Stub.start(t, (number) => (number === 2 ? late : allowed()));
    const client = makeClient(t, stub.address);
    const ask = () => client.allowRequest("l", "k");
    await ask();
    client._timeout = 50;
    assert.equal((await ask()).source, "default");
    answerLate(refused(1000));
    client._timeout = LONG;
    const { allowed: passes, source } = await ask();
    assert.deepEqual([passes, source], [true, "gateway"]);
    assert.deepEqual([stub.connections, stub.questions.length], [2, 3], "a timeout is not asked again");
  });

  test("a question that is asked again has no more time", async (t) => {
    const stub = await Stub.start(t, (number) => (number === 1 ? allowed() : number === 2 ? null : never()));
    const client = makeClient(t, stub.address);
    await client.allowRequest("l", "k");
    const timers = t.mock.method(globalThis, "setTimeout");
    client._timeout = 100;
    const start = performance.now();
    assert.equal((await client.allowRequest("l", "k")).source, "default");
    assert.ok(performance.now() - start >= 99);
    assert.equal(timers.mock.calls.filter((call) => call.arguments[1] === 100).length, 1);
    assert.deepEqual([client.stats().askedAgain, client.stats().failures], [1, 1]);
  });

  test("an answer that is there counts, however long the program computes", async (t) => {
    // The stub runs in a thread of its own, and raises a flag once it has answered the second question.
    const answered = new Int32Array(new SharedArrayBuffer(4));
    const code = `
      const { workerData: { answered, answer }, parentPort } = require("node:worker_threads");
      const server = require("node:net").createServer((socket) => {
        socket.on("error", () => {});
        socket.on("data", () => socket.write(answer, () => { Atomics.add(answered, 0, 1); Atomics.notify(answered, 0); }));
      });
      server.listen(0, "127.0.0.1", () => parentPort.postMessage(server.address().port));`;
    const worker = new Worker(code, { eval: true, workerData: { answered, answer: allowed() } });
    t.after(() => worker.terminate());
    const port = await new Promise((resolve) => worker.once("message", resolve));
    const client = makeClient(t, `127.0.0.1:${port}`);
    await client.allowRequest("l", "k");
    await until(() => Atomics.load(answered, 0) === 1);
    client._timeout = 20;
    const question = client.allowRequest("l", "k");
    assert.notEqual(Atomics.wait(answered, 0, 1, LONG), "timed-out");
    computeFor(50);
    assert.equal((await question).source, "gateway");
  });
});

describe("memory", () => {
  test("a refusal is remembered until it ends", async (t) => {
    const clock = { ms: 1000 };
    const stub = await Stub.start(t, () => refused(500));
    const client = makeClient(t, stub.address, {}, clock);
    const first = await client.allowRequest("l", "k");
    assert.deepEqual([first.source, first.retryAfterMs, first.resetMs], ["gateway", 500, 500]);
    clock.ms += 375;
    for (const again of await inTurn(10, () => client.allowRequest("l", "k"))) {
      assert.deepEqual([again.allowed, again.source], [false, "remembered"]);
      assert.deepEqual([again.retryAfterMs, again.resetMs, again.limitValue], [125, 125, 5]);
    }
    assert.equal(stub.questions.length, 1);
    clock.ms += 125;
    assert.equal((await client.allowRequest("l", "k")).source, "gateway");
    assert.equal(stub.questions.length, 2);
  });

  test("a refusal is remembered for a second at most", async (t) => {
    for (const [told, left] of [[60_000, 59_001], [null, null]]) {
      const clock = { ms: 1000 };
      const stub = await Stub.start(t, () => refused(told));
      const client = makeClient(t, stub.address, {}, clock);
      await client.allowRequest("l", "k");
      clock.ms += 999;
      const again = await client.allowRequest("l", "k");
      assert.deepEqual([again.source, again.retryAfterMs], ["remembered", left]);
      clock.ms += 1;
      assert.equal((await client.allowRequest("l", "k")).source, "gateway");
      assert.equal(stub.questions.length, 2);
    }
  });

  test("its time begins with the question", async (t) => {
    const clock = { ms: 1000 };
    const stub = await Stub.start(t, () => {
      clock.ms += 400;
      return refused(500);
    });
    const client = makeClient(t, stub.address, {}, clock);
    await client.allowRequest("l", "k");
    assert.equal((await client.allowRequest("l", "k")).retryAfterMs, 100);
    clock.ms += 100;
    assert.equal((await client.allowRequest("l", "k")).source, "gateway");
  });

  test("only the same question is answered from memory", async (t) => {
    const stub = await Stub.start(t, () => refused(60_000));
    const client = makeClient(t, stub.address);
    const different = [
      ["l", "k", 2],
      ["l", "k"],
      ["l", "k", 3],
      ["l", "K"],
      ["L", "k"],
      ["l", ["k", "k"]],
      ["l", 'k","k'],
      ["l", "k\r\nx: y"],
      ["__proto__", ["__proto__", "constructor"]],
      ["l"],
    ];
    for (const question of different) assert.equal((await client.allowRequest(...question)).source, "gateway");
    for (const question of [...different, ["l", ["k"], 1], ["l", [], 1], ["l", undefined, 1]]) {
      assert.equal((await client.allowRequest(...question)).source, "remembered");
    }
    const asked = different.map(([limit, key, cost = 1]) => (key ? { limit, cost, key: [key].flat() } : { limit, cost }));
    assert.deepEqual(stub.questions, asked);
  });

  test("the memory is bounded", async (t) => {
    const stub = await Stub.start(t, () => refused(60_000));
    const client = makeClient(t, stub.address, { remember: 2 });
    const sources = await inTurn(6, async (number) => (await client.allowRequest("l", "abacab"[number])).source);
    // "c" takes the place of "b", since "a" was used later.
    assert.deepEqual(sources, ["gateway", "gateway", "remembered", "gateway", "remembered", "gateway"]);
    const forgetful = makeClient(t, stub.address, { remember: 0 });
    for (const one of await inTurn(2, () => forgetful.allowRequest("l", "k"))) assert.equal(one.source, "gateway");
    for (const one of await inTurn(2, () => client.allowRequest("l", "k".repeat(5000)))) assert.equal(one.source, "gateway");
  });

  test("permission is not remembered", async (t) => {
    for (const answer of [allowed(), allowed(null)]) {
      const client = makeClient(t, (await Stub.start(t, () => answer)).address);
      for (const one of await inTurn(3, () => client.allowRequest("l", "k"))) assert.equal(one.source, "gateway");
    }
  });

  test("the program cannot change it", async (t) => {
    const client = makeClient(t, (await Stub.start(t, () => refused(60_000))).address);
    const first = await client.allowRequest("l", "k");
    assert.throws(() => (first.allowed = true), TypeError);
    assert.equal((await client.allowRequest("l", "k")).allowed, false);
  });
});

describe("failures", () => {
  test("after three in a row no question for a second", async (t) => {
    const clock = { ms: 1000 };
    const stub = await Stub.start(t, () => null);
    const client = makeClient(t, stub.address, {}, clock);
    const ask = () => client.allowRequest("l", "k");
    // After a second one question, and again none.
    for (const expected of [3, 4]) {
      for (const one of await inTurn(20, ask)) assert.equal(one.source, "default");
      assert.deepEqual([stub.connections, stub.questions.length], [expected, expected]);
      clock.ms += 999;
      await ask();
      assert.equal(stub.connections, expected);
      clock.ms += 1;
    }
    assert.deepEqual(client.stats(), { asked: 4, askedAgain: 0, remembered: 0, failures: 4, skipped: 38 });
  });

  test("an answer between them ends the row", async (t) => {
    for (const answer of [allowed(), httpAnswer("", "404 Not Found"), httpAnswer("", "503 Service Unavailable")]) {
      const stub = await Stub.start(t, (number) => (number % 3 === 0 ? answer : httpAnswer("", "500 Internal")));
      const client = makeClient(t, stub.address);
      await inTurn(12, () => client.allowRequest("l", "k").catch((error) => assert.equal(error.status, 404)));
      assert.deepEqual([stub.connections, stub.questions.length, client.stats().skipped], [1, 12, 0]);
      assert.equal(client.stats().failures, answer.includes("503") ? 12 : 8);
    }
  });

  test("a limit that cannot be asked does not stop the questions", async (t) => {
    const stub = await Stub.start(t, () => httpAnswer("", "503 Service Unavailable"));
    const client = makeClient(t, stub.address);
    for (const one of await inTurn(9, () => client.allowRequest("l", "k"))) assert.equal(one.source, "default");
    assert.deepEqual([stub.questions.length, client.stats().failures], [9, 9]);
  });

  test("while one tries the others get the default", async (t) => {
    const clock = { ms: 1000 };
    let goOn;
    const late = new Promise((resolve) => (goOn = resolve));
    const stub = await Stub.start(t, (number) => (number <= 3 ? null : late));
    const client = makeClient(t, stub.address, {}, clock);
    const ask = () => client.allowRequest("l", "k");
    await inTurn(3, ask);
    clock.ms += 1000;
    const tried = ask();
    await until(() => stub.questions.length === 4);
    clock.ms += 1000;
    assert.equal((await ask()).source, "default");
    goOn(allowed());
    assert.equal((await tried).source, "gateway");
    assert.equal((await ask()).source, "gateway");
    assert.equal(client.stats().skipped, 1);
  });

  test("the one that tries takes a new connection", async (t) => {
    const clock = { ms: 1000 };
    const stub = await Stub.start(t, (number) => (number <= 3 ? httpAnswer("", "500 Internal") : allowed()));
    const client = makeClient(t, stub.address, {}, clock);
    await inTurn(3, () => client.allowRequest("l", "k"));
    clock.ms += 1000;
    assert.equal((await client.allowRequest("l", "k")).source, "gateway");
    assert.equal(stub.connections, 2);
  });

  test("answers that are none", async (t) => {
    const told = { limit: "l", remaining: 1, limit_value: 5, retry_after_ms: 0, reset_ms: 0, shadow: false };
    const wrong = [
      "SSH-2.0-OpenSSH\r\n\r\n",
      allowed().replace("1.1", "1.0"),
      allowed().replace("200", "2000"),
      "HTTP/1.1 200 OK\r\n\r\n",
      "HTTP/1.1 200 OK\r\ncontent-length\r\n\r\n",
      "HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n{}",
      allowed().replace("content-length: ", "content-length: +"),
      allowed().replace(/content-length: (\d+)/, (_, digits) => `content-length: 0x${Number(digits).toString(16)}`),
      allowed().replace("content-type", "content-length: 1\r\ncontent-type"),
      "HTTP/1.1 100 Continue\r\ncontent-length: 0\r\n\r\n",
      allowed().replace("content-type", "Transfer-Encoding: chunked\r\ncontent-type"),
      "HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n" + " ".repeat(100_000),
      "HTTP/1.1 200 OK\r\n" + "x: y\r\n".repeat(20_000),
      httpAnswer("no JSON"),
      httpAnswer([]),
      httpAnswer("null"),
      httpAnswer("[".repeat(50_000)),
      httpAnswer({ allowed: 1, ...told }),
      httpAnswer({ allowed: false, limit: "l" }),
      httpAnswer({ allowed: true, ...told, shadow: undefined }),
      httpAnswer({ allowed: true, ...told, limit: {} }),
      decision(true, 4, 0, "12"),
      allowed().replace("1200", "1e999"),
      allowed().replace("200 OK", "301 OK"),
      httpAnswer({ detail: "away" }, "503 Service Unavailable"),
      httpAnswer("", "429 Too Many Requests"),
      httpAnswer("", "408 Request Timeout"),
    ];
    for (const answer of wrong) {
      const client = makeClient(t, (await Stub.start(t, () => answer)).address);
      assert.equal((await client.allowRequest("l", "k")).source, "default", answer.slice(0, 80));
      assert.equal(client.stats().failures, 1);
      assert.doesNotMatch(client.lastFailure, /in time|connection ended/, answer.slice(0, 80));
    }
  });

  test("an answer in pieces, with names in any case", async (t) => {
    const stub = await Stub.start(t, async (_, socket) => {
      const whole = httpAnswer({ ...JSON.parse(refused(7).split("\r\n\r\n")[1]), limit: "café", __proto__: null });
      for (const byte of Buffer.from(whole.replace("content-length", "Content-LENGTH"))) {
        socket.write(Buffer.of(byte));
        await new Promise(setImmediate);
      }
      return "";
    });
    const client = makeClient(t, stub.address);
    assert.equal((await client.allowRequest("l", "k")).limit, "café");
    assert.equal((await client.allowRequest("l", "K")).limit, "café");
    assert.equal(stub.connections, 1);
  });

  test("statuses that are mistakes of the caller", async (t) => {
    for (const status of [400, 403, 404, 405, 413, 415]) {
      for (const [body, detail] of [[{ detail: "so it is" }, "so it is"], ["<h1>", "<h1>"], [[], "[]"], ["null", "null"]]) {
        const client = makeClient(t, (await Stub.start(t, () => httpAnswer(body, `${status} x`))).address);
        await assert.rejects(client.allowRequest("l", "k"), { name: "SluicegateError", status, detail });
        assert.equal(client.stats().failures, 0);
      }
    }
  });
});

describe("connections", () => {
  test("one is kept", async (t) => {
    const stub = await Stub.start(t, () => allowed());
    const client = makeClient(t, stub.address);
    await inTurn(20, () => client.allowRequest("l", "k"));
    assert.deepEqual([stub.connections, stub.questions.length], [1, 20]);
  });

  test("32 are kept at most", async (t) => {
    let answerAll;
    const all = new Promise((resolve) => (answerAll = resolve));
    const stub = await Stub.start(t, () => all);
    const client = makeClient(t, stub.address);
    const asked = atOnce(40, () => client.allowRequest("l", "k"));
    await until(() => stub.questions.length === 40);
    answerAll(allowed());
    for (const one of await asked) assert.equal(one.source, "gateway");
    await until(() => stub.ended >= 8);
    await atOnce(32, () => client.allowRequest("l", "k"));
    assert.deepEqual([stub.connections, stub.ended], [40, 8]);
  });

  test("of many questions at once few make a connection at a time", async (t) => {
    const stub = await Stub.start(t, () => allowed());
    const client = makeClient(t, stub.address);
    const connect = t.mock.method(net, "connect");
    const asked = atOnce(100, () => client.allowRequest("l", "k"));
    await Promise.resolve();
    assert.equal(connect.mock.callCount(), 8);
    for (const one of await asked) assert.equal(one.source, "gateway");
    assert.equal(stub.questions.length, 100);
  });

  test("connections that are never made hold up no question", async (t) => {
    const clock = { ms: 1000 };
    const stub = await Stub.start(t, () => allowed());
    const client = makeClient(t, stub.address, { timeout: 50 }, clock);
    const sockets = [];
    const connect = t.mock.method(net, "connect", () => {
      sockets.push(Object.assign(new net.Socket(), { connecting: true }));
      return sockets.at(-1);
    });
    for (const one of await atOnce(10, () => client.allowRequest("l", "k"))) assert.equal(one.source, "default");
    assert.equal(client.stats().failures, 10);

    // A question that waits for others to connect has a timeout of its own.
    const patient = makeClient(t, stub.address);
    const asked = atOnce(8, () => patient.allowRequest("l", "k"));
    patient._timeout = 50;
    assert.equal((await patient.allowRequest("l", "k")).source, "default");
    assert.match(patient.lastFailure, /in time/);
    for (const socket of sockets) socket.destroy();
    for (const one of await asked) assert.equal(one.source, "default");

    connect.mock.restore();
    clock.ms += 1000;
    client._timeout = LONG;
    assert.equal((await client.allowRequest("l", "k")).source, "gateway");
    for (const one of await atOnce(10, () => client.allowRequest("l", "k"))) assert.equal(one.source, "gateway");
  });

  test("one that ended while it was kept gets no question", async (t) => {
    const stub = await Stub.start(t, (_, socket) => {
      socket.end(allowed());
      return "";
    });
    const client = makeClient(t, stub.address);
    for (let number = 1; number <= 3; number++) {
      assert.equal((await client.allowRequest("l", "k")).source, "gateway");
      await until(() => stub.ended === number);
    }
    assert.deepEqual([stub.connections, stub.questions.length], [3, 3]);
    assert.deepEqual([client.stats().failures, client.stats().askedAgain], [0, 0]);
  });

  test("one that speaks while it was kept gets no question", async (t) => {
    const stub = await Stub.start(t, (number, socket) => {
      if (number === 1) setImmediate(() => setImmediate(() => socket.write(refused(1000))));
      return allowed();
    });
    const client = makeClient(t, stub.address);
    await client.allowRequest("l", "k");
    await until(() => stub.ended === 1);
    assert.equal((await client.allowRequest("l", "k")).allowed, true);
    assert.deepEqual([stub.connections, client.stats().askedAgain], [2, 0]);
  });

  test("one that ends under a question is asked again over a new one", async (t) => {
    for (const close of [(socket) => socket.destroy(), (socket) => socket.end(), (socket) => socket.resetAndDestroy()]) {
      const stub = await Stub.start(t, (number, socket) => {
        if (number !== 2) return allowed();
        close(socket);
        return never();
      });
      const client = makeClient(t, stub.address);
      for (const one of await inTurn(2, () => client.allowRequest("l", "k"))) assert.equal(one.source, "gateway");
      assert.deepEqual([stub.connections, stub.questions.length], [2, 3]);
      assert.deepEqual([client.stats().failures, client.stats().askedAgain], [0, 1]);
    }
  });

  test("a new one that ends is a failure", async (t) => {
    const stub = await Stub.start(t, (number) => (number === 1 ? allowed() : null));
    const client = makeClient(t, stub.address);
    const sources = await inTurn(2, async () => (await client.allowRequest("l", "k")).source);
    assert.deepEqual(sources, ["gateway", "default"]);
    assert.deepEqual([stub.connections, stub.questions.length], [2, 3]);
    assert.deepEqual([client.stats().failures, client.stats().askedAgain], [1, 1]);
  });

  test("one that ends within an answer is a failure", async (t) => {
    const stub = await Stub.start(t, (number, socket) => {
      if (number > 1) socket.end(allowed().slice(0, 20));
      return number > 1 ? "" : allowed();
    });
    const client = makeClient(t, stub.address);
    const sources = await inTurn(2, async () => (await client.allowRequest("l", "k")).source);
    assert.deepEqual(sources, ["gateway", "default"]);
    assert.deepEqual([stub.connections, stub.questions.length], [1, 2]);
  });

  test("one is not kept where the gateway says so or says too much", async (t) => {
    for (const answer of [httpAnswer("{}", "503 x", "Connection: Close\r\n"), `${allowed()}more`]) {
      const stub = await Stub.start(t, () => answer);
      const client = makeClient(t, stub.address);
      await inTurn(2, () => client.allowRequest("l", "k"));
      assert.equal(stub.connections, 2);
    }
  });

  test("a Unix socket", async (t) => {
    const stub = await Stub.start(t, () => allowed(), { path: path.join(makeDirectory(t), "s") });
    const client = makeClient(t, stub.address);
    for (const one of await inTurn(2, () => client.allowRequest("l", "k"))) assert.equal(one.source, "gateway");
    assert.equal(stub.connections, 1);
    const nobody = makeClient(t, `${stub.address}-not`);
    assert.equal((await nobody.allowRequest("l", "k")).source, "default");
    assert.match(nobody.lastFailure, /ENOENT/);
  });

  test("one is not kept if the answer came before the question had left", async (t) => {
    let connections = 0;
    const where = path.join(makeDirectory(t), "s"); // its buffer is smaller than the question
    const server = net.createServer((socket) => {
      connections++;
      t.after(() => socket.destroy());
      socket.on("error", () => {}).once("data", () => socket.pause().write(allowed()));
    });
    await new Promise((resolve) => server.listen(where, resolve));
    t.after(() => server.close());
    const client = makeClient(t, `unix:${where}`);
    for (const one of await inTurn(2, () => client.allowRequest("l", "k".repeat(1024 * 1000)))) {
      assert.equal(one.source, "gateway");
    }
    assert.equal(connections, 2);
  });

  test("each address of a name is tried", async (t) => {
    const stub = await Stub.start(t, () => allowed());
    const { connect } = net;
    const lookup = (_, options, done) => {
      const [first, second] = [{ address: "::1", family: 6 }, { address: "127.0.0.1", family: 4 }];
      if (options.all) done(null, [first, second]);
      else done(null, first.address, first.family);
    };
    t.mock.method(net, "connect", (target) => connect({ ...target, lookup }));
    const client = makeClient(t, `name:${stub.port}`);
    assert.equal((await client.allowRequest("l", "k")).source, "gateway", client.lastFailure);
    const nobody = makeClient(t, "name:1");
    assert.equal((await nobody.allowRequest("l", "k")).source, "default");
    assert.match(nobody.lastFailure, /127\.0\.0\.1:1/);
  });

  test("a name, and one that there is not", async (t) => {
    const stub = await Stub.start(t, () => allowed());
    const client = makeClient(t, `localhost:${stub.port}`);
    assert.equal((await client.allowRequest("l", "k")).source, "gateway", client.lastFailure);
    const nobody = makeClient(t, "no-such-host.invalid:9080", { timeout: 1000 });
    assert.equal((await nobody.allowRequest("l", "k")).source, "default");
    assert.ok(nobody.lastFailure);
  });

  test("close", async (t) => {
    let goOn;
    const late = new Promise((resolve) => (goOn = resolve));
    const stub = await Stub.start(t, (number) => (number === 1 ? allowed() : late));
    const client = makeClient(t, stub.address);
    await client.allowRequest("l", "k");
    const asked = atOnce(2, () => client.allowRequest("l", "k"));
    await until(() => stub.questions.length === 3);
    client.close();
    await assert.rejects(client.allowRequest("l", "k"), /closed/);
    goOn(allowed());
    for (const one of await asked) assert.equal(one.source, "gateway");
    await until(() => stub.ended === 2);

    const other = makeClient(t, stub.address);
    await other.allowRequest("l", "k");
    other.close();
    await until(() => stub.ended === 3);
  });

  test("options that are wrong", async (t) => {
    const wrong = [
      { onFailure: "open" },
      { onfailure: "refuse" },
      { timeout: 0 },
      { timeout: NaN },
      { timeout: 2 ** 31 },
      { remember: -1 },
      { remember: 1.5 },
    ];
    for (const options of wrong) {
      assert.throws(() => new Sluicegate("127.0.0.1:9080", options), TypeError, JSON.stringify(options));
    }
    for (const address of ["9080", "a:b", ":9080", "a:99999", "unix:", "a\r\nb:1", "http://a:1", "::1:9080"]) {
      assert.throws(() => new Sluicegate(address), TypeError, address);
    }
    assert.ok(new Sluicegate("[::1]:9080"));
    const client = makeClient(t, "127.0.0.1:9080");
    for (const key of [Buffer.from("bytes"), 17, ["a", 1], ["a", , "b"], {}]) {
      await assert.rejects(client.allowRequest("l", key), TypeError);
    }
    await assert.rejects(client.allowRequest(17, "k"), TypeError);
    for (const cost of [NaN, 1.5, "1", null, 2n]) await assert.rejects(client.allowRequest("l", "k", cost), TypeError);
    assert.equal(client.stats().asked, 0);
  });
});
