package onelog.kafka;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;

/**
 * Makes a topic, sends to it, and reads that with two members of a group, one after the other: the
 * first commits half and leaves, the second reads the rest. Arguments: bootstrap, topic, protocol, count.
 */
public final class RoundTrip {
    private RoundTrip() {}

    public static void main(String[] args) throws Exception {
        String bootstrap = args[0];
        String topic = args[1];
        String protocol = args[2];
        int count = Integer.parseInt(args[3]);
        try (Admin admin = Admin.create(Settings.of(bootstrap))) {
            admin.createTopics(List.of(new NewTopic(topic, 3, (short) 1))).all().get();
            send(bootstrap, topic, count);
            Set<String> seen = new HashSet<>();
            int first = read(bootstrap, topic, protocol, count / 2, seen);
            int second = read(bootstrap, topic, protocol, count - first, seen);
            Map<TopicPartition, OffsetAndMetadata> kept =
                    admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get();
            long committed = kept.values().stream().mapToLong(OffsetAndMetadata::offset).sum();
            System.out.printf(
                    "{\"first\": %d, \"second\": %d, \"distinct\": %d, \"committed\": %d}%n",
                    first, second, seen.size(), committed);
        }
    }

    private static void send(String bootstrap, String topic, int count) throws Exception {
        var settings = Settings.producer(bootstrap);
        settings.put("acks", "all");
        settings.put("compression.type", "zstd");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int number = 0; number < count; number++) {
                var record = new ProducerRecord<>(topic, null, 1_000L + number, "k" + number, "v" + number);
                record.headers().add("number", Integer.toString(number).getBytes(UTF_8));
                sent.add(producer.send(record));
            }
            for (Future<RecordMetadata> each : sent) {
                each.get();
            }
        }
    }

    /** Reads so many, one poll after the other, and commits what it has read. */
    private static int read(String bootstrap, String topic, String protocol, int count, Set<String> seen) {
        var settings = Settings.consumer(bootstrap, topic, protocol);
        settings.put("max.poll.records", "10");
        int found = 0;
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(topic));
            while (found < count) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    String number = new String(record.headers().lastHeader("number").value(), UTF_8);
                    boolean whole = record.key().equals("k" + number)
                            && record.value().equals("v" + number)
                            && record.timestamp() == 1_000L + Integer.parseInt(number);
                    if (!whole || !seen.add(number)) {
                        throw new IllegalStateException("not as sent, or twice: " + record);
                    }
                    found++;
                }
                consumer.commitSync();
            }
        }
        return found;
    }
}
