"""Tasks, vocabularies, Parquet shards and the order of the rows."""
