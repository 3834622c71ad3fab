package onelog.clients;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Scenarios of transactions: their message's number says what is to become of each. */
final class Transactions {
    private Transactions() {
    }

    /** What a producer answers, the first time and whenever it is asked. */
    enum Course {
        COMMIT(LocalTransactionState.COMMIT_MESSAGE),
        ROLL_BACK(LocalTransactionState.ROLLBACK_MESSAGE),
        ASKED_THEN_COMMIT(LocalTransactionState.UNKNOW, LocalTransactionState.COMMIT_MESSAGE),
        ASKED_THEN_ROLL_BACK(LocalTransactionState.UNKNOW, LocalTransactionState.ROLLBACK_MESSAGE),
        ASKED_TWICE_THEN_COMMIT(LocalTransactionState.UNKNOW, LocalTransactionState.UNKNOW,
            LocalTransactionState.COMMIT_MESSAGE);

        private final LocalTransactionState[] answers;

        Course(LocalTransactionState... answers) {
            this.answers = answers;
        }

        static Course of(long number) {
            return values()[(int) (number % values().length)];
        }

        LocalTransactionState answer(int time) {
            return answers[Math.min(time, answers.length - 1)];
        }

        boolean delivers() {
            return answers[answers.length - 1] == LocalTransactionState.COMMIT_MESSAGE;
        }
    }

    /** Takes every course and counts the questions. */
    private static final class Courses implements TransactionListener {
        private final Map<Long, AtomicInteger> asked = new ConcurrentHashMap<>();
        private final AtomicInteger wrongCounts = new AtomicInteger();

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return Course.of(Payload.number(message.getBody())).answer(0);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            long number = Payload.number(message.getBody());
            int time = asked.computeIfAbsent(number, key -> new AtomicInteger()).incrementAndGet();
            if (!Integer.toString(time).equals(message.getProperty("TRANSACTION_CHECK_TIMES"))) {
                wrongCounts.incrementAndGet();
            }
            return Course.of(number).answer(time);
        }
    }

    /** Every course, with a consumer that must see what was committed, once, and nothing else. */
    static void courses(Options options, Report report) throws Exception {
        int messages = options.number("messages", 50);
        String topic = options.text("topic");
        Courses courses = new Courses();
        try (Clients clients = new Clients(options)) {
            TransactionMQProducer producer = producer(options, topic, "courses", courses);
            try {
                clients.createTopic(producer, topic, 4);
                Arrivals seen = consume(clients, topic);
                int accepted = 0;
                for (long number = 0; number < messages; number++) {
                    Message message = new Message(topic, "tag", "key" + number, Payload.body(number));
                    TransactionSendResult result = producer.sendMessageInTransaction(message, null);
                    accepted += result.getLocalTransactionState() == Course.of(number).answer(0) ? 1 : 0;
                }
                long wanted = delivering(messages);
                boolean inTime = Clients.waitFor(200_000, () -> seen.distinct() >= wanted);
                // A second delivery, if there were one, would come with a later round of questions.
                Thread.sleep(options.number("settle-ms", 35_000));
                Map<String, Object> facts = new LinkedHashMap<>();
                facts.put("accepted", accepted);
                facts.put("in_time", inTime);
                facts.put("duplicates", seen.duplicates());
                facts.put("received", perCourse(messages, number -> seen.has(number) ? 1 : 0));
                facts.put("asked", perCourse(messages,
                    number -> courses.asked.getOrDefault(number, new AtomicInteger()).get()));
                facts.put("wrong_counts", courses.wrongCounts.get());
                report.done(facts);
            } finally {
                producer.shutdown();
            }
        }
    }

    private interface Counted {
        int of(long number);
    }

    private static Map<String, Integer> perCourse(int messages, Counted counted) {
        Map<String, Integer> counts = new TreeMap<>();
        for (long number = 0; number < messages; number++) {
            counts.merge(Course.of(number).name(), counted.of(number), Integer::sum);
        }
        return counts;
    }

    private static long delivering(int messages) {
        long count = 0;
        for (long number = 0; number < messages; number++) {
            count += Course.of(number).delivers() ? 1 : 0;
        }
        return count;
    }

    /** Dies when all its half messages are stored and before any of them is ended. */
    static void victim(Options options, Report report) throws Exception {
        int messages = options.number("messages", 20);
        String topic = options.text("topic");
        CountDownLatch halves = new CountDownLatch(messages);
        TransactionListener dying = new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                halves.countDown();
                try {
                    Thread.sleep(Long.MAX_VALUE);
                } catch (InterruptedException ended) {
                    Thread.currentThread().interrupt();
                }
                return LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        };
        TransactionMQProducer producer = producer(options, topic, "victim", dying);
        try (Clients clients = new Clients(options)) {
            clients.createTopic(producer, topic, 4);
        }
        ExecutorService senders = Executors.newFixedThreadPool(messages);
        for (long number = 0; number < messages; number++) {
            Message message = new Message(topic, Payload.body(number));
            senders.submit(() -> producer.sendMessageInTransaction(message, null));
        }
        halves.await();
        report.line("halves", Map.of("stored", messages));
        // Like kill -9: no hook runs, no connection is closed in good order.
        Runtime.getRuntime().halt(137);
    }

    /** Another producer of the victim's group: it is asked, and says what became of each. */
    static void heir(Options options, Report report) throws Exception {
        int messages = options.number("messages", 20);
        String topic = options.text("topic");
        AtomicInteger asked = new AtomicInteger();
        TransactionListener knowing = new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                asked.incrementAndGet();
                return Payload.number(message.getBody()) % 2 == 0 ? LocalTransactionState.COMMIT_MESSAGE
                    : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        };
        TransactionMQProducer producer = producer(options, topic, "heir", knowing);
        try (Clients clients = new Clients(options)) {
            // A producer sends its heartbeats to the brokers that it has sent something to.
            producer.send(new Message(topic, Payload.body(messages)));
            Arrivals seen = consume(clients, topic);
            Clients.waitFor(150_000,
                () -> asked.get() >= messages && seen.between(0, messages) >= messages / 2);
            Thread.sleep(options.number("settle-ms", 2_000));
            Map<String, Object> facts = new LinkedHashMap<>();
            facts.put("asked", asked.get());
            facts.put("received", seen.between(0, messages));
            facts.put("duplicates", seen.duplicates());
            long odd = 0;
            for (long number = 1; number < messages; number += 2) {
                odd += seen.has(number) ? 1 : 0;
            }
            facts.put("rolled_back_but_received", odd);
            report.done(facts);
        } finally {
            producer.shutdown();
        }
    }

    private static TransactionMQProducer producer(Options options, String topic, String member,
        TransactionListener listener) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(topic + "-transactions");
        producer.setNamesrvAddr(options.text("nameservers"));
        producer.setInstanceName(member);
        producer.setSendMsgTimeout(10_000);
        producer.setHeartbeatBrokerInterval(2_000);
        producer.setTransactionListener(listener);
        producer.start();
        return producer;
    }

    private static Arrivals consume(Clients clients, String topic) throws Exception {
        DefaultMQPushConsumer consumer = clients.pushConsumer(topic + "-group", "one");
        Clients.beatOften(consumer);
        consumer.subscribe(topic, "*");
        Arrivals seen = new Arrivals();
        seen.listenTo(consumer);
        consumer.start();
        return seen;
    }
}
