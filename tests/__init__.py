"""The tests. A package of its own, so that no installed one of this name is taken for it."""
