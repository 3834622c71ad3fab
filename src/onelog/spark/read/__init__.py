"""Reading topics: from brokers, or from the files of a store."""
