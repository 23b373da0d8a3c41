"""The bench: `python -m tests.bench` measures source and sink against yardsticks."""
