"""Tests against a real Kafka: a broker from Maven, started on free ports in a temporary directory."""
