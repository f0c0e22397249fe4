"""Tables in ClickHouse."""
