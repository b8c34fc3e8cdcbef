package forge.external;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetSocketAddress;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/** Running HTTP server of a service. Stops with the JVM, too, after its calls have ended. */
public final class ForgeServer implements AutoCloseable {
    private static final System.Logger LOG = System.getLogger(ForgeServer.class.getName());
    /** Threads beside those for calls, so that health and manifest are answered when all calls are taken. */
    private static final int SPARE_THREADS = 16;
    private static final int STOP_SECONDS = 10;
    /** Rest of a refused body that is read, so that the client gets to the answer. */
    private static final int DISCARDED_BYTES = 4 * ForgeRegistry.MAX_BODY_BYTES;

    static {
        // Read once. Without the first an answer waits 40 ms for an acknowledgement; without the second (seconds) a
        // client that never ends its request holds a thread.
        System.getProperties().putIfAbsent("sun.net.httpserver.nodelay", "true");
        System.getProperties().putIfAbsent("sun.net.httpserver.maxReqTime", "30");
    }

    private final ForgeRegistry registry;
    private final HttpServer http;
    private final ThreadPoolExecutor threads;
    private final Semaphore exchanges;
    private final Thread hook = new Thread(this::stopNow);
    private volatile boolean stopping;

    ForgeServer(ForgeRegistry registry, int maxCalls, String host, int port) throws IOException {
        this.registry = registry;
        int count = maxCalls + SPARE_THREADS;
        exchanges = new Semaphore(count);
        threads = new ThreadPoolExecutor(count, count, 30, TimeUnit.SECONDS, new LinkedBlockingQueue<>());
        threads.allowCoreThreadTimeOut(true);
        http = HttpServer.create(new InetSocketAddress(host, port), 0);
        http.createContext("/", this::serve);
        http.setExecutor(threads);
        http.start();
        Runtime.getRuntime().addShutdownHook(hook);
    }

    /** Address of the server, such as {@code http://127.0.0.1:8788}. */
    public String url() {
        String host = http.getAddress().getAddress().getHostAddress();
        return "http://" + (host.contains(":") ? "[" + host + "]" : host) + ":" + port();
    }

    public int port() { return http.getAddress().getPort(); }

    /** Refuses further requests, waits at most 10 seconds for those that run, and closes the server. */
    @Override
    public void close() {
        try {
            Runtime.getRuntime().removeShutdownHook(hook);
        } catch (IllegalStateException error) {
            return; // The JVM is stopping, and the hook runs.
        }
        stopNow();
    }

    private synchronized void stopNow() {
        stopping = true;
        try {
            int all = threads.getMaximumPoolSize();
            if (exchanges.tryAcquire(all, STOP_SECONDS, TimeUnit.SECONDS)) exchanges.release(all);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
        http.stop(0);
        threads.shutdownNow();
    }

    private void serve(HttpExchange exchange) throws IOException {
        exchanges.acquireUninterruptibly();
        try (exchange; InputStream body = exchange.getRequestBody()) {
            var uri = exchange.getRequestURI();
            var request = new ForgeRequest(exchange.getRequestMethod(), uri.getRawPath(), uri.getRawQuery(),
                exchange.getRequestHeaders()::getFirst, body);
            ForgeAnswer answer = stopping
                ? ForgeRegistry.failure(503, "FORGE_JAVA_STOPPING", "the service is stopping", null)
                : registry.answer(request);
            discard(body);
            var headers = exchange.getResponseHeaders();
            headers.set("Content-Type", "application/json");
            if (answer.allow() != null) headers.set("Allow", answer.allow());
            boolean head = request.method().equals("HEAD");
            exchange.sendResponseHeaders(answer.status(), head ? -1 : answer.body().length);
            if (!head) exchange.getResponseBody().write(answer.body());
        } catch (RuntimeException error) {
            LOG.log(System.Logger.Level.ERROR, "a request could not be answered", error);
        } finally {
            exchanges.release();
        }
    }

    private static void discard(InputStream body) throws IOException {
        byte[] buffer = new byte[8192];
        int length = 0;
        for (int left = DISCARDED_BYTES; left > 0 && length >= 0; left -= length) length = body.read(buffer);
    }
}
