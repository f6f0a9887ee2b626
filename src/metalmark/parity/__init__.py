"""Does this device, dtype or compiler train the same network as the reference does?"""
