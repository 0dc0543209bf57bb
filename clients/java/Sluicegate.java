package io.sluicegate;

import java.io.EOFException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.*;
import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.*;
import java.util.function.LongSupplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Asks a Sluicegate gateway whether a thing may be done now. The gateway needs a listener with {@code decides = "json"}.
 * Make one client for the whole program: any number of threads may use it. README.md says how.
 */
@SuppressWarnings("serial")
public final class Sluicegate implements AutoCloseable {
    /** Stands for a number or a time that is not known, or that never comes. */
    public static final long UNKNOWN = -1;

    /** The decision where no answer comes. */
    public enum OnFailure { ALLOW, REFUSE }

    /** GATEWAY: it was asked. REMEMBERED: it refused the same question less than a second ago. DEFAULT: no answer came. */
    public enum Source { GATEWAY, REMEMBERED, DEFAULT }

    /**
     * Says whether to go on. Each number may be UNKNOWN, and {@code limit} is "" where the gateway names none.
     *
     * @param remaining how many more of cost 1 would pass
     * @param limitValue the quota
     * @param retryAfterMillis 0 if allowed; else when to come back
     * @param resetMillis when {@code remaining} grows
     * @param shadow a limit in shadow mode would have refused
     */
    public record Decision(boolean allowed, String limit, long remaining, long limitValue, long retryAfterMillis,
            long resetMillis, boolean shadow, Source source) {}

    /** Counts since the client was made. README.md says what they mean. */
    public record Stats(long asked, long askedAgain, long failures, long errors, long remembered, long skipped) {}

    /** A mistake of the caller, as a wrong question (400, 413), a program that may not ask (403), no such limit (404). */
    public static final class SluicegateException extends RuntimeException {
        private final int status;
        private final String detail;

        SluicegateException(int status, String detail) {
            super(status + ": " + detail);
            this.status = status;
            this.detail = detail;
        }

        public int status() { return status; }
        public String detail() { return detail; }
    }

    /** The connection ended before a byte of the answer. */
    private static final class Unanswered extends IOException {
        Unanswered(IOException cause) { super(cause); }
    }

    /** The gateway answers 503: it cannot decide, since the store of this limit is away. */
    private static final class Undecided extends IOException {
        Undecided(String message) { super(message); }
    }

    private record Refusal(Decision decision, long start, long keep) {}
    private record Answer(int status, String body, boolean mayKeep) {}

    private static final long MILLI = 1_000_000; // Nanoseconds.
    private static final int FAILURES_IN_ROW = 3;
    private static final long REST = 1000 * MILLI; // Without a question after so many failures.
    private static final long REMEMBER_MILLIS_AT_MOST = 1000;
    private static final int KEPT_AT_MOST = 32; // Connections that wait for their next question.
    private static final int QUESTION_AT_MOST = 1 << 20;
    private static final int ANSWER_AT_MOST = 64 << 10;
    private static final int DEPTH_AT_MOST = 16; // Of JSON.
    private static final Pattern ADDRESS = Pattern.compile("(\\[[0-9A-Fa-f:.]+\\]|[A-Za-z0-9._-]+):([0-9]{1,5})");

    // Tests replace these two. The deadline of a question is always one of the real clock.
    volatile LongSupplier clock = System::nanoTime;
    volatile long timeoutNanos;

    private final boolean defaultAllows;
    private final List<SocketAddress> targets = new ArrayList<>();
    private final String host;

    private final Object lock = new Object(); // Held for moments, never while a question is under way. It guards the rest.
    final ArrayDeque<Connection> kept = new ArrayDeque<>(); // The one used last is the last.
    private final Map<ByteBuffer, Refusal> refusals; // By the hash of the question: keys may be long, and memory is bounded.
    private long asked, askedAgain, failures, errors, remembered, skipped;
    private String lastFailure;
    private int inRow; // Failures since the last answer.
    private long restUntil;
    private boolean trying; // A question is under way that tries whether the gateway is back.
    private boolean closed;

    /** Makes a client with the default options of the gateway at "127.0.0.1:9080" or "unix:/run/sluicegate/check.sock". */
    public static Sluicegate at(String address) {
        return new Sluicegate(address, Duration.ofMillis(20), OnFailure.ALLOW, 1024);
    }

    /**
     * Makes a client. It connects when it first asks. A host name is looked up here, because a look-up has no deadline.
     *
     * @param timeout of a whole question: connect, send and read
     * @param remember refusals that are remembered at most; 0: none
     * @throws UncheckedIOException if the host name is not found
     */
    public Sluicegate(String address, Duration timeout, OnFailure onFailure, int remember) {
        if (timeout.isNegative() || timeout.isZero() || timeout.compareTo(Duration.ofDays(1)) > 0 || remember < 0) {
            throw new IllegalArgumentException("timeout is above 0 and at most a day, and remember is 0 or more");
        }
        timeoutNanos = timeout.toNanos();
        defaultAllows = Objects.requireNonNull(onFailure) == OnFailure.ALLOW;
        refusals = new LinkedHashMap<>(16, 0.75f, true) {
            @Override
            protected boolean removeEldestEntry(Map.Entry<ByteBuffer, Refusal> eldest) { return size() > remember; }
        };
        Matcher parts = ADDRESS.matcher(address);
        if (address.startsWith("unix:") && address.length() > 5) {
            host = "localhost";
            targets.add(UnixDomainSocketAddress.of(address.substring(5)));
        } else if (parts.matches() && Integer.parseInt(parts.group(2)) <= 65535) {
            host = address;
            try {
                for (InetAddress found : InetAddress.getAllByName(parts.group(1))) {
                    targets.add(new InetSocketAddress(found, Integer.parseInt(parts.group(2))));
                }
            } catch (UnknownHostException e) {
                throw new UncheckedIOException(e);
            }
        } else {
            throw new IllegalArgumentException("address is HOST:PORT or unix:PATH");
        }
        warmUp();
    }

    /**
     * Runs the code of a question, but sends none. The JVM loads some hundred classes in it for the first time, which takes
     * longer than 20 ms: the first decisions of each program would be those by default.
     */
    private void warmUp() {
        byte[] question = question("l", 1, new String[] {"\n"});
        hash(question);
        byte[] answer = "HTTP/1.1 200 OK\r\nContent-Length: 23\r\n\r\n{\"allowed\":true,\"x\":12}".getBytes(StandardCharsets.UTF_8);
        try {
            read(parse(answer, answer.length));
            ask(question, new Deadline(0)); // It opens a channel, and ends before it connects.
        } catch (Exception e) {
            // A timeout, as it must be.
        }
    }

    /**
     * Asks whether {@code key} may pass {@code limit} now at this cost (1 or more), and counts it where it may. Give one key
     * for each part of the limit's key, and none for a limit with {@code key = "global"}.
     *
     * @throws SluicegateException for a mistake of the caller, never for a gateway that is away
     * @throws IllegalArgumentException if a text has half a surrogate pair, which has no UTF-8
     * @throws IllegalStateException after close
     */
    public Decision allowRequest(String limit, long cost, String... key) {
        byte[] question = question(limit, cost, key);
        ByteBuffer id = hash(question);
        long start = clock.getAsLong();
        boolean isTrial;
        synchronized (lock) {
            if (closed) throw new IllegalStateException("this client is closed");
            Refusal known = refusals.get(id);
            if (known != null && start - known.start < known.keep) {
                remembered++;
                Decision told = known.decision;
                long ago = Math.max(0, start - known.start) / MILLI;
                return new Decision(false, told.limit, told.remaining, told.limitValue, left(told.retryAfterMillis, ago),
                        left(told.resetMillis, ago), told.shadow, Source.REMEMBERED);
            }
            refusals.remove(id);
            isTrial = inRow >= FAILURES_IN_ROW;
            if (isTrial && (trying || start - restUntil < 0)) {
                skipped++;
                return byDefault(limit);
            }
            trying |= isTrial;
            asked++;
        }
        Deadline deadline = new Deadline(timeoutNanos);
        Object outcome = "an Error of this thread";
        try {
            outcome = read(ask(question, deadline));
        } catch (Exception e) { // Any: an answer that makes no sense must not break the program.
            outcome = e;
        } finally {
            settle(id, start, isTrial, outcome);
            if (deadline.wasInterrupted) Thread.currentThread().interrupt();
        }
        if (outcome instanceof SluicegateException mistake) throw mistake;
        return outcome instanceof Decision decision ? decision : byDefault(limit);
    }

    /** Tells the counts so far. */
    public Stats stats() {
        synchronized (lock) {
            return new Stats(asked, askedAgain, failures, errors, remembered, skipped);
        }
    }

    /** Tells why the last of {@code failures} got no answer; null where there is none. */
    public String lastFailure() {
        synchronized (lock) {
            return lastFailure;
        }
    }

    /** Closes the kept connections. A question that is under way still gets its answer; later ones throw. */
    @Override
    public void close() {
        synchronized (lock) {
            closed = true;
            kept.forEach(Connection::close);
            kept.clear();
        }
    }

    private Decision byDefault(String limit) {
        return new Decision(defaultAllows, limit, UNKNOWN, UNKNOWN, defaultAllows ? 0 : UNKNOWN, UNKNOWN, false, Source.DEFAULT);
    }

    private static long left(long told, long ago) {
        return told == UNKNOWN ? UNKNOWN : Math.max(0, told - ago);
    }

    /** Counts how a question went, and remembers a refusal. */
    private void settle(ByteBuffer id, long start, boolean isTrial, Object outcome) {
        synchronized (lock) {
            trying &= !isTrial;
            if (outcome instanceof Decision decision) {
                inRow = 0;
                if (decision.allowed) return;
                long told = decision.retryAfterMillis;
                long keep = told == UNKNOWN ? REMEMBER_MILLIS_AT_MOST : Math.min(told, REMEMBER_MILLIS_AT_MOST);
                // From the start of the question, so that no refusal outlives its time.
                refusals.put(id, new Refusal(decision, start, keep * MILLI));
            } else if (outcome instanceof SluicegateException) {
                inRow = 0;
                errors++;
            } else {
                failures++;
                lastFailure = outcome.toString();
                // One limit whose store is away says nothing about the others.
                inRow = outcome instanceof Undecided ? 0 : inRow + 1;
                // A question from before the rest may fail during it. That does not make the rest longer.
                if (isTrial || inRow == FAILURES_IN_ROW) restUntil = clock.getAsLong() + REST;
            }
        }
    }

    // ---- Connections ----

    private Answer ask(byte[] question, Deadline deadline) throws IOException {
        byte[] head = ("POST /v1/check HTTP/1.1\r\nhost: " + host + "\r\ncontent-type: application/json\r\ncontent-length: "
                + question.length + "\r\n\r\n").getBytes(StandardCharsets.US_ASCII);
        byte[] message = Arrays.copyOf(head, head.length + question.length);
        System.arraycopy(question, 0, message, head.length, question.length);
        Connection connection = take();
        if (connection != null) {
            try {
                return askOver(connection, message, deadline);
            } catch (Unanswered e) {
                // The gateway has closed a connection that was kept. In the worst case it read the question before, and
                // counts it twice. A limit that is too strict by one for once is better than no answer.
                synchronized (lock) {
                    askedAgain++;
                }
            }
        }
        return askOver(connect(deadline), message, deadline);
    }

    private Connection take() {
        while (true) {
            Connection connection;
            synchronized (lock) {
                connection = kept.pollLast();
            }
            if (connection == null || connection.isQuiet()) return connection;
            connection.close(); // The gateway has closed it, or there are bytes that belong to no question.
        }
    }

    private Connection connect(Deadline deadline) throws IOException {
        Exception failure = null;
        for (SocketAddress target : targets) {
            try {
                return new Connection(target, deadline);
            } catch (IOException | RuntimeException e) {
                if (failure == null) failure = e;
            }
        }
        throw new IOException("no connection: " + failure, failure);
    }

    private Answer askOver(Connection connection, byte[] message, Deadline deadline) throws IOException {
        boolean mayKeep = false;
        try {
            Answer answer = connection.exchange(message, deadline);
            mayKeep = answer.mayKeep;
            return answer;
        } finally {
            synchronized (lock) {
                if (mayKeep && !closed && kept.size() < KEPT_AT_MOST) kept.addLast(connection);
                else connection.close(); // Else a late answer would be taken for that of the next question.
            }
        }
    }

    /** One for each question: how long it may still wait, and whether its thread was interrupted meanwhile. */
    private static final class Deadline {
        private final long end;
        private boolean wasInterrupted = Thread.interrupted(); // Else the interrupt would end each wait at once.

        Deadline(long nanos) { end = System.nanoTime() + nanos; }

        long left() throws SocketTimeoutException {
            long left = end - System.nanoTime();
            if (left <= 0) throw new SocketTimeoutException("no answer in time");
            return left;
        }

        void await(SelectionKey key, int operation) throws IOException {
            key.interestOps(operation);
            key.selector().select((left() + MILLI - 1) / MILLI); // Whole milliseconds, rounded up.
            key.selector().selectedKeys().clear();
            wasInterrupted |= Thread.interrupted();
        }
    }

    /**
     * A channel in non-blocking mode with a Selector of its own. Each wait (to connect, to send, to read) ends at the deadline
     * of the question. A java.net.Socket would not do: its timeout is one for each read, so that a trickle of bytes extends
     * it; its writes have none; and it knows no Unix sockets. An interrupt would close a channel in blocking mode. Here it
     * only ends a wait.
     */
    static final class Connection {
        private final SocketChannel channel;
        private Selector selector;
        private SelectionKey key;
        private byte[] got = new byte[2048];

        Connection(SocketAddress target, Deadline deadline) throws IOException {
            boolean isUnix = target instanceof UnixDomainSocketAddress;
            boolean isConnected = false;
            channel = isUnix ? SocketChannel.open(StandardProtocolFamily.UNIX) : SocketChannel.open();
            try {
                selector = Selector.open();
                channel.configureBlocking(false);
                key = channel.register(selector, 0);
                deadline.left();
                boolean isDone = channel.connect(target);
                while (!isDone) {
                    deadline.await(key, SelectionKey.OP_CONNECT);
                    isDone = channel.finishConnect();
                }
                // Else the last piece of a long question may wait longer than the timeout.
                if (!isUnix) channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
                isConnected = true;
            } finally {
                if (!isConnected) close();
            }
        }

        /** Whether it is open, and nothing has come that no question asked for. */
        boolean isQuiet() {
            try {
                return channel.read(ByteBuffer.allocate(1)) == 0;
            } catch (IOException e) {
                return false;
            }
        }

        Answer exchange(byte[] message, Deadline deadline) throws IOException {
            int length = 0;
            try {
                for (int sent = 0; sent < message.length; ) {
                    deadline.left();
                    // In pieces, since the JDK keeps for each thread a buffer of the size of the largest one.
                    int count = channel.write(ByteBuffer.wrap(message, sent, Math.min(message.length - sent, ANSWER_AT_MOST)));
                    if (count == 0) deadline.await(key, SelectionKey.OP_WRITE);
                    sent += count;
                }
                while (true) {
                    deadline.left();
                    int count = channel.read(ByteBuffer.wrap(got, length, got.length - length));
                    if (count < 0) throw new EOFException("the connection ended before the answer did");
                    if (count == 0) deadline.await(key, SelectionKey.OP_READ);
                    length += count;
                    Answer answer = count == 0 ? null : parse(got, length);
                    if (answer != null) return answer;
                    if (length == ANSWER_AT_MOST) throw new ProtocolException("the answer is too long");
                    if (length == got.length) got = Arrays.copyOf(got, Math.min(2 * length, ANSWER_AT_MOST));
                }
            } catch (SocketTimeoutException e) {
                throw e;
            } catch (IOException e) {
                throw length == 0 ? new Unanswered(e) : e;
            }
        }

        void close() {
            try {
                channel.close();
                if (selector != null) selector.close(); // The descriptor of a registered channel is open until then.
            } catch (IOException e) {
                // There is nothing left to do with it.
            }
        }
    }

    // ---- Answers ----

    /** null: more is to come. */
    private static Answer parse(byte[] bytes, int length) throws IOException {
        String text = new String(bytes, 0, length, StandardCharsets.ISO_8859_1);
        int gap = text.indexOf("\r\n\r\n");
        if (gap < 0) return null;
        String[] lines = text.substring(0, gap).split("\r\n", -1);
        Map<String, String> fields = new HashMap<>();
        for (int i = 1; i < lines.length; i++) {
            int colon = Math.max(0, lines[i].indexOf(':'));
            // A field that is there twice has both values: two lengths are none.
            fields.merge(lines[i].substring(0, colon).toLowerCase(Locale.ROOT), lines[i].substring(colon + 1).strip(),
                    (one, other) -> one + ", " + other);
        }
        String told = fields.getOrDefault("content-length", "");
        if (!lines[0].matches("HTTP/1\\.1 [1-9][0-9]{2}( .*)?") || !told.matches("[0-9]{1,9}")
                || fields.containsKey("transfer-encoding")) {
            throw new ProtocolException("the answer is not one of the gateway");
        }
        int start = gap + 4, end = start + Integer.parseInt(told);
        if (end > ANSWER_AT_MOST) throw new ProtocolException("the answer is too long");
        if (length < end) return null;
        String body = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes, start, end - start)).toString();
        boolean mayKeep = length == end && !fields.getOrDefault("connection", "").toLowerCase(Locale.ROOT).contains("close");
        return new Answer(Integer.parseInt(lines[0].substring(9, 12)), body, mayKeep);
    }

    private static Decision read(Answer answer) throws IOException {
        String begin = answer.body.substring(0, Math.min(answer.body.length(), 200));
        switch (answer.status) {
            case 200 -> {
                Map<String, Object> told = new Json(answer.body).read();
                return new Decision(field(told, "allowed", Boolean.class, null), field(told, "limit", String.class, ""),
                        field(told, "remaining", Long.class, UNKNOWN), field(told, "limit_value", Long.class, UNKNOWN),
                        field(told, "retry_after_ms", Long.class, UNKNOWN), field(told, "reset_ms", Long.class, UNKNOWN),
                        field(told, "shadow", Boolean.class, false), Source.GATEWAY);
            }
            case 400, 403, 404, 405, 413, 415 -> {
                String detail = begin; // Where it is no JSON with a detail.
                try {
                    detail = field(new Json(answer.body).read(), "detail", String.class, begin);
                } catch (ProtocolException ignored) {}
                throw new SluicegateException(answer.status, detail);
            }
            case 503 -> throw new Undecided("status 503: " + begin);
            default -> throw new ProtocolException("status " + answer.status + ": " + begin);
        }
    }

    private static <T> T field(Map<String, Object> told, String name, Class<T> type, T otherwise) throws ProtocolException {
        Object value = told.get(name) == null ? otherwise : told.get(name);
        if (!type.isInstance(value)) throw new ProtocolException("the answer is no decision, by its field " + name);
        return type.cast(value);
    }

    // ---- JSON: the JDK has none ----

    private static byte[] question(String limit, long cost, String[] key) {
        StringBuilder out = new StringBuilder("{\"limit\":");
        write(out, limit);
        out.append(",\"cost\":").append(cost);
        for (int i = 0; i < key.length; i++) {
            out.append(i > 0 ? "," : key.length > 1 ? ",\"key\":[" : ",\"key\":");
            write(out, key[i]);
        }
        out.append(key.length > 1 ? "]}" : "}");
        try {
            ByteBuffer encoded = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(out));
            checkLength(encoded.remaining());
            return Arrays.copyOf(encoded.array(), encoded.remaining());
        } catch (CharacterCodingException e) {
            throw new IllegalArgumentException("limit or key has half a surrogate pair", e);
        }
    }

    private static void checkLength(long length) {
        // Not sent: a client with a giant key must not bring about the default.
        if (length > QUESTION_AT_MOST) throw new SluicegateException(413, "the question has more than 1 MiB");
    }

    private static void write(StringBuilder out, String text) {
        checkLength((long) out.length() + text.length()); // Each char becomes a byte or more.
        out.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c < ' ') out.append("\\u00").append(c >> 4).append(Character.forDigit(c & 15, 16));
            else if (c == '"' || c == '\\') out.append('\\').append(c);
            else out.append(c);
        }
        out.append('"');
    }

    private static ByteBuffer hash(byte[] question) {
        try {
            return ByteBuffer.wrap(MessageDigest.getInstance("SHA-256").digest(question));
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException(e); // Each JDK has it.
        }
    }

    /** Reads RFC 8259 to the letter; a name that is there twice is wrong too. The text is as long as an answer at most. */
    private static final class Json {
        private static final Pattern NUMBER = Pattern.compile("(-?)(?:0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?");
        private static final Object OTHER = new Object(); // For what no field has that is read: 1.5, -1, [] and {}.
        private final String text;
        private int at;

        Json(String text) { this.text = text; }

        Map<String, Object> read() throws ProtocolException {
            demand(skip('{'));
            Map<String, Object> fields = fields(1);
            next();
            demand(at == text.length());
            return fields;
        }

        private void demand(boolean isRight) throws ProtocolException {
            if (!isRight) throw new ProtocolException("the answer is not the JSON of an object, at place " + at);
        }

        /** The next character that is no blank; 0 at the end, and no JSON has a 0. */
        private char next() {
            while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) at++;
            return at < text.length() ? text.charAt(at) : 0;
        }

        private boolean skip(char wanted) {
            boolean isThere = next() == wanted;
            if (isThere) at++;
            return isThere;
        }

        private Map<String, Object> fields(int depth) throws ProtocolException {
            Map<String, Object> fields = new HashMap<>();
            while (!skip('}')) {
                demand(fields.isEmpty() || skip(','));
                demand(skip('"'));
                String name = string();
                demand(skip(':') && !fields.containsKey(name));
                fields.put(name, value(depth));
            }
            return fields;
        }

        private Object value(int depth) throws ProtocolException {
            demand(depth < DEPTH_AT_MOST);
            if (skip('"')) return string();
            if (skip('{')) {
                fields(depth + 1);
                return OTHER;
            }
            if (skip('[')) {
                for (boolean isFirst = true; !skip(']'); isFirst = false) {
                    demand(isFirst || skip(','));
                    value(depth + 1);
                }
                return OTHER;
            }
            for (String word : List.of("true", "false", "null")) {
                if (text.startsWith(word, at)) {
                    at += word.length();
                    return word.equals("null") ? null : (Object) word.equals("true");
                }
            }
            Matcher number = NUMBER.matcher(text).region(at, text.length());
            demand(number.lookingAt());
            at = number.end();
            if (!number.group(1).isEmpty() || number.group(2) != null || number.group(3) != null) return OTHER;
            try {
                return Long.valueOf(number.group());
            } catch (NumberFormatException e) {
                return Long.MAX_VALUE; // The gateway's numbers end at twice that.
            }
        }

        /** The rest of a text, behind its first quote. */
        private String string() throws ProtocolException {
            StringBuilder out = new StringBuilder();
            while (true) {
                demand(at < text.length() && text.charAt(at) >= ' ');
                char c = text.charAt(at++);
                if (c == '"') break;
                if (c == '\\') {
                    demand(at < text.length());
                    c = text.charAt(at++);
                    int place = "\"\\/bfnrt".indexOf(c);
                    if (c == 'u') {
                        demand(text.substring(at, Math.min(at + 4, text.length())).matches("[0-9a-fA-F]{4}"));
                        c = (char) Integer.parseInt(text, at, at + 4, 16);
                        at += 4;
                    } else {
                        demand(place >= 0);
                        c = "\"\\/\b\f\n\r\t".charAt(place);
                    }
                }
                out.append(c);
            }
            demand(StandardCharsets.UTF_8.newEncoder().canEncode(out)); // No half of a surrogate pair.
            return out.toString();
        }
    }
}
