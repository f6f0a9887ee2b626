"""The use cases, one file each: what the command line, a script, a notebook and the web page all call."""
