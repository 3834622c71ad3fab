package onelog.kafka;

import java.util.Arrays;
import java.util.Map;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts the words of the lines of a topic, exactly once each, until its input ends. Arguments:
 * bootstrap, topic of lines, topic of counts, folder for its state, cleanup.policy of its log.
 */
public final class WordCount {
    private WordCount() {}

    public static void main(String[] args) throws Exception {
        var settings = Settings.of(args[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "word-count");
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[3]);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, "100");
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        Materialized<String, Long, KeyValueStore<Bytes, byte[]>> counts =
                Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                        .withKeySerde(Serdes.String())
                        .withValueSerde(Serdes.Long())
                        .withLoggingEnabled(Map.of("cleanup.policy", args[4]));
        builder.<String, String>stream(args[1])
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
                .count(counts)
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to(args[2], Produced.with(Serdes.String(), Serdes.String()));
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
            streams.setStateListener(
                    (now, before) -> System.out.printf("{\"event\": \"%s\"}%n", now));
            streams.start();
            while (System.in.read() >= 0) {
                // Somebody is there.
            }
        }
    }
}
