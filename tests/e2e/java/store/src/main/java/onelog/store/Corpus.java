package onelog.store;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.UnknownHostException;
import java.util.Random;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;

/**
 * Messages of every kind a store meets, the same for the same seed: several topics and queues, tags, keys and
 * properties in several scripts, both kinds of hosts, transactional types, delays, empty and large bodies.
 */
final class Corpus {
    private static final String[] TAGS = {"", "paid", "refund", "Größe", "タグ", "🚀🚀", "a-rather-long-tag-whose-hash-overflows"};
    private static final String[] KEYS = {"", "order-%d", "order-%d cart-%d", " spaced-%d  out-%d ", "ключ-%d", "🔑%d order-%d"};
    private static final String LIGHT_QUEUES = "%LMQ%left,%LMQ%right";

    private final Random random;
    private final long seed;
    private final boolean lightQueues;
    private final boolean longTopic;
    private int count;

    Corpus(Options options) {
        seed = options.number("seed", 1);
        random = new Random(seed);
        lightQueues = options.isTrue("light-queues");
        longTopic = options.isTrue("long-topic");
    }

    Draft next() throws UnknownHostException {
        Draft draft = new Draft();
        draft.bornTimestamp = System.currentTimeMillis();
        draft.bornHost = host(random.nextInt(5) == 0, 40000 + random.nextInt(1000));
        draft.storeHost = host(random.nextInt(9) == 0, 10911);
        draft.flag = random.nextInt(4) == 0 ? random.nextInt() : 0;
        draft.reconsumeTimes = random.nextInt(3);
        draft.body = new byte[random.nextInt(30) == 0 ? random.nextInt(9000) : random.nextInt(400)];
        random.nextBytes(draft.body);
        address(draft);
        String tags = TAGS[random.nextInt(TAGS.length)];
        if (!tags.isEmpty()) {
            draft.properties.put("TAGS", tags);
        }
        // A key comes back now and then, but a lookup stays below the 64 results that a store gives at most.
        int number = random.nextInt(1 + count / 4);
        String keys = String.format(KEYS[random.nextInt(KEYS.length)], number, number % 7);
        if (!keys.isEmpty()) {
            draft.properties.put("KEYS", keys);
        }
        if (random.nextInt(3) > 0) {
            draft.properties.put("UNIQ_KEY", String.format("%016X%016X", seed, count));
        }
        if (random.nextInt(4) == 0) {
            draft.properties.put("städtchen", "Köln am Rhein, 東京, 🌍");
            draft.properties.put("empty", "");
        }
        count++;
        return draft;
    }

    private void address(Draft draft) {
        int kind = random.nextInt(40);
        draft.topic = "Orders";
        draft.queueId = random.nextInt(4);
        if (kind < 10) {
            draft.topic = "Clicks";
            draft.queueId = random.nextInt(2);
        } else if (kind < 14) {
            draft.topic = "%RETRY%billing";
            draft.queueId = 0;
        } else if (kind < 16) {
            // The queue keeps the time of delivery instead of the tag's hash; level 18 is two hours away.
            draft.topic = "SCHEDULE_TOPIC_XXXX";
            draft.queueId = 17;
            draft.properties.put("DELAY", "18");
        } else if (kind < 17) {
            draft.sysFlag = MessageSysFlag.TRANSACTION_PREPARED_TYPE;
        } else if (kind < 18) {
            draft.sysFlag = MessageSysFlag.TRANSACTION_ROLLBACK_TYPE;
        } else if (kind < 20) {
            draft.sysFlag = MessageSysFlag.TRANSACTION_COMMIT_TYPE;
            draft.preparedTransactionOffset = 4711L;
        } else if (kind < 23 && longTopic) {
            draft.topic = "%RETRY%" + "long-".repeat(30);
            draft.queueId = 0;
        } else if (kind < 26 && lightQueues) {
            draft.topic = "Clicks";
            draft.queueId = random.nextInt(2);
            draft.properties.put("INNER_MULTI_DISPATCH", LIGHT_QUEUES);
        }
    }

    private static InetSocketAddress host(boolean v6, int port) throws UnknownHostException {
        return new InetSocketAddress(InetAddress.getByName(v6 ? "2001:db8::17" : "192.0.2.17"), port);
    }
}
