"""Attributes of topics and groups on a command line: `name=value`, or `name=` to take one away."""

from onelog.errors import InvalidRequestError


def parse_attributes(given: list[str] | None) -> dict[str, str | None]:
    """The attributes by name; None takes one away."""
    parsed: dict[str, str | None] = {}
    for item in given or []:
        name, equals, value = item.partition("=")
        # Brokers take attributes as one text, in which these two have a meaning.
        if not equals or not name.strip() or "," in item:
            raise InvalidRequestError(f"--attribute {item}: write it as name=value, without commas")
        parsed[name.strip()] = value.strip() or None
    return parsed
