"""Each job of jobs/, through spark-submit in a process of its own, with a kill in the middle."""
