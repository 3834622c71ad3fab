package onelog.clients;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.MessageExt;

/** Numbered messages as they arrive, and how often each did. */
final class Arrivals {
    private final Map<Long, AtomicInteger> times = new ConcurrentHashMap<>();

    /** Subscribes to nothing; only takes what the consumer gets. */
    void listenTo(DefaultMQPushConsumer consumer) {
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            batch.forEach(this::add);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
    }

    void add(MessageExt message) {
        times.computeIfAbsent(Payload.number(message.getBody()), number -> new AtomicInteger()).incrementAndGet();
    }

    int distinct() {
        return times.size();
    }

    boolean has(long number) {
        return times.containsKey(number);
    }

    int total() {
        return times.values().stream().mapToInt(AtomicInteger::get).sum();
    }

    int duplicates() {
        return total() - distinct();
    }

    /** How many of the numbers from begin (with) to end (without) came. */
    long between(long begin, long end) {
        return times.keySet().stream().filter(number -> begin <= number && number < end).count();
    }
}
