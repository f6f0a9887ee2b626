"""`metalmark serve`: the store in a browser, as it is at that moment. It only reads: it starts and deletes nothing."""
