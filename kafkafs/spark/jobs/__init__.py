"""Spark jobs: the export to Parquet, a function in this package and the command `kafkafs spark export`."""
