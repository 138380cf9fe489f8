"""The package `kafkafs.schemas`."""
