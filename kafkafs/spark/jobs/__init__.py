"""Spark jobs: export, stats, verify, compact. Each is a function here and a command of `kafkafs spark`."""
