#!/bin/sh
# Add a node to the running set: ./add-replica.sh 3
# It copies the log from the master, and counts as a member when it is in sync.
. "$(dirname "$0")/settings.sh"
n=${1:?say which node: a number that no other has}
running=$(for file in "$DATA"/node-*.pid; do echo "$file"; done | grep -vc "/node-$n.pid")
start_node "$n"
wait_for "$n" $((running + 1))
"$ONELOG" cluster status
