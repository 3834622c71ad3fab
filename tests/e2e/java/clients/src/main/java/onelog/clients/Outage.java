package onelog.clients;

import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/** Scenarios during which somebody else acts: the server is restarted, or an administrator looks on. */
final class Outage {
    private Outage() {
    }

    /** Sends on through an outage, message by message until acknowledged, with a consumer that must get them all. */
    static void restart(Options options, Report report) throws Exception {
        int messages = options.number("messages", 2_000);
        int pauseMs = options.number("pause-ms", 5);
        String topic = options.text("topic");
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-producer");
            producer.setSendMsgTimeout(2_000);
            clients.createTopic(producer, topic, 4);
            DefaultMQPushConsumer consumer = clients.pushConsumer(topic + "-group", "one");
            consumer.subscribe(topic, "*");
            Arrivals seen = new Arrivals();
            seen.listenTo(consumer);
            consumer.start();
            int failed = 0;
            long outageMs = 0;
            for (long number = 0; number < messages; number++) {
                long begin = System.currentTimeMillis();
                while (!send(producer, topic, number)) {
                    failed++;
                    Thread.sleep(100);
                }
                outageMs = Math.max(outageMs, System.currentTimeMillis() - begin);
                if (number % 100 == 0) {
                    report.line("progress", Map.of("acknowledged", number + 1, "failed", failed,
                        "received", seen.distinct()));
                }
                Thread.sleep(pauseMs);
            }
            long sentMs = System.currentTimeMillis();
            Clients.waitFor(90_000, () -> seen.distinct() == messages);
            Map<String, Object> facts = new LinkedHashMap<>();
            facts.put("acknowledged", messages);
            facts.put("failed", failed);
            facts.put("received", seen.between(0, messages));
            facts.put("duplicates", seen.duplicates());
            facts.put("outage_ms", outageMs);
            facts.put("catch_up_ms", System.currentTimeMillis() - sentMs);
            report.done(facts);
        }
    }

    private static boolean send(DefaultMQProducer producer, String topic, long number) throws InterruptedException {
        try {
            SendResult result = producer.send(new Message(topic, Payload.body(number)));
            return result.getSendStatus() == SendStatus.SEND_OK;
        } catch (InterruptedException interrupted) {
            throw interrupted;
        } catch (Exception outage) {
            return false;
        }
    }

    /**
     * A producer and a consumer that stay until the program is ended, for administrators to look at.
     *
     * <p>After "ready" it says how many messages came in all whenever that changes: that shows what a reset did.
     */
    static void linger(Options options, Report report) throws Exception {
        int messages = options.number("messages", 20);
        String topic = options.text("topic");
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-producer");
            clients.createTopic(producer, topic, 4);
            DefaultMQPushConsumer consumer = clients.pushConsumer(topic + "-group", "one");
            consumer.subscribe(topic, "*");
            Arrivals seen = new Arrivals();
            seen.listenTo(consumer);
            consumer.start();
            SendResult result = null;
            for (long number = 0; number < messages; number++) {
                Message message = new Message(topic, "tag", "key" + number, Payload.body(number));
                message.putUserProperty("number", Long.toString(number));
                result = producer.send(message);
            }
            Map<String, Object> facts = new LinkedHashMap<>();
            facts.put("unique_key", result.getMsgId());
            facts.put("offset_id", result.getOffsetMsgId());
            facts.put("queue", result.getMessageQueue().getQueueId());
            facts.put("offset", result.getQueueOffset());
            facts.put("broker", result.getMessageQueue().getBrokerName());
            Clients.waitFor(30_000, () -> seen.distinct() == messages);
            // The client commits every five seconds, but also on this call.
            consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
            report.line("ready", facts);
            int reported = messages;
            while (true) {
                Thread.sleep(100);
                if (seen.total() != reported) {
                    reported = seen.total();
                    report.line("received", Map.of("total", reported));
                }
            }
        }
    }
}
