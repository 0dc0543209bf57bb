/** Asks a Sluicegate gateway whether a request may go on. README.md says how to use it. */

import net from "node:net";

const FAILURES_IN_A_ROW = 3;
const QUIET = 1000; // ms without a question after so many failures
const REMEMBERED = 1000; // ms that a refusal is remembered, at most
const KEPT = 32; // connections that wait for their next question
const CONNECTING = 8; // connections that are made at a time
const MAX_QUESTION = 1024 * 1024; // the gateway takes no larger one
const MAX_REMEMBERED = 4096; // a longer question is not remembered: else giant keys fill the memory
const MAX_ANSWER = 64 * 1024;
const CALLERS_MISTAKES = [400, 403, 404, 405, 413, 415];
const EMPTY = Buffer.alloc(0);

/**
 * @typedef {object} Decision
 * @property {boolean} allowed
 * @property {string | null} limit
 * @property {number | null} remaining how many more of cost 1 would pass
 * @property {number | null} limitValue the quota
 * @property {number | null} retryAfterMs 0 if allowed; null: never, or not known
 * @property {number | null} resetMs when `remaining` grows
 * @property {boolean} shadow a limit in shadow mode would have refused
 * @property {"gateway" | "remembered" | "default"} source
 */

/**
 * @typedef {object} Options
 * @property {number} [timeout] ms for a whole question: connect, send and read
 * @property {"allow" | "refuse"} [onFailure] the decision where no answer comes
 * @property {number} [remember] refusals that are remembered, at most
 * @property {() => number} [now] a monotonic clock in ms; tests replace it
 */

/** @typedef {{ status: number, body: Buffer, mayKeep: boolean }} Answer */

/** The question is wrong (400), there is no such limit (404), or this program may not ask (403). */
export class SluicegateError extends Error {
  /** @param {number} status @param {string} detail */
  constructor(status, detail) {
    super(`${status}: ${detail}`);
    this.name = "SluicegateError";
    this.status = status;
    this.detail = detail;
  }
}

/** The connection ended before a byte of the answer. */
class Unanswered extends Error {}

/** The gateway answers, and cannot decide: the store of the limit is away. */
class Undecided extends Error {}

/** One for the whole program; any number of questions may be under way. */
export class Sluicegate {
  #closed = false;
  /** @type {Connection[]} */
  #kept = [];
  #connecting = 0;
  /** @type {Set<(connection: Connection | null) => void>} questions without a connection; null: make one */
  #waiting = new Set();
  /** @type {Map<string, { since: number, decision: Readonly<Decision> }>} the one used least recently is first */
  #refusals = new Map();
  #inRow = 0;
  #quietUntil = 0;
  #counts = { asked: 0, askedAgain: 0, remembered: 0, failures: 0, skipped: 0 };
  /** @type {string | null} */
  #lastFailure = null;
  /** @type {net.NetConnectOpts} */
  #target;
  #head;
  #allows;
  #remember;
  #now;

  /**
   * @param {string} address "HOST:PORT" or "unix:PATH"
   * @param {Options} [options]
   */
  constructor(address, options = {}) {
    const { timeout = 20, onFailure = "allow", remember = 1024, now = () => performance.now(), ...others } = options;
    // A misspelt "onFailure" must not become the default.
    for (const name of Object.keys(others)) throw new TypeError(`there is no option ${name}`);
    if (onFailure !== "allow" && onFailure !== "refuse") throw new TypeError('onFailure is "allow" or "refuse"');
    if (!(timeout > 0 && timeout < 2 ** 31)) throw new TypeError("timeout is above 0 and below 2^31 ms");
    if (!Number.isSafeInteger(remember) || remember < 0) throw new TypeError("remember is 0 or more");
    const [, v6, name, port] = /^(?:\[([\da-f:.]+)\]|([\w.-]+)):(\d{1,5})$/i.exec(address) ?? [];
    if (address.startsWith("unix:") && address.length > "unix:".length) {
      this.#target = { path: address.slice("unix:".length) };
    } else if (port && Number(port) <= 65535) {
      // Each family is tried: "localhost" may be ::1 first, and the gateway listen at 127.0.0.1.
      this.#target = { host: v6 ?? name, port: Number(port), noDelay: true, autoSelectFamily: true };
    } else {
      throw new TypeError("address is HOST:PORT or unix:PATH");
    }
    const host = port ? address : "localhost";
    this.#head = `POST /v1/check HTTP/1.1\r\nhost: ${host}\r\ncontent-type: application/json\r\n`;
    this.#allows = onFailure === "allow";
    this.#remember = remember;
    this.#now = now;
    this._timeout = timeout; // tests change it
  }

  /**
   * Decides about one request. Rejects with SluicegateError for a mistake of the caller, never for a gateway that is away.
   *
   * @param {string} limit
   * @param {string | readonly string[] | null} [key]
   * @param {number} [cost]
   * @returns {Promise<Readonly<Decision>>}
   */
  async allowRequest(limit, key = null, cost = 1) {
    const parts = key === null ? [] : typeof key === "string" ? [key] : Array.isArray(key) ? [...key] : [key];
    if (typeof limit !== "string" || !parts.every((part) => typeof part === "string")) {
      throw new TypeError("limit is a string, and key is a string or a list of strings");
    }
    // NaN would be null in JSON, and so a cost of 1.
    if (!Number.isSafeInteger(cost)) throw new TypeError("cost is a whole number");
    if (this.#closed) throw new Error("this client is closed");
    const start = this.#now();
    // The same question is the same text, and it can be no other's: it serves as the key of the memory.
    const question = JSON.stringify(parts.length ? { limit, cost, key: parts } : { limit, cost });
    const refusal = this.#recall(question, start);
    if (refusal) return refusal;
    const length = Buffer.byteLength(question);
    // Not sent: a client with a giant key must not bring about the default.
    if (length > MAX_QUESTION) throw new SluicegateError(413, "the question is larger than 1 MiB");
    if (!this.#mayAsk(start)) return this.#default(limit);
    let decision;
    try {
      decision = readAnswer(await this.#ask(`${this.#head}content-length: ${length}\r\n\r\n${question}`));
    } catch (failure) {
      if (failure instanceof SluicegateError) {
        this.#inRow = 0;
        throw failure;
      }
      this.#countFailure(failure); // any: an answer that makes no sense must not break the program
      return this.#default(limit);
    }
    this.#inRow = 0;
    if (!decision.allowed && question.length <= MAX_REMEMBERED) {
      this.#refusals.delete(question);
      // From the start of the question, so that no refusal outlives its time.
      this.#refusals.set(question, { since: start, decision });
      for (const [oldest] of this.#refusals) {
        if (this.#refusals.size <= this.#remember) break;
        this.#refusals.delete(oldest);
      }
    }
    return decision;
  }

  /** Counts since the start. */
  stats() {
    return { ...this.#counts };
  }

  /** Why the last of `stats().failures` got no answer. */
  get lastFailure() {
    return this.#lastFailure;
  }

  /** Closes the connections. A question that is under way ends as usual. */
  close() {
    this.#closed = true;
    this.#closeKept();
  }

  /** @param {string} limit @returns {Readonly<Decision>} */
  #default(limit) {
    const unknown = { remaining: null, limitValue: null, retryAfterMs: this.#allows ? 0 : null, resetMs: null };
    return Object.freeze({ allowed: this.#allows, limit, ...unknown, shadow: false, source: "default" });
  }

  /** @param {string} question @param {number} now @returns {Readonly<Decision> | null} */
  #recall(question, now) {
    const refusal = this.#refusals.get(question);
    if (!refusal) return null;
    this.#refusals.delete(question);
    const { since, decision } = refusal;
    const passed = now - since;
    if (passed >= Math.min(REMEMBERED, decision.retryAfterMs ?? REMEMBERED)) return null;
    this.#refusals.set(question, refusal);
    this.#counts.remembered++;
    const [retryAfterMs, resetMs] = [decision.retryAfterMs, decision.resetMs].map((ms) =>
      ms === null ? null : Math.max(0, Math.ceil(ms - passed)),
    );
    return Object.freeze({ ...decision, retryAfterMs, resetMs, source: "remembered" });
  }

  /** @param {number} now */
  #mayAsk(now) {
    if (this.#inRow >= FAILURES_IN_A_ROW) {
      if (now < this.#quietUntil) {
        this.#counts.skipped++;
        return false;
      }
      // One question tries. The others keep the default until it is done.
      this.#quietUntil = now + this._timeout + QUIET;
    }
    this.#counts.asked++;
    return true;
  }

  /** @param {any} failure */
  #countFailure(failure) {
    this.#counts.failures++;
    const cause = failure.cause ?? failure;
    // An error of several addresses has no text of its own.
    this.#lastFailure = (cause.errors ?? [cause]).map(String).join("; ");
    // One limit whose store is away says nothing about the others.
    this.#inRow = failure instanceof Undecided ? 0 : this.#inRow + 1;
    this.#quietUntil = this.#now() + QUIET;
    // The question that tries needs a new connection: the kept ones may lead nowhere.
    if (this.#inRow >= FAILURES_IN_A_ROW) this.#closeKept();
  }

  /** @param {string} request @returns {Promise<Answer>} */
  async #ask(request) {
    const deadline = new Deadline(this._timeout);
    try {
      const mustWait = this.#kept.length === 0 && this.#connecting >= CONNECTING;
      const kept = mustWait ? await this.#wait(deadline) : this.#kept.pop();
      if (kept) {
        try {
          return await kept.ask(request, deadline);
        } catch (failure) {
          if (!(failure instanceof Unanswered)) throw failure;
          this.#counts.askedAgain++;
        }
      }
      const made = new Connection(this.#target, this.#connected, this.#keep, this.#forget);
      this.#connecting++;
      return await made.ask(request, deadline);
    } finally {
      deadline.cancel();
    }
  }

  /**
   * Of hundreds of questions at once, each would make a connection, and all would be too late. Most of them wait here, and
   * take over one that has done its question.
   *
   * @param {Deadline} deadline
   * @returns {Promise<Connection | null>}
   */
  #wait(deadline) {
    return new Promise((resolve, reject) => {
      this.#waiting.add(resolve);
      deadline.expired = () => {
        this.#waiting.delete(resolve);
        reject(new Error("no answer in time"));
      };
    });
  }

  /** @param {Connection | null} connection */
  #wake(connection) {
    const [first] = this.#waiting;
    if (!first) return false;
    this.#waiting.delete(first);
    first(connection);
    return true;
  }

  #connected = () => {
    this.#connecting--;
    this.#wake(null);
  };

  /** @param {Connection} connection */
  #keep = (connection) => {
    if (this.#wake(connection)) return true;
    if (this.#closed || this.#kept.length >= KEPT) return false;
    this.#kept.push(connection);
    return true;
  };

  /** @param {Connection} connection */
  #forget = (connection) => {
    this.#kept = this.#kept.filter((kept) => kept !== connection);
  };

  #closeKept() {
    const kept = this.#kept;
    this.#kept = [];
    for (const connection of kept) connection.close();
  }
}

/** The end of a whole question. It takes the real clock: `now` may stand still in a test. */
class Deadline {
  #timer;
  expired = () => {};

  /** @param {number} ms */
  constructor(ms) {
    // Timers ring before sockets are read. The answer may be there already: it is read before the immediate.
    this.#timer = setTimeout(() => setImmediate(() => this.expired()), ms);
  }

  cancel() {
    clearTimeout(this.#timer);
    this.expired = () => {};
  }
}

/** A connection has one question at a time. */
class Connection {
  /** @type {{ resolve: (answer: Answer) => void, reject: (failure: Error) => void } | null} */
  #asked = null;
  #got = EMPTY;
  #socket;
  #isConnecting = true;
  #connected;
  #keep;
  #forget;

  /**
   * @param {net.NetConnectOpts} target
   * @param {() => void} connected called once, also where it failed
   * @param {(connection: Connection) => boolean} keep
   * @param {(connection: Connection) => void} forget
   */
  constructor(target, connected, keep, forget) {
    this.#connected = connected;
    this.#keep = keep;
    this.#forget = forget;
    this.#socket = net.connect(target);
    this.#socket.on("connect", () => this.#endConnecting());
    this.#socket.on("data", (piece) => this.#read(piece));
    this.#socket.on("error", (failure) => this.#end(failure));
    for (const event of ["end", "close"]) {
      this.#socket.on(event, () => this.#end(new Error("the connection ended before the answer did")));
    }
  }

  /** @param {string} request @param {Deadline} deadline @returns {Promise<Answer>} */
  ask(request, deadline) {
    return new Promise((resolve, reject) => {
      this.#asked = { resolve, reject };
      // Closed, or a late answer would be taken for that of the next question.
      deadline.expired = () => this.#end(new Error("no answer in time"), true);
      this.#socket.write(request);
    });
  }

  close() {
    this.#socket.destroy();
  }

  #endConnecting() {
    if (this.#isConnecting) this.#connected();
    this.#isConnecting = false;
  }

  /** @param {Buffer} piece */
  #read(piece) {
    if (!this.#asked) return this.#end(new Error("bytes that belong to no question"));
    let answer;
    try {
      this.#got = Buffer.concat([this.#got, piece]);
      answer = parse(this.#got);
    } catch (failure) {
      return this.#end(/** @type {Error} */ (failure));
    }
    if (!answer) return;
    const { resolve } = this.#asked;
    this.#asked = null;
    this.#got = EMPTY;
    // An answer before the whole question was sent: the rest of it would come before the next question.
    const mayKeep = answer.mayKeep && this.#socket.writableLength === 0;
    // A kept connection does not keep the process alive. The timer of a question does.
    if (mayKeep && this.#keep(this)) this.#socket.unref();
    else this.close();
    resolve(answer);
  }

  /** @param {Error} failure */
  #end(failure, isLate = false) {
    this.close();
    this.#endConnecting();
    this.#forget(this);
    const asked = this.#asked;
    this.#asked = null;
    asked?.reject(isLate || this.#got.length ? failure : new Unanswered(failure.message, { cause: failure }));
  }
}

/** @param {Buffer} got @returns {Answer | null} null: more is to come */
function parse(got) {
  const gap = got.indexOf("\r\n\r\n");
  if (gap < 0) {
    if (got.length > MAX_ANSWER) throw new Error("the answer is too long");
    return null;
  }
  const [first, ...lines] = got.toString("latin1", 0, gap).split("\r\n");
  /** @type {Map<string, string>} */
  const fields = new Map();
  for (const line of lines) {
    const [, name, value] = /^([^:]*):?(.*)$/s.exec(line.toLowerCase()) ?? [];
    fields.set(name, fields.has(name) ? `${fields.get(name)}, ${value.trim()}` : value.trim());
  }
  const status = /^HTTP\/1\.1 ([2-5]\d\d)(?: |$)/.exec(first)?.[1];
  const digits = fields.get("content-length") ?? "";
  if (!status || !/^\d+$/.test(digits) || fields.has("transfer-encoding")) {
    throw new Error("the answer is not one of the gateway");
  }
  const end = gap + 4 + Number(digits);
  if (end > MAX_ANSWER) throw new Error("the answer is too long");
  if (got.length < end) return null;
  const mayKeep = got.length === end && fields.get("connection") !== "close";
  return { status: Number(status), body: got.subarray(gap + 4, end), mayKeep };
}

/** @param {Answer} answer @returns {Readonly<Decision>} */
function readAnswer({ status, body }) {
  const text = body.toString();
  if (status === 200) {
    const { allowed, limit, remaining, limit_value, retry_after_ms, reset_ms, shadow } = JSON.parse(text);
    const isDecision =
      typeof allowed === "boolean" &&
      typeof shadow === "boolean" &&
      (limit === null || typeof limit === "string") &&
      [remaining, limit_value, retry_after_ms, reset_ms].every((value) => value === null || Number.isFinite(value));
    if (!isDecision) throw new Error("the answer is no decision");
    const numbers = { remaining, limitValue: limit_value, retryAfterMs: retry_after_ms, resetMs: reset_ms };
    return Object.freeze({ allowed, limit, ...numbers, shadow, source: "gateway" });
  }
  if (CALLERS_MISTAKES.includes(status)) {
    let detail;
    try {
      detail = JSON.parse(text).detail;
    } catch {
      // No JSON: the text itself is the detail.
    }
    throw new SluicegateError(status, typeof detail === "string" ? detail : text.slice(0, 200));
  }
  throw new (status === 503 ? Undecided : Error)(`status ${status}: ${text.slice(0, 200)}`);
}
