"""The loops a careful person writes by hand, one a framework: nothing of Metalmark's runner or backends in them."""
