"""The REST API: what the store knows, for people and programs."""
