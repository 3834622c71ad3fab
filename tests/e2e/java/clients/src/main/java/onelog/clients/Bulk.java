package onelog.clients;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Very many messages, and what they add up to: for readers that must find just these. */
final class Bulk {
    private static final int HASH_BYTES = 5;

    private Bulk() {
    }

    static void run(Options options, Report report) throws Exception {
        int first = options.number("first", 0);
        int messages = options.number("messages", 1_000);
        int batchSize = options.number("batch", 100);
        String topic = options.text("topic");
        MessageDigest digest = MessageDigest.getInstance("MD5");
        long hash = 0;
        long bodyBytes = 0;
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-bulk");
            List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
            for (int sent = 0; sent < messages; sent += batchSize) {
                List<Message> batch = new ArrayList<>();
                for (int i = sent; i < Math.min(sent + batchSize, messages); i++) {
                    long number = first + i;
                    Message message = new Message(topic, "t" + number % 5, "k" + number, Payload.body(number));
                    batch.add(message);
                    hash += hash(digest, message);
                    bodyBytes += message.getBody().length;
                }
                MessageQueue queue = queues.get(sent / batchSize % queues.size());
                if (producer.send(batch, queue).getSendStatus() != SendStatus.SEND_OK) {
                    throw new IllegalStateException("a batch was not stored");
                }
            }
        }
        report.done(Map.of("messages", messages, "body_bytes", bodyBytes, "hash", hash));
    }

    /** The first bytes of the MD5 of body, key and tags, as a number. */
    private static long hash(MessageDigest digest, Message message) {
        ByteArrayOutputStream text = new ByteArrayOutputStream();
        text.writeBytes(message.getBody());
        text.write(0);
        text.writeBytes(message.getKeys().getBytes(StandardCharsets.UTF_8));
        text.write(0);
        text.writeBytes(message.getTags().getBytes(StandardCharsets.UTF_8));
        byte[] sum = digest.digest(text.toByteArray());
        long value = 0;
        for (int i = 0; i < HASH_BYTES; i++) {
            value = value << 8 | sum[i] & 0xFF;
        }
        return value;
    }
}
