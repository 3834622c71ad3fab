package onelog.clients;

import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A group whose members let the broker share out its queues, by POP if the broker says so (5.x clients only).
 *
 * <p>With {@code --member} the program is one member, which reports every message and how it dealt with it, until it is
 * ended; being one process per member, members can be killed. Without, it sends numbered messages at a steady rate.
 *
 * <p>What 4.9.8 does not have is called by name, because one source serves both client lines.
 */
final class Pop {
    private final Report report;
    private final String member;
    private final int failEvery;
    private final int poison;
    private final int workMs;

    private Pop(Options options, Report report) {
        this.report = report;
        this.member = options.text("member");
        this.failEvery = options.number("fail-every", 0);
        this.poison = options.number("poison", -1);
        this.workMs = options.number("work-ms", 0);
    }

    static void run(Options options, Report report) throws Exception {
        try (Clients clients = new Clients(options)) {
            if (options.text("member", "").isEmpty()) {
                send(clients, options, report);
            } else {
                new Pop(options, report).consume(clients, options);
            }
        }
    }

    private static void send(Clients clients, Options options, Report report) throws Exception {
        String topic = options.text("topic");
        int messages = options.number("messages", 500);
        int rate = options.number("rate", 200);
        DefaultMQProducer producer = clients.producer(topic + "-producer");
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        long begin = System.nanoTime();
        for (long number = 0; number < messages; number++) {
            LockSupport.parkNanos(begin + number * 1_000_000_000L / rate - System.nanoTime());
            producer.send(new Message(topic, Payload.body(number)), queues.get((int) (number % queues.size())));
        }
        report.done(Map.of("sent", messages));
    }

    private void consume(Clients clients, Options options) throws Exception {
        String topic = options.text("topic");
        DefaultMQPushConsumer consumer = clients.pushConsumer(options.text("group", topic + "-group"), member);
        set(consumer, "setClientRebalance", boolean.class, false);
        set(consumer, "setPopInvisibleTime", long.class, (long) options.number("invisible-ms", 5_000));
        set(consumer, "setPopBatchNums", int.class, options.number("batch", 8));
        shortenDelays(consumer, options.number("delay-seconds", 1));
        consumer.subscribe(topic, options.text("tags", "*"));
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            boolean failed = false;
            for (MessageExt message : batch) {
                failed |= receive(message);
            }
            return failed ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        report.line("ready", Map.of("member", member));
        Thread.currentThread().join();
    }

    private boolean receive(MessageExt message) {
        long number = Payload.number(message.getBody());
        int times = message.getReconsumeTimes();
        boolean failed = number == poison || failEvery > 0 && number % failEvery == 0 && times == 0;
        LockSupport.parkNanos(workMs * 1_000_000L);
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("member", member);
        facts.put("number", number);
        facts.put("times", times);
        facts.put("topic", message.getTopic());
        facts.put("leased", message.getProperty("POP_CK") != null);
        facts.put("failed", failed);
        report.line("received", facts);
        return failed;
    }

    private static void set(DefaultMQPushConsumer consumer, String name, Class<?> type, Object value)
        throws ReflectiveOperationException {
        DefaultMQPushConsumer.class.getMethod(name, type).invoke(consumer, value);
    }

    /** The client waits 10 s before the first retry and up to two hours before later ones; there is no setting. */
    private static void shortenDelays(DefaultMQPushConsumer consumer, int seconds) throws ReflectiveOperationException {
        Object inside = consumer.getDefaultMQPushConsumerImpl();
        Method delays = inside.getClass().getDeclaredMethod("getPopDelayLevel");
        delays.setAccessible(true);
        Arrays.fill((int[]) delays.invoke(inside), seconds);
    }
}
