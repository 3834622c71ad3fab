package onelog.clients;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/**
 * Synchronous sends at a steady rate, for latency.
 *
 * <p>Two latencies of each send: from the call to the acknowledgement, and from the moment it was due. The second also
 * counts the sends that a stall kept from starting in time; the first alone would hide them.
 */
final class Paced {
    private final DefaultMQProducer producer;
    private final String topic;
    private final int rate;
    private final int size;
    private final int warmUp;
    private final int total;
    private final AtomicInteger next = new AtomicInteger();
    private final AtomicInteger failed = new AtomicInteger();
    private final AtomicLong lastNs = new AtomicLong();
    private final long[] callNs;
    private final long[] dueNs;
    private final long beginNs = System.nanoTime() + 200_000_000L;

    private Paced(DefaultMQProducer producer, Options options) {
        this.producer = producer;
        this.topic = options.text("topic");
        this.rate = options.number("rate", 10_000);
        this.size = options.number("size", 128);
        this.warmUp = options.number("warm-up-seconds", 10) * rate;
        this.total = warmUp + options.number("seconds", 10) * rate;
        this.callNs = new long[total - warmUp];
        this.dueNs = new long[total - warmUp];
    }

    static void run(Options options, Report report) throws Exception {
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer("paced");
            // A send that is repeated behind our back would count as one slow send instead of a failure.
            producer.setRetryTimesWhenSendFailed(0);
            Paced paced = new Paced(producer, options);
            Thread[] senders = new Thread[options.number("threads", 64)];
            for (int i = 0; i < senders.length; i++) {
                senders[i] = new Thread(paced::send, "sender-" + i);
                senders[i].start();
            }
            for (Thread sender : senders) {
                sender.join();
            }
            report.done(paced.facts());
        }
    }

    private void send() {
        Message message = new Message(topic, Payload.body(0, size));
        for (int number = next.getAndIncrement(); number < total; number = next.getAndIncrement()) {
            long due = beginNs + number * 1_000_000_000L / rate;
            for (long early = due - System.nanoTime(); early > 0; early = due - System.nanoTime()) {
                LockSupport.parkNanos(early);
            }
            long called = System.nanoTime();
            try {
                message.getProperties().clear();
                producer.send(message);
            } catch (Exception failure) {
                failed.incrementAndGet();
            }
            long ended = System.nanoTime();
            if (number >= warmUp) {
                callNs[number - warmUp] = ended - called;
                dueNs[number - warmUp] = ended - due;
            }
            lastNs.accumulateAndGet(ended, Math::max);
        }
    }

    private Map<String, Object> facts() {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("sends", total - warmUp);
        facts.put("failed", failed.get());
        facts.put("rate", Math.round(total * 1e9 / (lastNs.get() - beginNs)));
        Arrays.sort(callNs);
        Arrays.sort(dueNs);
        for (double percent : new double[] {50, 99, 99.9}) {
            facts.put("call_p" + percent + "_us", at(callNs, percent));
            facts.put("due_p" + percent + "_us", at(dueNs, percent));
        }
        facts.put("call_max_us", callNs[callNs.length - 1] / 1000);
        facts.put("due_max_us", dueNs[dueNs.length - 1] / 1000);
        return facts;
    }

    private static long at(long[] sorted, double percent) {
        return sorted[(int) Math.min(sorted.length - 1, sorted.length * percent / 100)] / 1000;
    }
}
