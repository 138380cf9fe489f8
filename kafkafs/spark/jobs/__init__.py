"""Spark jobs: export and stats. Each is a function here and a command of `kafkafs spark`."""
