"""What the package uses of pyspark, held against the pyspark of Databricks Runtimes."""
