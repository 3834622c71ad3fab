package onelog.store;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.LinkedHashMap;
import java.util.Map;

/** Appends one message after the other from one thread, as fast as the store takes them. */
final class Bench {
    private Bench() {
    }

    static void run(Opened opened, Options options, Lines lines) throws Exception {
        int count = options.number("count");
        int bodyBytes = options.number("body", 100);
        String tags = options.text("tags", "");
        byte[] body = new byte[bodyBytes];
        InetSocketAddress host = new InetSocketAddress(InetAddress.getLoopbackAddress(), 10911);
        // The virtual machine compiles what it sees often: the first part is not timed.
        append(opened, options.number("warm-up", count), body, tags, host);
        opened.awaitDispatch();
        long start = System.nanoTime();
        append(opened, count, body, tags, host);
        long appended = System.nanoTime();
        while (opened.store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
        long dispatched = System.nanoTime();
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("kind", "bench");
        line.put("version", Dialect.version());
        line.put("messages", count);
        line.put("bodyBytes", bodyBytes);
        line.put("appendSeconds", (appended - start) / 1e9);
        line.put("dispatchSeconds", (dispatched - start) / 1e9);
        line.put("appendsPerSecond", (long) (count / ((appended - start) / 1e9)));
        line.put("dispatchedPerSecond", (long) (count / ((dispatched - start) / 1e9)));
        lines.print(line);
    }

    private static void append(Opened opened, int count, byte[] body, String tags, InetSocketAddress host) {
        for (int at = 0; at < count; at++) {
            Draft draft = new Draft();
            draft.topic = "bench";
            draft.body = body;
            draft.bornTimestamp = System.currentTimeMillis();
            draft.bornHost = host;
            draft.storeHost = host;
            if (!tags.isEmpty()) {
                draft.properties.put("TAGS", tags);
            }
            if (!Dialect.put(opened.store, draft).isOk()) {
                throw new IllegalStateException("message " + at + " refused");
            }
        }
    }
}
