package onelog.kafka;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;

/**
 * Copies a topic to another, some records in each transaction, whatever happens to the broker. Says
 * so on a line of its own when a transaction is prepared, and when it is committed.
 * Arguments: bootstrap, from, to, protocol, count.
 */
public final class Copy {
    private final String bootstrap;
    private final String from;
    private final String to;
    private final KafkaConsumer<String, String> consumer;

    private Copy(String[] args) {
        bootstrap = args[0];
        from = args[1];
        to = args[2];
        var settings = Settings.consumer(bootstrap, "copiers", args[3]);
        settings.put("max.poll.records", "20");
        consumer = new KafkaConsumer<>(settings);
    }

    public static void main(String[] args) {
        new Copy(args).run(Integer.parseInt(args[4]));
    }

    private void run(int count) {
        consumer.subscribe(List.of(from));
        long deadline = System.nanoTime() + Duration.ofSeconds(400).toNanos();
        KafkaProducer<String, String> producer = null;
        // What is committed, and not what this process thinks it has copied.
        while (committed() < count && System.nanoTime() < deadline) {
            try {
                if (producer == null) {
                    producer = started();
                }
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                if (!records.isEmpty()) {
                    copy(producer, records);
                }
            } catch (KafkaException failed) {
                System.out.printf("{\"event\": \"failed\", \"why\": \"%s\"}%n", failed.getClass().getSimpleName());
                // Whether or not it was committed: a new producer ends it, and the group knows how far it is.
                if (producer != null) {
                    producer.close(Duration.ZERO);
                }
                producer = null;
                goBack();
            }
        }
        if (producer != null) {
            producer.close();
        }
        consumer.close();
    }

    private KafkaProducer<String, String> started() {
        var settings = Settings.producer(bootstrap);
        settings.put("transactional.id", "copier");
        settings.put("max.block.ms", "20000");
        settings.put("delivery.timeout.ms", "20000");
        settings.put("request.timeout.ms", "5000");
        KafkaProducer<String, String> producer = new KafkaProducer<>(settings);
        try {
            producer.initTransactions();
        } catch (KafkaException failed) {
            producer.close(Duration.ZERO);
            throw failed;
        }
        return producer;
    }

    private void copy(KafkaProducer<String, String> producer, ConsumerRecords<String, String> records) {
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> done = new HashMap<>();
        for (ConsumerRecord<String, String> record : records) {
            producer.send(new ProducerRecord<>(to, record.key(), record.value()));
            done.put(
                    new TopicPartition(record.topic(), record.partition()),
                    new OffsetAndMetadata(record.offset() + 1));
        }
        producer.flush();
        producer.sendOffsetsToTransaction(done, consumer.groupMetadata());
        System.out.println("{\"event\": \"prepared\"}");
        producer.commitTransaction();
        System.out.println("{\"event\": \"committed\"}");
    }

    private long committed() {
        try {
            return positions().values().stream()
                    .mapToLong(each -> each == null ? 0 : each.offset())
                    .sum();
        } catch (KafkaException unknown) {
            return -1;
        }
    }

    private Map<TopicPartition, OffsetAndMetadata> positions() {
        Set<TopicPartition> mine = consumer.assignment();
        return mine.isEmpty() ? Map.of() : consumer.committed(mine, Duration.ofSeconds(10));
    }

    private void goBack() {
        Set<TopicPartition> mine = consumer.assignment();
        while (!mine.isEmpty()) {
            try {
                Map<TopicPartition, OffsetAndMetadata> kept = consumer.committed(mine, Duration.ofSeconds(10));
                for (TopicPartition each : mine) {
                    OffsetAndMetadata at = kept.get(each);
                    consumer.seek(each, at == null ? 0 : at.offset());
                }
                return;
            } catch (KafkaException | IllegalStateException again) {
                // Or its partitions were taken from it since it looked.
                mine = consumer.assignment();
            }
        }
    }
}
