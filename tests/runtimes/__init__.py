"""What the package uses of pyspark, compared with the pyspark of Databricks Runtimes."""
