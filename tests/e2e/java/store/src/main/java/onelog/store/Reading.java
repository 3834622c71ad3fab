package onelog.store;

import java.io.File;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.ConsumeQueueExt;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.MessageFilter;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/** Everything a store holds, as its own code reads it: the log in order, each queue, each key. */
final class Reading {
    private static final int BLANK_MAGIC = 0xCBD43194;

    private final Opened opened;
    private final Lines lines;
    private final TreeMap<String, TreeSet<String>> keysByTopic = new TreeMap<>();

    Reading(Opened opened, Lines lines) {
        this.opened = opened;
        this.lines = lines;
    }

    void everything() throws Exception {
        Map<String, Object> line = line("store");
        line.put("minPhysicalOffset", opened.store.getMinPhyOffset());
        line.put("maxPhysicalOffset", opened.store.getMaxPhyOffset());
        lines.print(line);
        log();
        queues();
        lookups();
    }

    /** One line per record, in the order of the log. */
    private void log() throws Exception {
        long offset = opened.store.getMinPhyOffset();
        while (offset < opened.store.getMaxPhyOffset()) {
            SelectMappedBufferResult rest = opened.store.getCommitLogData(offset);
            try {
                ByteBuffer buffer = rest.getByteBuffer();
                while (buffer.remaining() >= 8) {
                    int size = buffer.getInt(buffer.position());
                    if (buffer.getInt(buffer.position() + 4) == BLANK_MAGIC) {
                        offset += size;
                        break;
                    }
                    ByteBuffer record = buffer.slice();
                    record.limit(size);
                    describe(MessageDecoder.decode(record, true, false), size, offset);
                    buffer.position(buffer.position() + size);
                    offset += size;
                }
            } finally {
                rest.release();
            }
        }
    }

    private void describe(MessageExt message, int size, long offset) throws Exception {
        if (message == null || message.getCommitLogOffset() != offset) {
            throw new IllegalStateException("no record at " + offset + ", but " + message);
        }
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        Map<String, Object> line = line("record");
        line.put("physicalOffset", offset);
        line.put("size", size);
        line.put("topic", message.getTopic());
        line.put("queueId", message.getQueueId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("msgId", message.getMsgId());
        line.put("flag", message.getFlag());
        line.put("sysFlag", message.getSysFlag());
        line.put("bornTimestamp", message.getBornTimestamp());
        line.put("bornHost", hex((InetSocketAddress) message.getBornHost()));
        line.put("storeTimestamp", message.getStoreTimestamp());
        line.put("storeHost", hex((InetSocketAddress) message.getStoreHost()));
        line.put("reconsumeTimes", message.getReconsumeTimes());
        line.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        line.put("bodyCrc", message.getBodyCRC());
        line.put("bodyBytes", body.length);
        line.put("bodySha256", hex(MessageDigest.getInstance("SHA-256").digest(body)));
        line.put("tags", message.getTags());
        line.put("keys", message.getKeys());
        line.put("uniqueKey", message.getProperty("UNIQ_KEY"));
        line.put("properties", new TreeMap<>(message.getProperties()));
        lines.print(line);
        remember(message.getTopic(), message.getProperty("UNIQ_KEY"));
        for (String key : message.getKeys() == null ? new String[0] : message.getKeys().split(" ")) {
            remember(message.getTopic(), key);
        }
    }

    private void remember(String topic, String key) {
        if (key != null && !key.isEmpty()) {
            keysByTopic.computeIfAbsent(topic, name -> new TreeSet<>()).add(key);
        }
    }

    /** One line per queue, and one per entry in it. */
    private void queues() throws Exception {
        for (String topic : names(new File(opened.folder, "consumequeue"))) {
            for (String queue : names(new File(opened.folder, "consumequeue/" + topic))) {
                int queueId = Integer.parseInt(queue);
                long minimum = opened.store.getMinOffsetInQueue(topic, queueId);
                long maximum = opened.store.getMaxOffsetInQueue(topic, queueId);
                Map<String, Object> line = line("queue");
                line.put("topic", topic);
                line.put("queueId", queueId);
                line.put("minOffset", minimum);
                line.put("maxOffset", maximum);
                lines.print(line);
                for (long offset = minimum; offset < maximum; ) {
                    offset = entries(topic, queueId, offset);
                }
            }
        }
    }

    private long entries(String topic, int queueId, long offset) {
        Tags tags = new Tags();
        GetMessageResult result = opened.store.getMessage("reader", topic, queueId, offset, 32, tags);
        if (result == null || result.getStatus() != GetMessageStatus.FOUND) {
            throw new IllegalStateException(topic + " " + queueId + " at " + offset + " gives " + result);
        }
        try {
            List<ByteBuffer> buffers = result.getMessageBufferList();
            for (int at = 0; at < buffers.size(); at++) {
                ByteBuffer record = buffers.get(at);
                Map<String, Object> line = line("entry");
                line.put("topic", topic);
                line.put("queueId", queueId);
                line.put("offset", offset + at);
                line.put("physicalOffset", record.getLong(28));
                line.put("size", record.getInt(0));
                line.put("tagsCode", tags.codes.get(at));
                lines.print(line);
            }
            if (result.getNextBeginOffset() != offset + buffers.size()) {
                throw new IllegalStateException(topic + " " + queueId + " jumps to " + result.getNextBeginOffset());
            }
        } finally {
            result.release();
        }
        return result.getNextBeginOffset();
    }

    /** One line per key: the offsets of the records that the index finds for it. */
    private void lookups() {
        keysByTopic.forEach((topic, keys) -> keys.forEach(key -> {
            QueryMessageResult result = opened.store.queryMessage(topic, key, 64, 0, Long.MAX_VALUE);
            TreeSet<Long> offsets = new TreeSet<>();
            for (ByteBuffer record : result.getMessageBufferList()) {
                offsets.add(record.getLong(28));
            }
            result.release();
            Map<String, Object> line = line("lookup");
            line.put("topic", topic);
            line.put("key", key);
            line.put("physicalOffsets", new ArrayList<>(offsets));
            lines.print(line);
        }));
    }

    private static Map<String, Object> line(String kind) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("kind", kind);
        return line;
    }

    private static TreeSet<String> names(File folder) {
        TreeSet<String> names = new TreeSet<>();
        String[] found = folder.list();
        for (String name : found == null ? new String[0] : found) {
            names.add(name);
        }
        return names;
    }

    private static String hex(InetSocketAddress address) {
        return hex(address.getAddress().getAddress()) + String.format("%08x", address.getPort());
    }

    private static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte each : bytes) {
            text.append(String.format("%02x", each));
        }
        return text.toString();
    }

    /** A filter that lets everything pass and keeps what the queue says about tags. */
    private static final class Tags implements MessageFilter {
        final List<Long> codes = new ArrayList<>();

        @Override
        public boolean isMatchedByConsumeQueue(Long tagsCode, ConsumeQueueExt.CqExtUnit extension) {
            codes.add(tagsCode);
            return true;
        }

        @Override
        public boolean isMatchedByCommitLog(ByteBuffer record, Map<String, String> properties) {
            return true;
        }
    }
}
