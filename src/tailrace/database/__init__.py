"""What outlives the process: one database, its tables, its migrations."""
