"""The world of the core's tests, here too."""

from tests.core.conftest import world

__all__ = ["world"]
