package onelog.clients;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.SplittableRandom;
import java.util.zip.CRC32;

/**
 * Bodies that prove themselves, in printable letters: number (16 hexadecimal digits), checksum of number and filler
 * (8 digits), filler.
 *
 * <p>Invariant: {@code number(body(n, size)) == n}, and any change of the bytes makes {@code number} return -1.
 */
final class Payload {
    private static final int NUMBER_BYTES = 16;
    private static final int HEAD_BYTES = 24;

    private Payload() {
    }

    /** A body of a size that varies with the number, between 24 and 280 bytes. */
    static byte[] body(long number) {
        return body(number, HEAD_BYTES + (int) (number % 257));
    }

    static byte[] body(long number, int size) {
        ByteBuffer buffer = ByteBuffer.allocate(Math.max(size, HEAD_BYTES));
        buffer.put(digits(number, NUMBER_BYTES)).position(HEAD_BYTES);
        SplittableRandom random = new SplittableRandom(number);
        while (buffer.hasRemaining()) {
            buffer.put((byte) ('a' + random.nextInt(26)));
        }
        byte[] bytes = buffer.array();
        buffer.position(NUMBER_BYTES).put(digits(checksum(bytes), HEAD_BYTES - NUMBER_BYTES));
        return bytes;
    }

    /** The number inside, or -1 if these are not the bytes that {@code body} made. */
    static long number(byte[] body) {
        if (body == null || body.length < HEAD_BYTES) {
            return -1;
        }
        String head = new String(body, 0, HEAD_BYTES, StandardCharsets.US_ASCII);
        try {
            long sum = Long.parseLong(head.substring(NUMBER_BYTES), 16);
            return sum == checksum(body) ? Long.parseLong(head.substring(0, NUMBER_BYTES), 16) : -1;
        } catch (NumberFormatException noDigits) {
            return -1;
        }
    }

    private static byte[] digits(long value, int width) {
        return String.format("%0" + width + "x", value).getBytes(StandardCharsets.US_ASCII);
    }

    private static long checksum(byte[] bytes) {
        CRC32 crc = new CRC32();
        crc.update(bytes, 0, NUMBER_BYTES);
        crc.update(bytes, HEAD_BYTES, bytes.length - HEAD_BYTES);
        return crc.getValue();
    }
}
