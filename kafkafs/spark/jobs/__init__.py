"""Spark jobs: export and stats. Each is a function in this package and a command of `kafkafs spark`."""
