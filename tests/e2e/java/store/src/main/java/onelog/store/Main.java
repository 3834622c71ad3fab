package onelog.store;

import java.io.File;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/**
 * RocketMQ's own DefaultMessageStore from the command line: results are JSON lines on standard output.
 *
 * <pre>
 * write  DIR --count N [--seed S] [--crash true]   a new store with N messages of the corpus, then what `read` prints
 * append DIR --count N [--seed S] [--crash true]   the same on a store that exists
 * read   DIR                                       every record, queue entry and key lookup
 * hold   DIR                                       keep the store open until standard input ends
 * bench  DIR --count N --body BYTES                append one by one from one thread, and the rate
 * </pre>
 *
 * Options for the layout of the files are listed in {@link Opened#configure}.
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] arguments) {
        // RocketMQ leaves threads behind that are no daemons, so the end has to be said.
        try {
            run(new Options(arguments));
            System.exit(0);
        } catch (Throwable failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static void run(Options options) throws Exception {
        Lines lines = new Lines(new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8));
        // Loggers that were never configured print to standard output; that is not where they belong.
        System.setOut(new PrintStream(OutputStream.nullOutputStream()));
        File folder = new File(options.folder());
        switch (options.command()) {
            case "write":
                if (new File(folder, "commitlog").exists()) {
                    throw new IllegalArgumentException(folder + " holds a store already; use append");
                }
                append(folder, options, lines);
                break;
            case "append":
                if (!new File(folder, "commitlog").exists()) {
                    throw new IllegalArgumentException(folder + " holds no store; use write");
                }
                append(folder, options, lines);
                break;
            case "read":
                try (Opened store = new Opened(folder, options)) {
                    new Reading(store, lines).everything();
                }
                break;
            case "hold":
                try (Opened store = new Opened(folder, options)) {
                    lines.print(Map.of("kind", "open", "folder", store.folder.getPath()));
                    lines.flush();
                    while (System.in.read() >= 0) {
                        continue;
                    }
                }
                break;
            case "bench":
                try (Opened store = new Opened(folder, options)) {
                    Bench.run(store, options, lines);
                }
                break;
            default:
                throw new IllegalArgumentException("unknown command " + options.command());
        }
        lines.flush();
    }

    private static void append(File folder, Options options, Lines lines) throws Exception {
        try (Opened store = new Opened(folder, options)) {
            Corpus corpus = new Corpus(options);
            for (int at = 0; at < options.number("count"); at++) {
                lines.print(store.append(corpus.next()));
            }
            store.awaitDispatch();
            new Reading(store, lines).everything();
            if (options.isTrue("crash")) {
                lines.flush();
                Runtime.getRuntime().halt(0);
            }
        }
    }
}
