"""The same questions for OneLog and for another server of STOMP: where do they differ?

    python -m tests.e2e.stomp_oracle HOST:PORT

The other one is ActiveMQ (Debian has 5.17), with `schedulerSupport="true"` and no users. Selectors,
patterns of topics and queues, and schedules are asked about. Where the answers differ and it is not
known why (`KNOWN`), that is printed, and the end is not 0.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from queue import Empty

import onelog
from tests.gateways.stomp.live import Address, Client, connected

HEADERS = {"color": "red", "size": "12", "price": "9.5", "name": "O'Neil_x", "priority": "7"}
SELECTORS = [
    "color = 'red'",
    "color <> 'red'",
    "color <> 'blue'",
    "missing = 'x'",
    "missing <> 'x'",
    "missing IS NULL",
    "color IS NULL",
    "color IS NOT NULL",
    "NOT color = 'red'",
    "NOT missing = 'x'",
    "color = 'red' AND missing IS NULL",
    "color = 'blue' OR size = '12'",
    "color IN ('red', 'blue')",
    "color NOT IN ('red')",
    "missing NOT IN ('red')",
    "color LIKE 'r%'",
    "color LIKE '_ed'",
    "color NOT LIKE 'r%'",
    "missing LIKE '%'",
    "name LIKE 'O''N%'",
    "name LIKE '%!_x' ESCAPE '!'",
    "name LIKE '%!_y' ESCAPE '!'",
    "JMSPriority > 5",
    "JMSPriority = 4",
    "JMSPriority BETWEEN 6 AND 8",
    "JMSPriority + 1 = 8",
    "JMSPriority * 2 > 15",
    "TRUE",
    "FALSE",
    "(color = 'red')",
    "color = 'RED'",
    "Color = 'red'",
    "convert_string_expressions:size > 10",
    "convert_string_expressions:price < 9",
    "convert_string_expressions:size / 4 = 3",
    "size > 10",
    "size = 12",
    "JMSPriority NOT BETWEEN 1 AND 3",
    "NOT (color = 'x' AND missing = 'y')",
    "color = 'red' OR missing = 'x'",
    "missing = 'x' OR missing = 'y'",
]
PATTERNS = ["a", "a.*", "a.>", ">", "*", "*.b", "a.*.c", "*.b.>", "a.b", "a.b.c.>", "b.>"]
NAMES = ["a", "b", "a.b", "a.c", "b.b", "a.b.c", "a.x.c", "a.b.c.d", "ab"]
KNOWN = {
    # Headers of STOMP are texts: compared with a number they are read as one here.
    "selector size > 10": (True, "refused"),
    # Its browser sees nothing, and does not end.
    "selector NOT color = 'red'": (False, "no end"),
    "selector convert_string_expressions:size > 10": (True, "refused"),
    "selector convert_string_expressions:price < 9": (False, "refused"),
    "selector convert_string_expressions:size / 4 = 3": (True, "refused"),
}
"""What the two are known to say: OneLog first."""


def answers(address: Address, prefix: str) -> Iterator[tuple[str, object]]:
    """What a server says to each question."""
    with connected(address) as client:
        client.send(f"/queue/{prefix}s", "probe", **HEADERS)
        for selector in SELECTORS:
            yield f"selector {selector}", _is_selected(address, f"/queue/{prefix}s", selector)
        yield from _topics(client, prefix)
        yield from _queues(client, prefix)
        yield from _schedules(client, prefix)


def _is_selected(address: Address, queue: str, selector: str) -> bool | str:
    """Whether a browser with that selector sees the message."""
    found = False
    with connected(address) as client:
        client.connection.subscribe(
            queue, "look", headers={"browser": "true", "selector": selector}
        )
        while True:
            try:
                heard = client.messages.get(timeout=8)
            except Empty:
                return "refused" if client.errors.qsize() else "no end"
            if heard.headers.get("browser") == "end":
                return found
            found = True


def _topics(client: Client, prefix: str) -> Iterator[tuple[str, object]]:
    for number, pattern in enumerate(PATTERNS):
        client.subscribe(f"/topic/{prefix}.{pattern}", f"t{number}")
    for name in NAMES:
        client.send(f"/topic/{prefix}.{name}", name)
    found: dict[str, set[str]] = {f"t{number}": set() for number in range(len(PATTERNS))}
    while not client.is_quiet_for(1.0, found):
        pass
    for number, pattern in enumerate(PATTERNS):
        yield f"topic {pattern}", tuple(sorted(found[f"t{number}"]))
        client.connection.unsubscribe(f"t{number}")


def _queues(client: Client, prefix: str) -> Iterator[tuple[str, object]]:
    for number, pattern in enumerate(PATTERNS):
        client.subscribe(f"/queue/{prefix}q{number}.{pattern}", f"q{number}")
        for name in NAMES:
            client.send(f"/queue/{prefix}q{number}.{name}", name)
    found: dict[str, set[str]] = {f"q{number}": set() for number in range(len(PATTERNS))}
    while not client.is_quiet_for(5.0, found):
        pass
    for number, pattern in enumerate(PATTERNS):
        yield f"queue {pattern}", tuple(sorted(found[f"q{number}"]))
        client.connection.unsubscribe(f"q{number}")


def _schedules(client: Client, prefix: str) -> Iterator[tuple[str, object]]:
    asked = [
        {"DELAY": "1000"},
        {"DELAY": "500", "PERIOD": "500", "REPEAT": "2"},
        {"PERIOD": "700", "REPEAT": "1"},
        {"PERIOD": "600"},
    ]
    for number, schedule in enumerate(asked):
        client.subscribe(f"/queue/{prefix}d{number}", f"d{number}")
        headers = {f"AMQ_SCHEDULED_{name}": value for name, value in schedule.items()}
        client.send(f"/queue/{prefix}d{number}", "x", **headers)
        at_once = not client.is_quiet()
        time.sleep(4)
        yield f"schedule {schedule}", (at_once, client.messages.qsize())
        while not client.messages.empty():
            client.messages.get()


def main() -> None:
    """Ask both, and print where they differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("server", help="the other one, as host:port")
    host, _, port = parser.parse_args().server.rpartition(":")
    prefix = f"o{time.time_ns()}"
    there = dict(answers((host, int(port)), prefix))
    with onelog.embedded(stomp=True) as mq:
        assert mq.stomp_address is not None
        here = dict(answers(mq.stomp_address, prefix))
    unknown = 0
    for question, answer in here.items():
        if answer != there[question]:
            is_known = KNOWN.get(question) == (answer, there[question])
            unknown += not is_known
            print(
                f"{'known' if is_known else 'OTHER'}: {question}: {answer}, there {there[question]}"
            )
    print(f"{len(here)} questions, {unknown} answers that are different for no known reason")
    sys.exit(bool(unknown))


if __name__ == "__main__":
    main()
