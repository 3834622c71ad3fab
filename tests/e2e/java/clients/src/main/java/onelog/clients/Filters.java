package onelog.clients;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.LongPredicate;
import java.util.stream.LongStream;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** Subscriptions that want a part of a topic; for each: how many it should get, got, and got wrongly. */
final class Filters {
    /** The last two have the same hash code: only an exact comparison tells them apart. */
    private static final String[] TAGS = {"red", "green", "blue", "AaAa", "BBBB"};

    private Filters() {
    }

    private static String tag(long number) {
        return TAGS[(int) (number % TAGS.length)];
    }

    static void tags(Options options, Report report) throws Exception {
        Map<String, LongPredicate> subscriptions = new LinkedHashMap<>();
        subscriptions.put("*", number -> true);
        subscriptions.put("red", number -> tag(number).equals("red"));
        subscriptions.put("red || blue", number -> tag(number).equals("red") || tag(number).equals("blue"));
        subscriptions.put("BBBB", number -> tag(number).equals("BBBB"));
        subscriptions.put("nobody-sends-this", number -> false);
        run(options, report, subscriptions, false);
    }

    static void sql(Options options, Report report) throws Exception {
        Map<String, LongPredicate> subscriptions = new LinkedHashMap<>();
        subscriptions.put("a > 5 AND a <= 8", number -> number % 10 > 5 && number % 10 <= 8);
        subscriptions.put("a BETWEEN 2 AND 4 OR name = 'n1'",
            number -> number % 10 >= 2 && number % 10 <= 4 || number % 7 == 1);
        subscriptions.put("name IN ('n2', 'n3') AND NOT (a = 2)",
            number -> (number % 7 == 2 || number % 7 == 3) && number % 10 != 2);
        subscriptions.put("third IS NULL", number -> number % 3 != 0);
        subscriptions.put("third IS NOT NULL AND price >= 10.5", number -> number % 3 == 0 && number / 2.0 >= 10.5);
        subscriptions.put("TAGS = 'red' AND even = TRUE", number -> tag(number).equals("red") && number % 2 == 0);
        subscriptions.put("name CONTAINS '4'", number -> number % 7 == 4);
        run(options, report, subscriptions, true);
    }

    private static void run(Options options, Report report, Map<String, LongPredicate> subscriptions, boolean sql)
        throws Exception {
        int messages = options.number("messages", 210);
        String topic = options.text("topic");
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-producer");
            clients.createTopic(producer, topic, 4);
            Map<String, Arrivals> arrivals = new LinkedHashMap<>();
            for (String expression : subscriptions.keySet()) {
                arrivals.put(expression, listen(clients, topic, "group" + arrivals.size(), expression, sql));
            }
            for (long number = 0; number < messages; number++) {
                producer.send(message(topic, number));
            }
            for (Map.Entry<String, Arrivals> entry : arrivals.entrySet()) {
                long wanted = count(subscriptions.get(entry.getKey()), messages);
                Clients.waitFor(60_000, () -> entry.getValue().distinct() >= wanted);
            }
            Thread.sleep(1_000);
            arrivals.forEach((expression, seen) -> {
                LongPredicate wanted = subscriptions.get(expression);
                report.line("subscription", Map.of("expression", expression, "wanted", count(wanted, messages),
                    "got", count(number -> wanted.test(number) && seen.has(number), messages),
                    "wrong", count(number -> !wanted.test(number) && seen.has(number), messages)));
            });
            report.done(Map.of("bad_expression_code", sql ? refusal(clients, topic) : 0));
        }
    }

    private static Message message(String topic, long number) {
        Message message = new Message(topic, tag(number), Payload.body(number));
        message.putUserProperty("a", Long.toString(number % 10));
        message.putUserProperty("name", "n" + number % 7);
        message.putUserProperty("price", Double.toString(number / 2.0));
        message.putUserProperty("even", Boolean.toString(number % 2 == 0));
        if (number % 3 == 0) {
            message.putUserProperty("third", "yes");
        }
        return message;
    }

    private static Arrivals listen(Clients clients, String topic, String group, String expression, boolean sql)
        throws Exception {
        DefaultMQPushConsumer consumer = clients.pushConsumer(topic + "-" + group, "one");
        Clients.beatOften(consumer);
        if (sql) {
            consumer.subscribe(topic, MessageSelector.bySql(expression));
        } else {
            consumer.subscribe(topic, expression);
        }
        Arrivals seen = new Arrivals();
        seen.listenTo(consumer);
        consumer.start();
        return seen;
    }

    private static long count(LongPredicate predicate, int messages) {
        return LongStream.range(0, messages).filter(predicate).count();
    }

    /** What the broker says to an expression that is none: the response code in the client's exception. */
    private static int refusal(Clients clients, String topic) throws Exception {
        try {
            listen(clients, topic, "bad-group", "a > > 5", true);
            return 0;
        } catch (MQClientException refused) {
            return refused.getResponseCode();
        }
    }
}
