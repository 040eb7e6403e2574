"""Put an assignment into effect for one test, and take it back: CPU affinity, memory, frameworks, environment."""
