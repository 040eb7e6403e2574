"""How close a suite on several devices comes to the shortest time that is possible, beside other ways to run it."""
