"""What runs inside the user's own interpreter while a script is watched.

It has the standard library only, and code that every Python from 3.9 on can read: the interpreter is the user's, and
Metalmark need not be installed in it. Whatever goes wrong here must never reach the script.
"""
