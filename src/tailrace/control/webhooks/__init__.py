"""Messages to servers of the tenants' own about what has ended: to listed hosts alone, signed, until they arrive."""
