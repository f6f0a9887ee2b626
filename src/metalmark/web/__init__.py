"""`metalmark serve`: the store in a browser, as it is at that moment. Reads only: it starts and deletes nothing."""
