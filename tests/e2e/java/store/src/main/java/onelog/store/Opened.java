package onelog.store;

import java.io.File;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** A store that runs, with recovery done and its threads started; closing it is a clean stop. */
final class Opened implements AutoCloseable {
    final File folder;
    final DefaultMessageStore store;

    Opened(File folder, Options options) throws Exception {
        this.folder = folder;
        store = Dialect.create(configure(folder, options));
        if (!store.load()) {
            throw new IllegalStateException("the store in " + folder + " does not load");
        }
        store.start();
    }

    static MessageStoreConfig configure(File folder, Options options) {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(folder.getPath());
        config.setStorePathCommitLog(new File(folder, "commitlog").getPath());
        config.setMappedFileSizeCommitLog(options.number("segment-bytes", config.getMappedFileSizeCommitLog()));
        config.setMappedFileSizeConsumeQueue(options.number("queue-file-entries", 300_000) * 20);
        config.setMaxHashSlotNum(options.number("index-slots", config.getMaxHashSlotNum()));
        config.setMaxIndexNum(options.number("index-entries", config.getMaxIndexNum()));
        // After a crash the index is dropped; this has it rebuilt as far back as it was dropped.
        config.setMessageIndexSafe(options.isTrue("index-safe"));
        config.setFlushDiskType(options.isTrue("sync") ? FlushDiskType.SYNC_FLUSH : FlushDiskType.ASYNC_FLUSH);
        config.setEnableLmq(options.isTrue("light-queues"));
        config.setEnableMultiDispatch(options.isTrue("light-queues"));
        // Port 0: replication cannot be switched off, but it need not get in anybody's way.
        config.setHaListenPort(0);
        Dialect.configure(config, options);
        return config;
    }

    Map<String, Object> append(Draft draft) {
        PutMessageResult put = Dialect.put(store, draft);
        AppendMessageResult appended = put.getAppendMessageResult();
        if (!put.isOk() || appended == null) {
            throw new IllegalStateException("message refused: " + put);
        }
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("kind", "appended");
        line.put("topic", draft.topic);
        line.put("queueId", draft.queueId);
        line.put("queueOffset", appended.getLogicsOffset());
        line.put("physicalOffset", appended.getWroteOffset());
        line.put("size", appended.getWroteBytes());
        line.put("msgId", appended.getMsgId());
        line.put("storeTimestamp", appended.getStoreTimestamp());
        return line;
    }

    void awaitDispatch() throws InterruptedException {
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (store.dispatchBehindBytes() > 0) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException(store.dispatchBehindBytes() + " bytes were not dispatched in a minute");
            }
            Thread.sleep(10);
        }
    }

    @Override
    public void close() {
        store.shutdown();
    }
}
