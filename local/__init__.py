"""The local stack: Kafka, S3, Redis and the ClickHouse engine as one."""
