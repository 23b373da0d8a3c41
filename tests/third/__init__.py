"""A third dialect: PostgreSQL's server under another name, with a notation of its own."""
