"""The loops a careful person writes by hand, one a framework: nothing of Metalmark's runner or backends in them.

Each takes the model that the session measures, so that both sides train the very same weights: a second model in the
same process is faster or slower by some percent, by where its arrays happen to lie.
"""
