"""The route registry: brokers tell it what they have, clients ask it where things are."""
