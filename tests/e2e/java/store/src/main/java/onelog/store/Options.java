package onelog.store;

import java.util.HashMap;
import java.util.Map;

/** The command line: a command, a folder, then pairs of {@code --name value}. */
final class Options {
    private final String[] positional = new String[2];
    private final Map<String, String> named = new HashMap<>();

    Options(String[] arguments) {
        if (arguments.length < 2 || arguments.length % 2 != 0) {
            throw new IllegalArgumentException("usage: COMMAND DIR [--name value]...");
        }
        positional[0] = arguments[0];
        positional[1] = arguments[1];
        for (int at = 2; at < arguments.length; at += 2) {
            if (!arguments[at].startsWith("--")) {
                throw new IllegalArgumentException("expected an option, not " + arguments[at]);
            }
            named.put(arguments[at].substring(2), arguments[at + 1]);
        }
    }

    String command() {
        return positional[0];
    }

    String folder() {
        return positional[1];
    }

    int number(String name) {
        if (!named.containsKey(name)) {
            throw new IllegalArgumentException("--" + name + " is missing");
        }
        return Integer.parseInt(named.get(name));
    }

    int number(String name, int otherwise) {
        return named.containsKey(name) ? number(name) : otherwise;
    }

    boolean isTrue(String name) {
        return Boolean.parseBoolean(named.get(name));
    }

    String text(String name, String otherwise) {
        return named.getOrDefault(name, otherwise);
    }
}
