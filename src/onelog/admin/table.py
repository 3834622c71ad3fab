"""All operations: the one table."""

from onelog.admin import clusters, groups, history, routing, topics, users

OPERATIONS = [
    operation
    for module in (clusters, topics, groups, history, routing, users)
    for operation in module.OPERATIONS
]
