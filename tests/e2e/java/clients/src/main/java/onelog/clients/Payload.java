package onelog.clients;

import java.nio.ByteBuffer;
import java.util.SplittableRandom;
import java.util.zip.CRC32;

/**
 * Bodies that prove themselves: number (8 bytes), checksum of number and filler (4 bytes), filler.
 *
 * <p>Invariant: {@code number(body(n, size)) == n}, and any change of the bytes makes {@code number} return -1.
 */
final class Payload {
    private static final int HEAD_BYTES = 12;

    private Payload() {
    }

    /** A body of a size that varies with the number, between 12 and 268 bytes. */
    static byte[] body(long number) {
        return body(number, HEAD_BYTES + (int) (number % 257));
    }

    static byte[] body(long number, int size) {
        ByteBuffer buffer = ByteBuffer.allocate(Math.max(size, HEAD_BYTES));
        buffer.putLong(number).putInt(0);
        SplittableRandom random = new SplittableRandom(number);
        while (buffer.hasRemaining()) {
            // Letters only: large bodies have to shrink when the client compresses them.
            buffer.put((byte) ('a' + random.nextInt(26)));
        }
        byte[] bytes = buffer.array();
        ByteBuffer.wrap(bytes).putInt(8, checksum(bytes));
        return bytes;
    }

    /** The number inside, or -1 if these are not the bytes that {@code body} made. */
    static long number(byte[] body) {
        if (body == null || body.length < HEAD_BYTES) {
            return -1;
        }
        ByteBuffer buffer = ByteBuffer.wrap(body);
        return buffer.getInt(8) == checksum(body) ? buffer.getLong(0) : -1;
    }

    private static int checksum(byte[] bytes) {
        CRC32 crc = new CRC32();
        crc.update(bytes, 0, 8);
        crc.update(bytes, HEAD_BYTES, bytes.length - HEAD_BYTES);
        return (int) crc.getValue();
    }
}
