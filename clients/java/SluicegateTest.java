package io.sluicegate;

import io.sluicegate.Sluicegate.Decision;
import io.sluicegate.Sluicegate.OnFailure;
import io.sluicegate.Sluicegate.SluicegateException;
import io.sluicegate.Sluicegate.Source;
import io.sluicegate.Sluicegate.Stats;
import java.io.BufferedInputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.net.HttpURLConnection;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.SocketAddress;
import java.net.StandardProtocolFamily;
import java.net.URI;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Tests of the client, without a framework. README.md has the command. SLUICEGATE is the path of the gateway's binary.
 *
 * <p>Where an answer must come, the timeout is long, and the test moves the client's clock: a busy machine changes no result.
 * Where none must come, the timeout is short. Arguments are parts of the names of the tests to run; without them all run.
 */
public final class SluicegateTest {
    private static final Duration LONG = Duration.ofSeconds(30);
    private static final Duration SHORT = Duration.ofMillis(50);
    private static final long ENOUGH = 5_000; // Milliseconds: far more than SHORT, for a busy machine; far less than LONG.

    private interface Test { void run() throws Exception; }

    private static final List<String> names = new ArrayList<>();
    private static final List<Test> tests = new ArrayList<>();
    private static final ConcurrentLinkedDeque<AutoCloseable> cleanups = new ConcurrentLinkedDeque<>();
    private static final AtomicLong now = new AtomicLong(); // The clock of all clients. It stands still until a test moves it.

    private static void test(String name, Test test) {
        names.add(name);
        tests.add(test);
    }

    public static void main(String[] wanted) throws Exception {
        if (wanted.length == 2 && wanted[0].equals("--classes-of-first-question")) {
            var classes = ManagementFactory.getClassLoadingMXBean();
            classes.getTotalLoadedClassCount();
            try (Sluicegate client = new Sluicegate(wanted[1], LONG, OnFailure.ALLOW, 1024)) {
                long before = classes.getTotalLoadedClassCount();
                Source source = client.allowRequest("l", 1, "a").source();
                System.out.print(source + " " + (classes.getTotalLoadedClassCount() - before));
            }
            return;
        }
        gatewayTests();
        questionTests();
        slowTests();
        memoryTests();
        failureTests();
        answerTests();
        connectionTests();
        int run = 0, failed = 0;
        long begun = System.nanoTime();
        for (int i = 0; i < tests.size(); i++) {
            String name = names.get(i);
            if (wanted.length > 0 && Arrays.stream(wanted).noneMatch(name::contains)) continue;
            run++;
            System.out.print(name + " ... ");
            System.out.flush();
            Test test = tests.get(i);
            Throwable failure = null;
            try {
                // In a thread of its own: a test that hangs fails.
                inThread(() -> { test.run(); return null; }).get(180, TimeUnit.SECONDS);
            } catch (ExecutionException e) {
                failure = e.getCause();
            } catch (TimeoutException e) {
                failure = e;
            }
            while (!cleanups.isEmpty()) {
                try {
                    cleanups.pop().close();
                } catch (Exception e) { // The others must run all the same.
                    failure = failure == null ? e : failure;
                }
            }
            System.out.println(failure == null ? "ok" : "FAILED");
            if (failure != null) {
                failed++;
                failure.printStackTrace(System.out);
            }
        }
        System.out.printf("%d tests, %d failed, %.1f s%n", run, failed, (System.nanoTime() - begun) / 1e9);
        System.exit(failed > 0 || run == 0 ? 1 : 0);
    }

    // ---- The gateway itself ----

    private static final String CONFIG = """
            [[listener]]
            address = "127.0.0.1:%d"
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
            [[limit]]
            name = "in-all"
            key = "global"
            rate = "3/1h"
            [[route]]
            name = "api"
            limits = ["per-key", "per-pair", "in-all"]
            """;

    /** The real one, in a directory of its own. */
    private static final class Gateway {
        final Path directory = temporaryDirectory();
        int port;
        Process process;

        Gateway() throws Exception {
            cleanups.push(this::kill);
            for (int i = 0; i < 3; i++) { // Another program may take the port before the gateway does.
                try (ServerSocket free = new ServerSocket(0)) {
                    port = free.getLocalPort();
                }
                if (start()) return;
            }
            throw new AssertionError("the gateway does not start:\n" + Files.readString(directory.resolve("log")));
        }

        String address() { return "127.0.0.1:" + port; }

        boolean start() throws Exception {
            String binary = Objects.requireNonNullElse(System.getenv("SLUICEGATE"), "");
            check(new File(binary).canExecute(), "SLUICEGATE must be the path of the gateway's binary; it is \"" + binary + '"');
            Path config = directory.resolve("gateway.toml");
            Files.writeString(config, CONFIG.formatted(port));
            process = new ProcessBuilder(new File(binary).getAbsolutePath(), "run", "--config", config.toString())
                    .directory(directory.toFile())
                    .redirectErrorStream(true)
                    .redirectOutput(ProcessBuilder.Redirect.appendTo(directory.resolve("log").toFile()))
                    .start();
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
            while (System.nanoTime() < end && process.isAlive()) {
                if (isHealthy()) return process.isAlive();
                Thread.sleep(20);
            }
            kill();
            return false;
        }

        private boolean isHealthy() {
            try {
                var url = URI.create("http://" + address() + "/healthz").toURL();
                HttpURLConnection connection = (HttpURLConnection) url.openConnection();
                connection.setConnectTimeout(5000);
                connection.setReadTimeout(5000);
                return connection.getResponseCode() == 200;
            } catch (IOException e) {
                return false;
            }
        }

        /** Stops the process, and waits until each of its threads stands still. */
        void stop() throws Exception {
            long pid = process.pid();
            equal(0, new ProcessBuilder("kill", "-STOP", Long.toString(pid)).inheritIO().start().waitFor());
            waitUntil("the gateway stands still", () -> {
                try (var threads = Files.list(Path.of("/proc/" + pid + "/task"))) {
                    for (Path thread : threads.toList()) {
                        String stat = Files.readString(thread.resolve("stat"));
                        if (stat.charAt(stat.lastIndexOf(')') + 2) != 'T') return false;
                    }
                    return true;
                }
            });
        }

        /** Ends the process of this test, also where it is stopped. */
        void kill() throws InterruptedException {
            if (process != null) process.destroyForcibly().waitFor();
        }
    }

    private static void gatewayTests() {
        test("gateway: three pass and the fourth is refused", () -> {
            Sluicegate client = client(new Gateway().address());
            for (int left = 2; left >= 0; left--) {
                Decision d = client.allowRequest("per-key", 1, "a");
                equal(new Decision(true, "per-key", left, 3, 0, d.resetMillis(), false, Source.GATEWAY), d);
                check(d.resetMillis() > 0, d);
            }
            Decision refusal = client.allowRequest("per-key", 1, "a");
            check(refusal.retryAfterMillis() > 0 && refusal.retryAfterMillis() <= 3_600_000, refusal);
            equal(new Decision(false, "per-key", 0, 3, refusal.retryAfterMillis(), refusal.resetMillis(), false, Source.GATEWAY),
                    refusal);
            pass(500);
            equal(new Decision(false, "per-key", 0, 3, refusal.retryAfterMillis() - 500, refusal.resetMillis() - 500, false,
                    Source.REMEMBERED), client.allowRequest("per-key", 1, "a"));
            pass(500);
            equal(Source.GATEWAY, client.allowRequest("per-key", 1, "a").source());
            check(client.allowRequest("per-key", 1, "b").allowed(), "another key");
            equal(new Stats(6, 0, 0, 0, 1, 0), client.stats());
            equal(null, client.lastFailure());
        });
        test("gateway: a key of several parts, and of none", () -> {
            Sluicegate client = client(new Gateway().address());
            for (String[] key : new String[][] {{"192.0.2.7", "a"}, {}}) {
                String limit = key.length == 0 ? "in-all" : "per-pair";
                for (int i = 0; i < 3; i++) check(client.allowRequest(limit, 1, key).allowed(), limit);
                check(!client.allowRequest(limit, 1, key).allowed(), limit);
            }
            check(client.allowRequest("per-pair", 1, "192.0.2.8", "a").allowed(), "another first part");
        });
        test("gateway: a cost", () -> {
            Sluicegate client = client(new Gateway().address());
            equal(1L, client.allowRequest("per-key", 2, "a").remaining());
            check(!client.allowRequest("per-key", 2, "a").allowed(), "cost 2 of 1");
            check(client.allowRequest("per-key", 1, "a").allowed(), "a refusal of cost 2 says nothing of cost 1");
            Decision never = client.allowRequest("per-key", 4, "b");
            check(!never.allowed() && never.retryAfterMillis() == Sluicegate.UNKNOWN, never);
        });
        test("gateway: keys that need escapes are told apart", () -> {
            Sluicegate client = client(new Gateway().address());
            for (String key : List.of("\"", "\\", "\\\"", "é", "𝄞", "\u0001", "a\tb", "a\nb")) {
                equal(2L, client.allowRequest("per-key", 1, key).remaining());
            }
        });
        test("gateway: mistakes of the caller throw and are no failures", () -> {
            Sluicegate client = client(new Gateway().address());
            mistake(404, client, "no-such-limit", 1, "a");
            mistake(400, client, "per-pair", 1, "a");
            mistake(400, client, "per-key", 1);
            mistake(400, client, "per-key", 0, "a");
            mistake(400, client, "per-key", -1, "a");
            mistake(413, client, "per-key", 1, "a".repeat(1 << 20));
            equal(new Stats(5, 0, 0, 5, 0, 0), client.stats()); // The last one was not even asked.
            equal(Source.GATEWAY, client.allowRequest("per-key", 1, "a").source());
        });
        test("gateway: the largest question that is sent", () -> {
            Sluicegate client = client(new Gateway().address());
            int rest = (1 << 20) - "{\"limit\":\"per-key\",\"cost\":1,\"key\":\"\"}".length();
            // The gateway may find the key too long. It has read the question then.
            try {
                equal(Source.GATEWAY, client.allowRequest("per-key", 1, "é".repeat(rest / 2)).source());
            } catch (SluicegateException e) {
                equal(400, e.status());
            }
            equal(0L, client.stats().failures());
            mistake(413, client, "per-key", 1, "é".repeat(rest / 2 + 1));
            mistake(413, client, "per-key", 1, "\u0001".repeat(rest / 6 + 1));
        });
        test("gateway: of 40 threads with 5 questions 3 pass", () -> {
            String address = new Gateway().address();
            for (int remember : new int[] {0, 1024}) {
                Sluicegate client = client(address, LONG, OnFailure.ALLOW, remember);
                AtomicInteger allowed = new AtomicInteger();
                inThreads(40, number -> {
                    for (int i = 0; i < 5; i++) {
                        if (client.allowRequest("per-key", 1, "key of " + remember).allowed()) allowed.incrementAndGet();
                    }
                });
                equal(3, allowed.get());
                Stats stats = client.stats();
                equal(new Stats(stats.asked(), 0, 0, 0, 200 - stats.asked(), 0), stats);
                equal(remember > 0, stats.remembered() > 0);
            }
        });
        test("gateway: threads get the answers of their own questions", () -> {
            Sluicegate client = client(new Gateway().address());
            inThreads(40, number -> {
                for (long left = 2; left >= 0; left--) {
                    equal(left, client.allowRequest("per-key", 1, "key " + number).remaining());
                }
            });
        });
        test("gateway: stopped, killed and back", () -> {
            Gateway gateway = new Gateway();
            Sluicegate allowing = client(gateway.address()), refusing = client(gateway.address(), LONG, OnFailure.REFUSE, 1024);
            for (Sluicegate client : List.of(allowing, refusing)) {
                equal(Source.GATEWAY, client.allowRequest("per-key", 1, "a").source());
                client.timeoutNanos = SHORT.toNanos();
            }
            gateway.stop();
            equal(byDefault("per-key"), allowing.allowRequest("per-key", 1, "a"));
            equal(new Decision(false, "per-key", -1, -1, -1, -1, false, Source.DEFAULT), refusing.allowRequest("per-key", 1, "a"));
            gateway.kill();
            allowing.timeoutNanos = LONG.toNanos();
            for (int i = 0; i < 3; i++) equal(byDefault("per-key"), allowing.allowRequest("per-key", 1, "a"));
            equal(new Stats(4, 0, 3, 0, 0, 1), allowing.stats());
            check(gateway.start(), "the gateway is back");
            pass(999);
            equal(Source.DEFAULT, allowing.allowRequest("per-key", 1, "a").source());
            pass(1);
            for (int i = 0; i < 3; i++) {
                Decision d = allowing.allowRequest("per-key", 1, "a");
                check(d.allowed() && d.source() == Source.GATEWAY, d);
            }
            check(!allowing.allowRequest("per-key", 1, "a").allowed(), "back, the fourth");
            equal(new Stats(8, 0, 3, 0, 0, 2), allowing.stats());
        });
        test("gateway: a kept connection outlives it", () -> {
            Gateway gateway = new Gateway();
            Sluicegate client = client(gateway.address());
            client.allowRequest("per-key", 1, "a");
            gateway.kill();
            check(gateway.start(), "the gateway is back");
            equal(Source.GATEWAY, client.allowRequest("per-key", 1, "a").source());
            equal(0L, client.stats().failures());
        });
        test("gateway: its Unix socket", () -> {
            Sluicegate client = client("unix:" + new Gateway().directory.resolve("check.sock"));
            for (long left = 2; left >= 0; left--) equal(left, client.allowRequest("per-key", 1, "u").remaining());
            check(!client.allowRequest("per-key", 1, "u").allowed(), "the fourth");
            inThreads(40, number -> equal(2L, client.allowRequest("per-key", 1, "key " + number).remaining()));
        });
        test("gateway: the default timeout holds where it is stopped", () -> {
            Gateway gateway = new Gateway();
            gateway.stop();
            Sluicegate client = Sluicegate.at(gateway.address());
            cleanups.push(client);
            long begun = System.nanoTime();
            equal(byDefault("per-key"), client.allowRequest("per-key", 1, "a"));
            took(begun, 20, ENOUGH);
            check(client.lastFailure().contains("time"), client.lastFailure());
        });
    }

    // ---- Servers that the gateway is not: slow, broken, counting ----

    private interface Behaviour {
        /** The bytes to answer to the question of this number, from 1. null: the connection is closed. */
        String answer(int number, SocketChannel connection) throws Exception;
    }

    private static final class Stub implements AutoCloseable {
        final Behaviour behaviour;
        final ServerSocketChannel server;
        final String address;
        final List<String> questions = Collections.synchronizedList(new ArrayList<>());
        final List<SocketChannel> connections = Collections.synchronizedList(new ArrayList<>());
        final Semaphore came = new Semaphore(0), ended = new Semaphore(0); // A question came. A connection ended.

        Stub(Behaviour behaviour) throws IOException { this(new InetSocketAddress(InetAddress.getByName("127.0.0.1"), 0), behaviour); }

        Stub(SocketAddress at, Behaviour behaviour) throws IOException {
            this.behaviour = behaviour;
            boolean isUnix = at instanceof UnixDomainSocketAddress;
            server = isUnix ? ServerSocketChannel.open(StandardProtocolFamily.UNIX) : ServerSocketChannel.open();
            server.bind(at, 128);
            address = isUnix ? "unix:" + at : "127.0.0.1:" + ((InetSocketAddress) server.getLocalAddress()).getPort();
            cleanups.push(this);
            inThread(() -> {
                while (true) {
                    SocketChannel connection = server.accept();
                    connections.add(connection);
                    inThread(() -> { serve(connection); return null; });
                }
            });
        }

        private void serve(SocketChannel connection) throws Exception {
            try (connection) {
                InputStream in = new BufferedInputStream(Channels.newInputStream(connection));
                while (true) {
                    StringBuilder head = new StringBuilder();
                    while (head.indexOf("\r\n\r\n") < 0) {
                        int c = in.read();
                        if (c < 0) return;
                        head.append((char) c);
                    }
                    String told = head.toString().replaceAll("(?s).*\r\ncontent-length: ([0-9]+)\r\n.*", "$1");
                    String wanted = "POST /v1/check HTTP/1.1\r\nhost: " + (address.startsWith("unix:") ? "localhost" : address)
                            + "\r\ncontent-type: application/json\r\ncontent-length: " + told + "\r\n\r\n";
                    String body = new String(in.readNBytes(Integer.parseInt(told)), StandardCharsets.UTF_8);
                    int number;
                    synchronized (questions) {
                        questions.add(head.toString().equals(wanted) ? body : "wrong head: " + head);
                        number = questions.size();
                    }
                    came.release();
                    String answer = behaviour.answer(number, connection);
                    if (answer == null) return;
                    send(connection, answer);
                }
            } finally {
                ended.release();
            }
        }

        @Override
        public void close() throws IOException {
            server.close();
            synchronized (connections) {
                for (SocketChannel connection : connections) connection.close();
            }
        }
    }

    private static void send(SocketChannel connection, String text) throws IOException {
        ByteBuffer bytes = ByteBuffer.wrap(text.getBytes(StandardCharsets.UTF_8));
        while (bytes.hasRemaining()) connection.write(bytes);
    }

    private static String http(String status, String body) {
        return "HTTP/1.1 " + status + "\r\ncontent-type: application/json\r\ncontent-length: "
                + body.getBytes(StandardCharsets.UTF_8).length + "\r\n\r\n" + body;
    }

    private static String ok(String body) { return http("200 OK", body); }

    private static final String ADMITTED = ok("""
            {"allowed": true, "limit": "l", "remaining": 4, "limit_value": 5, "retry_after_ms": 0, "reset_ms": 1200, "shadow": false}""");

    private static String refused(String retryAfter) {
        return ok("""
                {"allowed": false, "limit": "l", "remaining": 0, "limit_value": 5, "retry_after_ms": %s, "reset_ms": 1200}"""
                .formatted(retryAfter));
    }

    private static void questionTests() {
        test("question: as it is sent", () -> {
            Stub stub = new Stub((number, connection) -> ADMITTED);
            Sluicegate client = client(stub.address);
            equal(new Decision(true, "l", 4, 5, 0, 1200, false, Source.GATEWAY), client.allowRequest("l", 1));
            client.allowRequest("l", Long.MAX_VALUE, "a");
            client.allowRequest("l", 1, "a", "b");
            client.allowRequest("l", 1, "");
            client.allowRequest("\"l\\/", 1, "\u0000\b\t\n\f\r\u001f\u007f\"\\'<é𝄞\u2028");
            equal(List.of("{\"limit\":\"l\",\"cost\":1}", "{\"limit\":\"l\",\"cost\":9223372036854775807,\"key\":\"a\"}",
                    "{\"limit\":\"l\",\"cost\":1,\"key\":[\"a\",\"b\"]}", "{\"limit\":\"l\",\"cost\":1,\"key\":\"\"}",
                    "{\"limit\":\"\\\"l\\\\/\",\"cost\":1,\"key\":\"\\u0000\\u0008\\u0009\\u000a\\u000c\\u000d\\u001f\u007f\\\"\\\\'<é𝄞\u2028\"}"),
                    stub.questions);
            equal(1, stub.connections.size());
        });
        test("question: half a surrogate pair, and null, are not sent", () -> {
            Stub stub = new Stub((number, connection) -> ADMITTED);
            Sluicegate client = client(stub.address);
            for (String half : List.of("\ud834", "\udd1e", "\udd1e\ud834", "a\ud834b", "\ud834\ud834\udd1e")) {
                throwing(IllegalArgumentException.class, () -> client.allowRequest("l", 1, "a", half));
                throwing(IllegalArgumentException.class, () -> client.allowRequest(half, 1));
            }
            throwing(NullPointerException.class, () -> client.allowRequest(null, 1));
            throwing(NullPointerException.class, () -> client.allowRequest("l", 1, "a", null));
            equal(0, stub.connections.size());
            equal(new Stats(0, 0, 0, 0, 0, 0), client.stats());
        });
    }

    private static void slowTests() {
        test("slow: a trickle does not extend the deadline", () -> {
            Stub stub = new Stub((number, connection) -> {
                // A right answer, if one waits for it: ten seconds.
                for (char c : ADMITTED.replace("\r\n\r\n", "\r\nx: " + "x".repeat(1000) + "\r\n\r\n").toCharArray()) {
                    send(connection, String.valueOf(c));
                    Thread.sleep(10);
                }
                return null;
            });
            Sluicegate client = client(stub.address, SHORT, OnFailure.ALLOW, 1024);
            long begun = System.nanoTime();
            equal(byDefault("l"), client.allowRequest("l", 1, "a"));
            took(begun, SHORT.toMillis(), ENOUGH);
            check(client.lastFailure().contains("time"), client.lastFailure());
            check(stub.connections.size() <= 1, "it was asked again");
        });
        test("slow: a server that reads nothing does not extend the deadline", () -> {
            // It accepts by the queue of the system alone. It does not read, and its buffers take less than a question.
            try (ServerSocketChannel server = ServerSocketChannel.open()) {
                server.setOption(java.net.StandardSocketOptions.SO_RCVBUF, 4096);
                server.bind(new InetSocketAddress(InetAddress.getByName("127.0.0.1"), 0));
                int port = ((InetSocketAddress) server.getLocalAddress()).getPort();
                Sluicegate client = client("127.0.0.1:" + port, SHORT, OnFailure.ALLOW, 1024);
                long begun = System.nanoTime();
                equal(byDefault("l"), client.allowRequest("l", 1, "a".repeat(1_000_000)));
                took(begun, SHORT.toMillis(), ENOUGH);
            }
        });
        test("slow: the first question of a new JVM loads few classes", () -> {
            Stub stub = new Stub((number, connection) -> ADMITTED);
            Process child = new ProcessBuilder(Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-cp",
                    System.getProperty("java.class.path"), "io.sluicegate.SluicegateTest", "--classes-of-first-question", stub.address)
                    .redirectError(ProcessBuilder.Redirect.INHERIT).start();
            cleanups.push(() -> child.destroyForcibly().waitFor());
            String told = new String(child.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            // 170 to 300 take longer than the default timeout. With those loaded in the constructor, about 20 are left.
            check(told.matches("GATEWAY [0-9]+") && Integer.parseInt(told.substring(8)) < 80, told);
            equal(1, stub.connections.size()); // The constructor makes none.
        });
        test("slow: a late answer is not that of the next question", () -> {
            CountDownLatch late = new CountDownLatch(1);
            Stub stub = new Stub((number, connection) -> {
                if (number != 2) return ADMITTED;
                late.await();
                return refused("5000");
            });
            Sluicegate client = client(stub.address);
            client.allowRequest("l", 1, "a");
            client.timeoutNanos = SHORT.toNanos();
            equal(byDefault("l"), client.allowRequest("l", 1, "a"));
            stub.came.acquire(2); // Else the next question might be the second one that the stub reads.
            equal(0, client.kept.size());
            late.countDown();
            client.timeoutNanos = LONG.toNanos();
            Decision d = client.allowRequest("l", 1, "a");
            check(d.allowed() && d.source() == Source.GATEWAY, d);
            equal(2, stub.connections.size());
            equal(3, stub.questions.size()); // A timeout is not asked again.
            equal(new Stats(3, 0, 1, 0, 0, 0), client.stats());
        });
        test("slow: an interrupt changes no decision and is given back", () -> {
            CountDownLatch go = new CountDownLatch(1);
            Stub stub = new Stub((number, connection) -> {
                if (number == 3) go.await();
                return ADMITTED;
            });
            Sluicegate client = client(stub.address);
            for (int i = 0; i < 2; i++) { // Over a new connection, and over a kept one.
                Thread.currentThread().interrupt();
                Decision d = client.allowRequest("l", 1, "a");
                check(Thread.interrupted(), "interrupted before");
                equal(Source.GATEWAY, d.source());
            }
            AtomicInteger isInterrupted = new AtomicInteger();
            FutureTask<Decision> task = new FutureTask<>(() -> {
                Decision d = client.allowRequest("l", 1, "a");
                isInterrupted.set(Thread.currentThread().isInterrupted() ? 1 : 0);
                return d;
            });
            Thread thread = new Thread(task);
            thread.setDaemon(true);
            thread.start();
            stub.came.acquire(3);
            thread.interrupt();
            waitUntil("the client has seen the interrupt", () -> !thread.isInterrupted());
            go.countDown();
            equal(Source.GATEWAY, task.get(60, TimeUnit.SECONDS).source());
            equal(1, isInterrupted.get());
            equal(new Stats(3, 0, 0, 0, 0, 0), client.stats());
            equal(1, stub.connections.size());
        });
    }

    private static void memoryTests() {
        test("memory: a refusal is remembered until it ends, for a second at most", () -> {
            for (String[] told : new String[][] {{"5000", "1000", "4900"}, {"300", "300", "200"}, {"null", "1000", "-1"}}) {
                Stub stub = new Stub((number, connection) -> refused(told[0]));
                Sluicegate client = client(stub.address);
                Decision first = client.allowRequest("l", 2, "a");
                equal(Source.GATEWAY, first.source());
                pass(100);
                Decision left = new Decision(false, "l", 0, 5, Long.parseLong(told[2]), 1100, false, Source.REMEMBERED);
                for (int i = 0; i < 10; i++) equal(left, client.allowRequest("l", 2, "a"));
                now.addAndGet(TimeUnit.MILLISECONDS.toNanos(Long.parseLong(told[1]) - 100) - 1);
                equal(Source.REMEMBERED, client.allowRequest("l", 2, "a").source());
                equal(1, stub.questions.size());
                now.addAndGet(1);
                equal(first, client.allowRequest("l", 2, "a"));
                equal(new Stats(2, 0, 0, 0, 11, 0), client.stats());
            }
        });
        test("memory: the time counts from the start of the question", () -> {
            Stub stub = new Stub((number, connection) -> {
                pass(400);
                return refused("1000");
            });
            Sluicegate client = client(stub.address);
            client.allowRequest("l", 1, "a");
            pass(599);
            equal(1L, client.allowRequest("l", 1, "a").retryAfterMillis());
            pass(1);
            equal(Source.GATEWAY, client.allowRequest("l", 1, "a").source());
        });
        test("memory: only the same question is answered from it", () -> {
            Stub stub = new Stub((number, connection) -> refused("60000"));
            Sluicegate client = client(stub.address);
            String[][] keys = {{"a"}, {"A"}, {"a", "a"}, {"a\",\"a"}, {"a", ""}, {}, {""}};
            for (Source source : new Source[] {Source.GATEWAY, Source.REMEMBERED}) {
                for (String[] key : keys) {
                    equal(source, client.allowRequest("l", 1, key).source());
                    equal(source, client.allowRequest("l", 2, key).source());
                    equal(source, client.allowRequest("L", 1, key).source());
                }
            }
            equal(3 * keys.length, stub.questions.size());
        });
        test("memory: it is bounded, and what was used least recently goes first", () -> {
            Stub stub = new Stub((number, connection) -> refused("60000"));
            Sluicegate client = client(stub.address, LONG, OnFailure.ALLOW, 2);
            StringBuilder asked = new StringBuilder();
            for (String key : "abacacba".split("")) {
                if (client.allowRequest("l", 1, key).source() == Source.GATEWAY) asked.append(key);
            }
            equal("abcba", asked.toString());
            Sluicegate forgetful = client(stub.address, LONG, OnFailure.ALLOW, 0);
            for (int i = 0; i < 2; i++) equal(Source.GATEWAY, forgetful.allowRequest("l", 1, "a").source());
        });
        test("memory: a permission is not remembered", () -> {
            Stub stub = new Stub((number, connection) -> ADMITTED.replace("\"retry_after_ms\": 0", "\"retry_after_ms\": 9"));
            Sluicegate client = client(stub.address);
            for (int i = 0; i < 3; i++) equal(Source.GATEWAY, client.allowRequest("l", 1, "a").source());
        });
    }

    private static void failureTests() {
        test("failures: after three in a row no question for a second", () -> {
            Stub stub = new Stub((number, connection) -> null);
            Sluicegate client = client(stub.address);
            for (int expected = 3; expected <= 5; expected++) { // After each second one question, and again none.
                for (int i = 0; i < 20; i++) equal(byDefault("l"), client.allowRequest("l", 1, "a"));
                equal(expected, stub.connections.size());
                pass(999);
                client.allowRequest("l", 1, "a");
                equal(expected, stub.questions.size());
                pass(1);
            }
            equal(new Stats(5, 0, 5, 0, 0, 58), client.stats());
        });
        test("failures: while one tries the others get the default", () -> {
            CountDownLatch up = new CountDownLatch(1);
            Stub stub = new Stub((number, connection) -> {
                if (number <= 3) return null;
                up.await();
                return ADMITTED;
            });
            Sluicegate client = client(stub.address);
            for (int i = 0; i < 3; i++) client.allowRequest("l", 1, "a");
            stub.came.acquire(3);
            pass(1000);
            FutureTask<Decision> tried = inThread(() -> client.allowRequest("l", 1, "a"));
            stub.came.acquire();
            pass(60_000);
            for (int i = 0; i < 5; i++) equal(byDefault("l"), client.allowRequest("l", 1, "b"));
            equal(4, stub.questions.size());
            up.countDown();
            equal(Source.GATEWAY, tried.get(60, TimeUnit.SECONDS).source());
            equal(Source.GATEWAY, client.allowRequest("l", 1, "b").source());
            equal(new Stats(5, 0, 3, 0, 0, 5), client.stats());
        });
        test("failures: an answer between them ends the row, also a mistake and 503", () -> {
            for (String between : List.of(ADMITTED, http("404 Not Found", "{}"), http("503 Service Unavailable", "{}"))) {
                Stub stub = new Stub((number, connection) -> number % 3 == 0 ? between : http("500 Internal", "{}"));
                Sluicegate client = client(stub.address);
                for (int i = 1; i <= 12; i++) {
                    try {
                        client.allowRequest("l", 1, "a");
                    } catch (SluicegateException e) {
                        equal(404, e.status());
                    }
                }
                equal(12, stub.questions.size());
                equal(1, stub.connections.size());
            }
        });
        test("failures: 503 of one limit does not stop the questions", () -> {
            Stub stub = new Stub((number, connection) -> http("503 Service Unavailable", "{\"detail\": \"away\"}"));
            Sluicegate client = client(stub.address);
            for (int i = 0; i < 9; i++) equal(byDefault("l"), client.allowRequest("l", 1, "a"));
            equal(new Stats(9, 0, 9, 0, 0, 0), client.stats());
            check(client.lastFailure().contains("away"), client.lastFailure());
        });
        test("failures: no connection", () -> {
            int port;
            try (ServerSocket free = new ServerSocket(0)) {
                port = free.getLocalPort();
            }
            for (String address : List.of("127.0.0.1:" + port, "127.0.0.1:0", "unix:" + temporaryDirectory().resolve("none"),
                    "unix:" + "x".repeat(300))) {
                Sluicegate client = client(address);
                equal(byDefault("l"), client.allowRequest("l", 1, "a"));
                equal(new Stats(1, 0, 1, 0, 0, 0), client.stats());
                check(client.lastFailure().contains("no connection"), client.lastFailure());
            }
        });
    }

    private static void answerTests() {
        test("answers: decisions", () -> {
            Object[][] answers = {
                {"""
                {"allowed": true, "limit": null, "remaining": null, "limit_value": null, "retry_after_ms": 0, "reset_ms": null, "shadow": true}""",
                    new Decision(true, "", -1, -1, 0, -1, true, Source.GATEWAY)},
                {"""
                {"allowed": false, "limit": "l", "remaining": 0, "limit_value": 18446744073709551615, "retry_after_ms": null}""",
                    new Decision(false, "l", 0, Long.MAX_VALUE, -1, -1, false, Source.GATEWAY)},
                {"""
                {"allowed": false, "retry_after_ms": 9223372036854775807, "more": [{}, [], [1, -0.5e+3, "]"], {"a": {"b": null}}]}""",
                    new Decision(false, "", -1, -1, Long.MAX_VALUE, -1, false, Source.GATEWAY)},
                {" \r\n\t{ \"all\\u006fwed\" : true , \"limit\" : \"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9é\\ud834\\udd1e𝄞\" } \n",
                    new Decision(true, "\"\\/\b\f\n\r\téé𝄞𝄞", -1, -1, -1, -1, false, Source.GATEWAY)},
            };
            for (Object[] answer : answers) {
                Stub stub = new Stub((number, connection) -> ok((String) answer[0]));
                equal(answer[1], client(stub.address).allowRequest("l", 1, "a"));
            }
            String large = ok("{\"allowed\": true, \"limit\": \"" + "x".repeat(60_000) + "\"}");
            Stub stub = new Stub((number, connection) -> large);
            Sluicegate client = client(stub.address);
            for (int i = 0; i < 2; i++) equal(60_000, client.allowRequest("l", 1, "a").limit().length());
            equal(1, stub.connections.size());
        });
        test("answers: those that are none", () -> {
            List<String> wrong = new ArrayList<>(List.of(
                    "SSH-2.0-OpenSSH\r\n\r\n",
                    "HTTP/1.1 200 OK\r\n\r\n",
                    "HTTP/1.0 200 OK\r\n\r\n{\"allowed\": true}",
                    "HTTP/1.1 102 Processing\r\n\r\n" + ADMITTED,
                    ADMITTED.replace("HTTP/1.1", "HTTP/1.0"),
                    ADMITTED.replace("content-length: ", "content-length: +"),
                    ADMITTED.replace("content-length: ", "content-length: -"),
                    ADMITTED.replace("content-length: ", "content-length: 0x"),
                    ADMITTED.replace("content-length: 1", "content-length: ١"),
                    ADMITTED.replace("content-length: ", "content-length: 9999999999"),
                    ADMITTED.replace("content-length", "content-length: 5\r\ncontent-length"),
                    ADMITTED.replace("content-type", "transfer-encoding: chunked\r\ncontent-type"),
                    ADMITTED.replace("200 OK", "2000 OK"),
                    ADMITTED.replace("200 OK", "301 OK"),
                    ADMITTED.replace("200 OK", "204 OK"),
                    http("500 Internal", "{\"detail\": \"d\"}"),
                    http("429 Too Many Requests", ""),
                    http("408 Request Timeout", "{}"),
                    "HTTP/1.1 200 OK\r\nx: " + "x".repeat(70_000),
                    ok("{\"allowed\": true, \"limit\": \"" + "x".repeat(64 << 10) + "\"}")));
            for (String json : List.of("", "no JSON", "[]", "null", "{", "{}", "{\"limit\": \"l\"}", "{\"allowed\": null}",
                    "{\"allowed\": 1}", "{\"allowed\": \"true\"}", "{\"allowed\": true", "{\"allowed\": true,}", "{,\"allowed\": true}",
                    "{\"allowed\" true}", "{allowed: true}", "{'allowed': true}", "{\"allowed\": truex}", "{\"allowed\": TRUE}",
                    "{\"allowed\": true} x", "{\"allowed\": true}\0", "{\"allowed\": true, \"allowed\": true}",
                    "[{\"allowed\": true}]", "{\"allowed\": [true]}", "{\"allowed\": true, \"x\": [1,]}",
                    "{\"allowed\": true, \"x\": [1 2]}", "{\"allowed\": true, \"x\": [}", "{\"allowed\": true, \"x\": NaN}",
                    "{\"allowed\": true, \"x\": \"a\nb\"}", "{\"allowed\": true, \"x\": \"\\x\"}", "{\"allowed\": true, \"x\": \"\\u12\"}",
                    "{\"allowed\": true, \"x\": \"\\ud834\"}", "{\"allowed\": true, \"x\": \"", "{\"allowed\": true, \"x\": \"\\",
                    "{\"allowed\": true, \"remaining\": \"4\"}", "{\"allowed\": true, \"remaining\": 4.0}",
                    "{\"allowed\": true, \"remaining\": 1e3}", "{\"allowed\": true, \"remaining\": -1}",
                    "{\"allowed\": true, \"remaining\": 04}", "{\"allowed\": true, \"remaining\": +4}",
                    "{\"allowed\": true, \"remaining\": {}}", "{\"allowed\": true, \"limit\": 4}", "{\"allowed\": true, \"shadow\": 0}",
                    "[".repeat(60_000), "{\"a\":".repeat(10_000), "{\"allowed\": true, \"x\": " + "[".repeat(60_000) + "}",
                    "{\"allowed\": true, \"x\": \"" + "\\n".repeat(30_000))) {
                wrong.add(ok(json));
            }
            AtomicInteger place = new AtomicInteger();
            Stub stub = new Stub((number, connection) -> {
                send(connection, wrong.get(place.get()));
                // Its half is closed, so that an answer that is cut ends. The client has no other reason to end the wait.
                connection.shutdownOutput();
                return "";
            });
            for (; place.get() < wrong.size(); place.incrementAndGet()) {
                String answer = wrong.get(place.get());
                String begin = answer.substring(0, Math.min(answer.length(), 200));
                Sluicegate client = client(stub.address);
                Decision d = client.allowRequest("l", 1, "a");
                check(d.equals(byDefault("l")), begin + " gives " + d);
                equal(new Stats(1, 0, 1, 0, 0, 0), client.stats());
                check(!client.lastFailure().contains("in time"), begin + ": " + client.lastFailure());
            }
            // Bytes that are no UTF-8.
            Stub latin = new Stub((number, connection) -> {
                connection.write(ByteBuffer.wrap(ok("{\"allowed\": true, \"limit\": \"?\"}").replace('?', 'é')
                        .getBytes(StandardCharsets.ISO_8859_1)));
                return "";
            });
            equal(byDefault("l"), client(latin.address).allowRequest("l", 1, "a"));
        });
        test("answers: mistakes of the caller, with and without a detail", () -> {
            for (int status : new int[] {400, 403, 404, 405, 413, 415}) {
                for (String[] body : new String[][] {{"{\"status\": 4, \"detail\": \"d\"}", "d"}, {"<h1>", "<h1>"}, {"", ""}, {"[]", "[]"},
                        {"{\"detail\": 4}", "{\"detail\": 4}"}}) {
                    Stub stub = new Stub((number, connection) -> http(status + " Status", body[0]));
                    Sluicegate client = client(stub.address);
                    SluicegateException e = throwing(SluicegateException.class, () -> client.allowRequest("l", 1, "a"));
                    equal(status + body[1], e.status() + e.detail());
                    equal(new Stats(1, 0, 0, 1, 0, 0), client.stats());
                }
            }
        });
        test("answers: in two pieces, at each place", () -> {
            Stub stub = new Stub((number, connection) -> {
                send(connection, ADMITTED.substring(0, number % ADMITTED.length()));
                Thread.sleep(1); // The client most often reads the first piece meanwhile. It passes where it does not.
                return ADMITTED.substring(number % ADMITTED.length());
            });
            Sluicegate client = client(stub.address);
            for (int i = 0; i < ADMITTED.length(); i++) equal(4L, client.allowRequest("l", 1, "a").remaining());
            equal(1, stub.connections.size());
        });
    }

    private static void connectionTests() {
        test("connections: one is kept", () -> {
            Stub stub = new Stub((number, connection) -> ADMITTED);
            Sluicegate client = client(stub.address);
            for (int i = 0; i < 20; i++) client.allowRequest("l", 1, "a");
            equal(1, stub.connections.size());
        });
        test("connections: 32 are kept at most", () -> {
            CountDownLatch all = new CountDownLatch(40);
            Stub stub = new Stub((number, connection) -> {
                all.countDown();
                all.await(); // All questions are here: one connection that all wait for would never get on.
                return ADMITTED;
            });
            Sluicegate client = client(stub.address);
            inThreads(40, number -> equal(Source.GATEWAY, client.allowRequest("l", 1, "a").source()));
            check(stub.ended.tryAcquire(8, 30, TimeUnit.SECONDS), "eight are closed");
            equal(32L, openConnections(stub));
        });
        test("connections: one that ended while it was kept gets no question", () -> {
            Stub stub = new Stub((number, connection) -> {
                send(connection, ADMITTED); // It does not say that it closes.
                return null;
            });
            Sluicegate client = client(stub.address);
            for (int i = 1; i <= 3; i++) {
                equal(Source.GATEWAY, client.allowRequest("l", 1, "a").source());
                waitUntil("the end has come", () -> !client.kept.getLast().isQuiet());
                equal(i, stub.questions.size());
            }
            equal(new Stats(3, 0, 0, 0, 0, 0), client.stats());
        });
        test("connections: a question is asked again where one ends under it", () -> {
            Stub stub = new Stub((number, connection) -> number == 2 ? null : ADMITTED);
            Sluicegate client = client(stub.address);
            for (int i = 0; i < 2; i++) equal(Source.GATEWAY, client.allowRequest("l", 1, "a").source());
            equal(2, stub.connections.size());
            equal(3, stub.questions.size());
            equal(new Stats(2, 1, 0, 0, 0, 0), client.stats());
        });
        test("connections: a question is asked again once, over a new one", () -> {
            CountDownLatch both = new CountDownLatch(2);
            Stub stub = new Stub((number, connection) -> {
                if (number > 2) return null;
                both.countDown();
                both.await();
                return ADMITTED;
            });
            Sluicegate client = client(stub.address);
            inThreads(2, number -> client.allowRequest("l", 1, "a"));
            equal(byDefault("l"), client.allowRequest("l", 1, "a")); // Two are kept. The second one is not used.
            equal(3, stub.connections.size());
            equal(4, stub.questions.size());
            equal(new Stats(3, 1, 1, 0, 0, 0), client.stats());
        });
        test("connections: within the same timeout a question is asked again", () -> {
            Stub stub = new Stub((number, connection) -> {
                if (number == 1) return ADMITTED;
                Thread.sleep(number == 2 ? 3500 : 30_000);
                return null;
            });
            Sluicegate client = client(stub.address);
            client.allowRequest("l", 1, "a");
            client.timeoutNanos = Duration.ofMillis(4000).toNanos();
            long begun = System.nanoTime();
            equal(byDefault("l"), client.allowRequest("l", 1, "a"));
            took(begun, 4000, 7000); // A new timeout for the second time would make it 7,500.
            check(client.lastFailure().contains("time"), client.lastFailure());
        });
        test("connections: one that ends within an answer is a failure", () -> {
            Stub stub = new Stub((number, connection) -> {
                if (number == 1) return ADMITTED;
                send(connection, ADMITTED.substring(0, 20));
                return null;
            });
            Sluicegate client = client(stub.address);
            equal(Source.GATEWAY, client.allowRequest("l", 1, "a").source());
            equal(byDefault("l"), client.allowRequest("l", 1, "a"));
            equal(2, stub.questions.size());
        });
        test("connections: one is not kept where the gateway says so or says too much", () -> {
            for (String answer : List.of(ADMITTED.replace("content-type", "Connection: Close\r\ncontent-type"), ADMITTED + refused("5000"),
                    http("503 Service Unavailable", "{}").replace("content-type", "connection: close\r\ncontent-type"))) {
                Stub stub = new Stub((number, connection) -> answer);
                Sluicegate client = client(stub.address);
                for (int i = 1; i <= 2; i++) {
                    check(client.allowRequest("l", 1, "a").allowed(), answer);
                    equal(i, stub.connections.size());
                }
            }
        });
        test("connections: bytes that come while one is kept are no answer", () -> {
            Stub stub = new Stub((number, connection) -> ADMITTED);
            Sluicegate client = client(stub.address);
            client.allowRequest("l", 1, "a");
            send(stub.connections.get(0), refused("5000"));
            waitUntil("they have come", () -> !client.kept.getLast().isQuiet());
            check(client.allowRequest("l", 1, "a").allowed(), "the second question");
            equal(2, stub.connections.size());
        });
        test("connections: a Unix socket", () -> {
            Stub stub = new Stub(UnixDomainSocketAddress.of(temporaryDirectory().resolve("s")), (number, connection) -> ADMITTED);
            Sluicegate client = client(stub.address);
            for (int i = 0; i < 2; i++) equal(Source.GATEWAY, client.allowRequest("l", 1, "a").source());
            equal(1, stub.connections.size());
            check(stub.questions.get(0).startsWith("{"), stub.questions);
        });
        test("connections: a host name", () -> {
            Stub stub = new Stub((number, connection) -> ADMITTED);
            // It may stand for ::1 too, where nobody listens.
            Sluicegate client = client(stub.address.replace("127.0.0.1", "localhost"));
            equal(Source.GATEWAY, client.allowRequest("l", 1, "a").source());
        });
        test("connections: none is left open", () -> {
            Path descriptors = Path.of("/proc/self/fd");
            Stub closing = new Stub((number, connection) -> null);
            Callable<Long> count = () -> {
                try (var open = Files.list(descriptors)) {
                    return open.count();
                }
            };
            Sluicegate client = client(closing.address), nobody = client("unix:" + temporaryDirectory().resolve("none"));
            long before = count.call();
            for (int i = 0; i < 100; i++) {
                pass(1000);
                client.allowRequest("l", 1, "a");
                nobody.allowRequest("l", 1, "a");
            }
            closing.ended.acquire(100);
            // The stub's ends close a moment later. Each leak of the client would be 100 and more.
            check(count.call() < before + 50, count.call() + " descriptors, and before " + before);
        });
        test("close: kept connections end, and later questions throw", () -> {
            Stub stub = new Stub((number, connection) -> ADMITTED);
            Sluicegate client = client(stub.address);
            client.allowRequest("l", 1, "a");
            client.close();
            check(stub.ended.tryAcquire(30, TimeUnit.SECONDS), "the kept connection is still open");
            throwing(IllegalStateException.class, () -> client.allowRequest("l", 1, "a"));
            client.close();
            equal(new Stats(1, 0, 0, 0, 0, 0), client.stats());
        });
        test("close: a question that is under way gets its answer", () -> {
            CountDownLatch go = new CountDownLatch(1);
            Stub stub = new Stub((number, connection) -> {
                go.await();
                return ADMITTED;
            });
            Sluicegate client = client(stub.address);
            FutureTask<Decision> asked = inThread(() -> client.allowRequest("l", 1, "a"));
            stub.came.acquire();
            client.close();
            go.countDown();
            equal(Source.GATEWAY, asked.get(60, TimeUnit.SECONDS).source());
            check(stub.ended.tryAcquire(30, TimeUnit.SECONDS), "its connection is still open");
        });
        test("options that are wrong", () -> {
            for (String address : List.of("", "9080", ":9080", "a:", "a:b", "a:65536", "a:+1", "::1:9080", "a b:1", "a\r\nx:1", "unix:", "unix:\0")) {
                throwing(IllegalArgumentException.class, () -> Sluicegate.at(address).close());
            }
            throwing(UncheckedIOException.class, () -> Sluicegate.at("no-such-host.invalid:9080").close());
            for (Duration timeout : List.of(Duration.ZERO, Duration.ofMillis(-1), Duration.ofDays(2), Duration.ofSeconds(Long.MAX_VALUE))) {
                throwing(IllegalArgumentException.class, () -> new Sluicegate("127.0.0.1:9080", timeout, OnFailure.ALLOW, 1).close());
            }
            throwing(IllegalArgumentException.class, () -> new Sluicegate("127.0.0.1:9080", LONG, OnFailure.ALLOW, -1).close());
            throwing(NullPointerException.class, () -> new Sluicegate("127.0.0.1:9080", LONG, null, 1).close());
            for (String address : List.of("127.0.0.1:9080", "[::1]:9080", "unix:/s")) Sluicegate.at(address).close();
        });
    }

    // ---- Tools ----

    private static Sluicegate client(String address) { return client(address, LONG, OnFailure.ALLOW, 1024); }

    private static Sluicegate client(String address, Duration timeout, OnFailure onFailure, int remember) {
        Sluicegate client = new Sluicegate(address, timeout, onFailure, remember);
        client.clock = now::get;
        cleanups.push(client);
        return client;
    }

    private static void pass(long millis) { now.addAndGet(TimeUnit.MILLISECONDS.toNanos(millis)); }

    private static Decision byDefault(String limit) { return new Decision(true, limit, -1, -1, 0, -1, false, Source.DEFAULT); }

    private static void mistake(int status, Sluicegate client, String limit, long cost, String... key) throws Exception {
        SluicegateException e = throwing(SluicegateException.class, () -> client.allowRequest(limit, cost, key));
        equal(status, e.status());
        check(!e.detail().isEmpty() && e.getMessage().contains(e.detail()), e);
    }

    private static <E extends Exception> E throwing(Class<E> type, Test test) throws Exception {
        try {
            test.run();
        } catch (Exception e) {
            if (type.isInstance(e)) return type.cast(e);
            throw e;
        }
        throw new AssertionError("it does not throw " + type.getSimpleName());
    }

    private static void check(boolean isRight, Object what) {
        if (!isRight) throw new AssertionError(what);
    }

    private static void equal(Object wanted, Object got) { check(Objects.equals(wanted, got), "wanted " + wanted + ", got " + got); }

    private static void took(long begun, long atLeast, long lessThan) {
        double took = (System.nanoTime() - begun) / 1e6;
        check(took >= atLeast && took < lessThan, "it took " + took + " ms");
    }

    private static void waitUntil(String what, Callable<Boolean> isSo) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
        while (!isSo.call()) {
            check(System.nanoTime() < end, "not so in 30 s: " + what);
            Thread.sleep(1);
        }
    }

    private static long openConnections(Stub stub) {
        synchronized (stub.connections) {
            return stub.connections.stream().filter(SocketChannel::isOpen).count();
        }
    }

    private static <T> FutureTask<T> inThread(Callable<T> work) {
        FutureTask<T> task = new FutureTask<>(work);
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        thread.start();
        return task;
    }

    private interface Work { void run(int number) throws Exception; }

    /** Runs the work in so many threads that begin at once. */
    private static void inThreads(int count, Work work) throws Exception {
        CountDownLatch all = new CountDownLatch(count);
        List<FutureTask<Void>> tasks = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            int number = i;
            tasks.add(inThread(() -> {
                all.countDown();
                all.await();
                work.run(number);
                return null;
            }));
        }
        for (FutureTask<Void> task : tasks) task.get(120, TimeUnit.SECONDS);
    }

    private static Path temporaryDirectory() {
        try {
            Path directory = Files.createTempDirectory("sluicegate");
            cleanups.push(() -> {
                try (var files = Files.list(directory)) {
                    for (Path file : files.toList()) Files.delete(file);
                }
                Files.delete(directory);
            });
            return directory;
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
