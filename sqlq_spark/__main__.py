"""`python -m sqlq_spark`, which is `sqlqueue`."""

from sqlq_spark.cli.main import main

if __name__ == "__main__":
    main()
