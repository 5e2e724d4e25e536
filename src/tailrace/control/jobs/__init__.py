"""Work that outlives the connection that asked for it: run on the way of every request, kept in the database."""
