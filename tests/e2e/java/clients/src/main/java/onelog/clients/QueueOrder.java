package onelog.clients;

import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLongArray;

/**
 * Watches the order of consumption, queue by queue, over all members of a group.
 *
 * <p>Ordered consumption means: never two messages of one queue at once, and never a message before its predecessor.
 * Going back is a redelivery (at least once); going ahead over a message is a gap, and wrong.
 */
final class QueueOrder {
    final AtomicInteger overlaps = new AtomicInteger();
    final AtomicInteger gaps = new AtomicInteger();
    final List<String> wentBack = new CopyOnWriteArrayList<>();
    private final AtomicIntegerArray inside;
    private final AtomicLongArray next;

    QueueOrder(int queues) {
        this.inside = new AtomicIntegerArray(queues);
        this.next = new AtomicLongArray(queues);
    }

    void enter(int queue, long place) {
        if (inside.incrementAndGet(queue) != 1) {
            overlaps.incrementAndGet();
        }
        long expected = next.get(queue);
        if (place > expected) {
            gaps.incrementAndGet();
        } else if (place < expected) {
            wentBack.add("queue " + queue + " from " + expected + " to " + place);
        }
        next.set(queue, place + 1);
    }

    void leave(int queue) {
        inside.decrementAndGet(queue);
    }
}
