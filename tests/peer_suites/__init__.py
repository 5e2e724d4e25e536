"""Other projects' suites and clients against our server; see README.md. pytest collects nothing here."""
