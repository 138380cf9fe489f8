"""The room `kafkafs.schemas`."""
