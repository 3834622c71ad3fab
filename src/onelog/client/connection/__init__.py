"""Connections to brokers and name servers, and what is known of them."""
