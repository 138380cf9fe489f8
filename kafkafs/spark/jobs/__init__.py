"""The pipeline's jobs: export, stats, verify. Each is a function here and a command of `kafkafs spark`."""
