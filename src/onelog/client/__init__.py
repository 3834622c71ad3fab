"""OneLog from the client's side: finding brokers and talking to them, over the network only."""
