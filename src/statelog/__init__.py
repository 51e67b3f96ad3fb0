"""statelog: durable, log-structured keyed state."""
